"""Read the prices of a device hour, by model, from a small TOML file.

    currency = "EUR"
    [models]                          # one whole device for an hour
    "NVIDIA H100 80GB HBM3" = 2.10
    "*A100*" = 1.20                   # any model that matches; the longest pattern wins

A share costs the part of its device's memory that it has. Invariant: amounts are decimals, rounded
only when shown."""

import re
import tomllib
from collections.abc import Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from apportion.core.ledger.moments import HOUR
from apportion.core.reports.meters import CARD

PRICES_BYTES_MAX: Final = 1 << 20
MODELS_MAX: Final = 1_000
DOTS_MAX: Final = 10 * MODELS_MAX
PRICE_MAX: Final = Decimal(1_000_000_000)
EXAMPLE: Final = 'currency = "USD"\n[models]\n"NVIDIA H100 80GB HBM3" = 2.5'


class PriceError(ValueError):
    """Raised for prices that cannot be used; names the field, the value and the fix."""


class Prices(Struct, frozen=True):
    """A currency (ISO 4217), and the price of a device hour for each model or pattern."""

    currency: str
    models: dict[str, Decimal]

    def of(self, model: str) -> Decimal:
        """Return the price of a device hour of this model. Raises `PriceError`."""
        exact = self.models.get(model)
        if exact is not None:
            return exact
        matching = [each for each in self.models if fnmatchcase(model, each)]
        if not matching:
            raise PriceError(lacking_words((model,)))
        return self.models[max(matching, key=lambda each: (len(each), each))]

    def lacking(self, models: Iterable[str]) -> tuple[str, ...]:
        """Return the models without a price, sorted."""
        return tuple(
            model
            for model in sorted(set(models))
            if not any(model == each or fnmatchcase(model, each) for each in self.models)
        )

    def cost(self, model: str, cards: int) -> Decimal:
        """Return the cost of `cards`, in device millionths times microseconds.

        Raises `PriceError`."""
        return self.of(model) * cards / (CARD * HOUR) if cards else Decimal(0)


def lacking_words(models: Iterable[str]) -> str:
    """Return the error for models without a price, with the fix."""
    named = " and ".join(map(repr, models))
    return f'[models] has no price for {named}; add it there, or a pattern such as "*" = 0.50'


def prices_of(data: bytes) -> Prices:
    """Parse a price file. Raises `PriceError`."""
    if len(data) > PRICES_BYTES_MAX:
        raise PriceError(f"the file has more than {PRICES_BYTES_MAX} bytes")
    if data.count(b".") > DOTS_MAX:  # tomllib takes quadratic time in the parts of a dotted key
        raise PriceError(f"the file has more than {DOTS_MAX} dots; write one line for each model")
    try:
        found = tomllib.loads(data.decode(), parse_float=Decimal)
    except RecursionError:
        raise PriceError(f"the file is nested too deep; write it as in\n{EXAMPLE}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PriceError(f"the file is not valid TOML: {error}") from None
    unknown = sorted(set(found) - {"currency", "models"})
    if unknown:
        raise PriceError(
            f"unknown key {unknown[0]!r}; write currency and [models], as in\n{EXAMPLE}"
        )
    currency = found.get("currency")
    if currency is None:
        raise PriceError('no currency is set; write a code of ISO 4217, as in currency = "EUR"')
    if not isinstance(currency, str) or not re.fullmatch("[A-Z]{3}", currency):
        raise PriceError(f'currency is {currency!r}; write a code of ISO 4217, such as "EUR"')
    table = found.get("models")
    if not isinstance(table, dict) or not 1 <= len(table) <= MODELS_MAX:
        raise PriceError(f"write a table [models] with 1 to {MODELS_MAX} prices, as in\n{EXAMPLE}")
    models = {}
    for model, price in table.items():
        number = isinstance(price, int | Decimal) and not isinstance(price, bool)
        if not number or not Decimal(price).is_finite() or not 0 <= price <= PRICE_MAX:
            raise PriceError(
                f"models.{model!r} is {price!r}; write the price per GPU-hour, 0 to {PRICE_MAX}"
            )
        models[model] = Decimal(price)
    return Prices(currency, models)
