"""Run an intake next to the agents of a test: agents reach the ledger only through one.

The first agent that a test starts on a ledger also starts a real intake process, which lives as
long as the ledger's server. A test that starts its own intakes before gets only these."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.support.nats import Bus
    from tests.support.processes import ServiceProcess

_ledgers: dict[int, Bus] = {}
_intakes: dict[int, ServiceProcess | None] = {}


def may_have_agents(bus: Bus) -> None:
    """Give agents that are started on this ledger an intake."""
    _ledgers[bus.server.port] = bus


def there(url: str) -> None:
    """Record that the test starts its own intake on this ledger."""
    _intakes.setdefault(_port(url), None)


async def beside(url: str) -> None:
    """Start an intake on the ledger at this URL, if a test runs that ledger."""
    from tests.support.processes import ServiceProcess  # noqa: PLC0415 - they start one another

    port = _port(url)
    bus = _ledgers.get(port)
    if bus is None or port in _intakes:
        return
    intake = ServiceProcess("intake", bus.server.url_for("intake"))
    _intakes[port] = intake
    await intake.start()


async def end(port: int) -> None:
    """Forget the ledger on this port and end its intake."""
    _ledgers.pop(port, None)
    intake = _intakes.pop(port, None)
    if intake is not None:
        await intake.kill()


def _port(url: str) -> int:
    """The port of the first server in the URL."""
    return urlsplit(url.split(",", maxsplit=1)[0]).port or 0
