"""What is wrong with the gateway's price file, for the doctor and for the log.

A report of the cost is asked for at the end of a month; that it cannot be made is told when the
gateway begins, and when a model comes that nobody has priced. Invariant: the file is looked at as
it is now, as every report does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from apportion.core.doctor.cluster import models_of
from apportion.core.doctor.facts import PriceFacts
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.reports.prices import PriceError, lacking_words
from apportion.runtime.jetstream.reports import read_prices
from apportion.runtime.process.logs import get_logger
from apportion_schemas import NodeReported

_log = get_logger(__name__)


async def price_facts(file: Path, models: Iterable[str]) -> PriceFacts:
    """What the file says of the models of this fleet."""
    try:
        prices = await asyncio.to_thread(read_prices, file)
    except PriceError as error:
        return PriceFacts(file=str(file), problem=str(error))
    lacking = prices.lacking(models)
    return PriceFacts(file=str(file), problem=lacking_words(lacking) if lacking else "")


class PriceWatch:
    """Warns of models without a price: of each once, as it comes."""

    def __init__(self, file: Path, state: State) -> None:
        self._file = file
        self._state = state
        self._known: set[str] = set()
        self._came = asyncio.Event()

    def observe(self, change: Change) -> None:
        """A node tells of its devices."""
        if isinstance(change.data, NodeReported):
            self._came.set()

    async def run(self) -> None:
        """Look at what there is, and then at what comes, until cancelled."""
        while True:
            self._came.clear()
            new = set(models_of(self._state)) - self._known
            self._known |= new
            if new:
                facts = await price_facts(self._file, new)
                if facts.problem:
                    _log.warning(
                        "no report of the cost can be made", prices=facts.file, error=facts.problem
                    )
            await self._came.wait()
