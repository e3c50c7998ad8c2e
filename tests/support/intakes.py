"""An intake beside the agents of a test: nothing that an agent says comes to the ledger without.

The first agent that a test starts on a ledger brings a real intake process there, which lives as
long as the ledger's server. A test that starts intakes of its own before has these alone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.support.nats import Bus
    from tests.support.processes import ServiceProcess

_ledgers: dict[int, Bus] = {}
_intakes: dict[int, ServiceProcess | None] = {}


def may_have_agents(bus: Bus) -> None:
    """Agents that are started on this ledger get an intake."""
    _ledgers[bus.server.port] = bus


def there(url: str) -> None:
    """A test starts an intake of its own on this ledger."""
    _intakes.setdefault(_port(url), None)


async def beside(url: str) -> None:
    """Have an intake on the ledger of this URL, where it is one that a test runs."""
    from tests.support.processes import ServiceProcess  # noqa: PLC0415 - they start one another

    port = _port(url)
    bus = _ledgers.get(port)
    if bus is None or port in _intakes:
        return
    intake = ServiceProcess("intake", bus.server.url_for("intake"))
    _intakes[port] = intake
    await intake.start()


async def end(port: int) -> None:
    """The ledger on this port ends."""
    _ledgers.pop(port, None)
    intake = _intakes.pop(port, None)
    if intake is not None:
        await intake.kill()


def _port(url: str) -> int:
    """Of the first server, where it names several."""
    return urlsplit(url.split(",", maxsplit=1)[0]).port or 0
