"""What `apportion up` says of a price file that lacks a model of its fleet.

The gateway's log and the doctor tell as well, which nobody reads before the end of a month.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import WAIT_S, Gateway
from apportion.cli.client.ledger import open_ledger
from apportion.core.explain.answers import DeviceAnswer
from apportion.core.reports.prices import PriceError, lacking_words
from apportion.runtime.jetstream.reports import read_prices


async def unpriced(where: Where, file: Path) -> str:
    """Why no report of the cost can be made of the fleet, and the fix; empty where one can.

    Raises:
        LedgerError, Unreachable: the ledger or the gateway went away.
    """
    async with open_ledger(where.reach()) as ledger:
        newest = await ledger.last_revision()
    query = {"at_least": newest, "wait_s": WAIT_S}
    gateway = Gateway(where.gateway_url())
    _, devices = await asyncio.to_thread(gateway.items, "devices", DeviceAnswer, query)
    try:
        prices = await asyncio.to_thread(read_prices, file)
    except PriceError as error:
        problem = str(error)
    else:
        lacking = prices.lacking(device.model for device in devices if device.present)
        problem = lacking_words(lacking) if lacking else ""
    return f"no report of the cost can be made from {file}: {problem}" if problem else ""
