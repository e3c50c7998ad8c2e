"""Format a report as FOCUS 1.0, the FinOps Open Cost and Usage Specification.

Each record covers one device model in one charge period, for one row (such as a namespace).
Invariant: a record has all mandatory columns; a column is empty only if FOCUS lets it be null."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import msgspec

from apportion.core.ledger.moments import DAY, HOUR, SECOND, text_of
from apportion.core.reports.meters import CARD, Part
from apportion.core.reports.prices import Prices
from apportion.core.reports.report import Reading
from apportion.core.reports.rows import UNNAMED

MANDATORY: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory",
    "ServiceName",
)  # fmt: skip
COLUMNS: Final = (
    *MANDATORY, "ChargeFrequency", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice",
    "ListUnitPrice", "PricingCategory", "ResourceId", "ResourceName", "ResourceType", "SkuId",
    "SkuPriceId", "SubAccountId", "SubAccountName", "Tags",
)  # fmt: skip
PROVIDER: Final = "Apportion"
UNIT: Final = "GPU Hours"
_PLACES: Final = Decimal("0.000000001")


def focus_rows(read: Reading, prices: Prices, account: str) -> Iterator[dict[str, str]]:
    """Yield a FOCUS record per row, model and period, in order of time. Raises `PriceError`."""
    for (step, (key, model)), sums in sorted(read.meters.cells.items(), key=lambda cell: cell[0]):
        cards = sums.cards[Part.ALLOCATED]
        if not cards:
            continue
        start, end = read.meters.edges(step)
        start = max(start, read.account.begins)  # nothing was charged before the ledger existed
        price = prices.of(model)
        cost = str(prices.cost(model, cards).quantize(_PLACES))
        hours = str((Decimal(cards) / (CARD * HOUR)).quantize(_PLACES))
        # The billing period is the calendar month in UTC.
        month = start - start % DAY
        while text_of(month)[8:10] != "01":
            month -= DAY
        after = month + 28 * DAY
        while text_of(after)[8:10] != "01":
            after += DAY
        named = "" if key == UNNAMED else key
        yield {
            **dict.fromkeys(COLUMNS, ""),
            **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
            **dict.fromkeys(("PricingQuantity", "ConsumedQuantity"), hours),
            **dict.fromkeys(("PricingUnit", "ConsumedUnit"), UNIT),
            **dict.fromkeys(("ListUnitPrice", "ContractedUnitPrice"), str(price)),
            **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), PROVIDER),
            "BillingAccountId": account,
            "BillingAccountName": account,
            "BillingCurrency": prices.currency,
            "BillingPeriodStart": text_of(month),
            "BillingPeriodEnd": text_of(after),
            "ChargeCategory": "Usage",
            "ChargeDescription": f"Shares of {model} allocated to {read.by} {key}",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodStart": _whole(start),
            "ChargePeriodEnd": _whole(end),
            "PricingCategory": "Standard",
            "ServiceCategory": "Compute",
            "ServiceName": "Shared accelerators",
            "SkuId": model,
            "SkuPriceId": f"{model}/hour",
            "SubAccountId": named,
            "SubAccountName": named,
            "Tags": msgspec.json.encode({str(read.by): named}).decode(),
        }


def _whole(moment: int) -> str:
    return text_of(moment - moment % SECOND)
