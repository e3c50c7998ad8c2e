"""Run an intake for the agents of a test, because agents reach the ledger only through an intake.

The first agent that a test starts on a ledger also starts a real intake process, which runs until
the ledger's server ends. If a test starts its own intake first, no second intake is started."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.support.nats import Bus
    from tests.support.processes import ServiceProcess

_ledgers: dict[int, Bus] = {}
_intakes: dict[int, ServiceProcess | None] = {}


def may_have_agents(bus: Bus) -> None:
    """Let the first agent that a test starts on this ledger start an intake too."""
    _ledgers[bus.server.port] = bus


def there(url: str) -> None:
    """Record that the test starts its own intake on the ledger at `url`."""
    _intakes.setdefault(_port(url), None)


async def beside(url: str) -> None:
    """Start an intake on the ledger at this URL, unless the ledger already has one.

    Do nothing for ledgers that were not passed to `may_have_agents`."""
    from tests.support.processes import ServiceProcess  # noqa: PLC0415 - they start one another

    port = _port(url)
    bus = _ledgers.get(port)
    if bus is None or port in _intakes:
        return
    intake = ServiceProcess("intake", bus.server.url_for("intake"))
    _intakes[port] = intake
    await intake.start()


async def end(port: int) -> None:
    """Kill the intake of the ledger on this port, and forget that ledger."""
    _ledgers.pop(port, None)
    intake = _intakes.pop(port, None)
    if intake is not None:
        await intake.kill()


def _port(url: str) -> int:
    """Return the port of the first server in the URL."""
    return urlsplit(url.split(",", maxsplit=1)[0]).port or 0
