"""Tests that the gateway's totals, which are updated with each event, equal totals computed from
scratch."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from apportion.core.ledger.state import State
from apportion.gateway.fleet import (
    ALLOCATED,
    ALLOCATED_MEMORY,
    DEVICES,
    MEMORY,
    OLDEST,
    PENDING_PODS,
    FleetRows,
    FleetSums,
)
from apportion.runtime.ledger.archive import read_archive, read_said
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import DeviceCordoned, DeviceHealthChanged, PodGone
from apportion_schemas.quantities import Payload
from tests.support.fleet import T4, gpu, node
from tests.support.folding import taken
from tests.support.ledger_of import TIME, event_of
from tests.support.pods import ask, placed, pod, share

LEDGERS = sorted((Path(__file__).parents[2] / "golden" / "ledgers").glob("*.jsonl"))
BEGAN = datetime.fromisoformat(TIME)


class LateClock(SystemClock):
    """A clock that is one hour later than all events of these tests."""

    def now(self) -> datetime:
        return BEGAN + timedelta(hours=1)


def said(sums: FleetSums) -> dict[tuple[str, ...], float]:
    """Return the value of each series, by its name and labels."""
    return {(family.name, *labels): value for family, labels, value in sums.samples()}


class Followed:
    """The state of a cluster, with node rows and totals that are updated with each event."""

    def __init__(self) -> None:
        self.fold = StateFold(State())
        self.rows = FleetRows(self.fold.state)
        self.sums = FleetSums(self.fold.state, self.rows, LateClock())

    def play(self, *payloads: Payload) -> None:
        """Fold the events as a gateway does."""
        for data in payloads:
            record = Record(self.fold.state.revision + 1, "apportion.v1.test.x", b"")
            change = self.fold.apply(record, event_of(data))
            self.rows.observe(change)
            self.sums.observe(change)

    def afresh(self) -> dict[tuple[str, ...], float]:
        """Return totals that are computed from the state alone."""
        state = self.fold.state
        return said(FleetSums(state, FleetRows(state), LateClock()))


@pytest.mark.parametrize("path", LEDGERS, ids=[path.stem for path in LEDGERS])
def test_what_was_followed_is_what_the_state_says(path: Path) -> None:
    """After every seventh event of a recorded ledger, the updated totals equal newly computed
    ones."""
    followed = Followed()
    followed.fold.rules.foresee(read_said([path]))
    for record in read_archive(path):
        change = taken(followed.fold, record)
        followed.rows.observe(change)
        followed.sums.observe(change)
        if record.revision % 7 == 0:
            assert said(followed.sums) == followed.afresh()
    assert said(followed.sums) == followed.afresh()


def test_devices_shares_and_who_waits() -> None:
    """The gateway counts devices by model and state. It counts shares in fractions of a device, and
    memory in bytes."""
    followed = Followed()
    cards = [gpu(f"g{at}", model=T4, memory_mib=16_000) for at in range(3)]
    followed.play(
        node("n1", *cards),
        pod("a", ask(4_000), namespace="team"),
        placed("a", "n1", [share("g0", 4_000)], namespace="team"),
        pod("b", ask(99_000), namespace="team"),
        DeviceHealthChanged(node="n1", device="g1", healthy=False, reason="XID 79"),
        DeviceCordoned(device="g2", by="me", reason="fan"),
    )
    assert said(followed.sums) == {
        (DEVICES.name, T4, "open"): 1,
        (DEVICES.name, T4, "unhealthy"): 1,
        (DEVICES.name, T4, "cordoned"): 1,
        (MEMORY.name, T4): 48_000 << 20,
        (ALLOCATED.name, "team", T4): 0.25,
        (ALLOCATED_MEMORY.name, "team", T4): 4_000 << 20,
        (PENDING_PODS.name, "team"): 1,
        (OLDEST.name, "team"): 3600,
    }
    followed.play(PodGone(uid="a"), PodGone(uid="b"))
    gone = {name for name, *_ in said(followed.sums)}
    assert gone == {DEVICES.name, MEMORY.name}


def test_a_scrape_says_them_in_prometheus_text() -> None:
    """A scrape returns the fleet's totals in Prometheus' text format."""
    metrics = Metrics()
    Followed().sums.expose(metrics)
    followed = Followed()
    followed.sums.expose(metrics)
    followed.play(node("n1", gpu("g0", model=T4)))
    assert b'apportion_fleet_devices{model="Tesla T4",state="open"} 1.0' in metrics.render()
