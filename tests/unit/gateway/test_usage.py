"""Tests of how the gateway keeps the newest usage sample of each node until the node is silent."""

import msgspec
import pytest

from apportion.core.explain.fleet_rows import PackedUse
from apportion.gateway.usage import SILENT_S, Uses
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import ShareUse, UsageSample
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


class Clock(SystemClock):
    """A fake clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def ledger() -> Ledger:
    """Return a ledger with one node, which has one 80 GB GPU with a pod on it."""
    return Ledger(rack("n1", 1), pod("a", ask(40_960, cores=50))).settle()


def sample(*uses: tuple[int, int, int | None], node: str = "n1") -> bytes:
    """Return an encoded sample with one share per triple: MiB granted, MiB used, cores used."""
    shares = tuple(
        ShareUse(
            pod="a", namespace="default", name="a", container=f"c{at}", device="n1-g0",
            memory_mib=granted, memory_used_mib=used, cores=50, cores_used=cores,
        )
        for at, (granted, used, cores) in enumerate(uses)
    )  # fmt: skip
    return msgspec.json.encode(UsageSample(node=node, time="t", shares=shares))


def told(uses: Uses, heard: int = 0) -> list[PackedUse]:
    """Return the usage rows that are newer than an earlier answer. `heard` is the number of that
    answer."""
    return [msgspec.json.decode(row, type=PackedUse) for row in uses.rows(heard)[1]]


@pytest.mark.parametrize(
    ("use", "busy"),
    [((40_960, 100, 25), 0.5), ((40_960, 100, 99), 1.0), ((40_960, 10_240, None), 0.25)],
)
async def test_busy_is_work_or_else_memory(
    ledger: Ledger, use: tuple[int, int, int | None], busy: float
) -> None:
    """The utilization of a share is its used cores divided by its granted cores. If the used cores
    are unknown, it is used memory divided by granted memory."""
    uses = Uses(ledger.state, Clock())
    await uses.note("apportion.usage.n1", sample(use))
    assert told(uses) == [PackedUse("n1", (("default/a", 0, busy),))]


async def test_what_cannot_be_is_passed_over(ledger: Ledger) -> None:
    """The gateway ignores a sample that is invalid or contradicts the state."""
    uses = Uses(ledger.state, Clock())
    for payload in (b"?", b"{}", sample(node="n2"), sample((1, 1, 1), (1, 1, 1))):
        await uses.note("apportion.usage.n1", payload)
    assert uses.rows(0) == (0, ())


async def test_an_agent_speaks_of_its_own_node_alone(ledger: Ledger) -> None:
    """The gateway ignores a sample that arrives on the subject of another node."""
    uses = Uses(ledger.state, Clock())
    await uses.note("apportion.usage.n2", sample((40_960, 0, 5)))
    assert uses.rows(0) == (0, ())


async def test_only_what_is_newer_is_told(ledger: Ledger) -> None:
    """The gateway sends a client only those samples that are newer than the client's last
    answer."""
    uses = Uses(ledger.state, Clock())
    await uses.note("apportion.usage.n1", sample((40_960, 0, 5)))
    heard, rows = uses.rows(0)
    assert len(rows) == 1
    assert uses.rows(heard) == (heard, ())
    await uses.note("apportion.usage.n1", sample((40_960, 0, 10)))
    assert told(uses, heard) == [PackedUse("n1", (("default/a", 0, 0.2),))]


async def test_who_falls_silent_is_forgotten(ledger: Ledger) -> None:
    """If a node becomes silent, the gateway reports its usage as unknown, and later omits the
    node."""
    clock = Clock()
    uses = Uses(ledger.state, clock)
    await uses.note("apportion.usage.n1", sample((40_960, 0, 5)))
    heard, _ = uses.rows(0)
    clock.now_s = SILENT_S + 1
    assert told(uses, heard) == [PackedUse("n1", ())]
    clock.now_s *= 3
    assert told(uses) == []


async def test_who_heard_of_a_life_before_is_given_everything(ledger: Ledger) -> None:
    """If a client sends the number of an answer that it got before the gateway restarted, the
    gateway returns all rows."""
    uses = Uses(ledger.state, Clock())
    await uses.note("apportion.usage.n1", sample((40_960, 100, 25)))
    assert [row.node for row in told(uses, heard=700)] == ["n1"]
    assert told(uses, heard=1) == []
