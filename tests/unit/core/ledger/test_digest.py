"""Tests of the digest of a state: it depends on every fact of the ledger, and on nothing else."""

import json
from collections.abc import Callable

import pytest

from apportion.core.devices.cordons import Cordon
from apportion.core.ledger.digest import canonical, digest
from apportion.core.ledger.state import RefusedReport, State
from apportion_schemas import (
    DeviceCordoned,
    NodeCordoned,
    PolicyChanged,
    QueueObserved,
    QuotaObserved,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger, replayed
from tests.support.pods import ask, gang, member, pod, share
from tests.support.pods import placed as placement

EVENTS = (rack("n1", 2), rack("n2", 1), pod("p1", ask(1000)), pod("p2"), member("p3"), gang())

REFUSED = RefusedReport("implausible-device", "a T4 of 16 TiB", 9, "2026-01-01T00:00:00Z")


def state() -> State:
    """Return a state that contains at least one object of every kind."""
    return replayed(*EVENTS, placement("p1", shares=[share("n1-g0")]))


CHANGES: list[tuple[str, Callable[[State], object]]] = [
    ("revision", lambda s: setattr(s, "revision", 99)),
    ("a pod", lambda s: s.pods.pop("p2")),
    ("an attempt", lambda s: setattr(s.pods["p2"], "attempt", 2)),
    ("a failure", lambda s: setattr(s.pods["p2"], "last_failure", "x")),
    ("a void that is due", lambda s: s.failing.update(p1="x")),
    ("a gang", lambda s: s.groups.clear()),
    ("a queue", lambda s: s.queues.update(q=QueueObserved(queue="q"))),
    ("a quota", lambda s: s.quotas.update(q={"a": QuotaObserved(namespace="q", quota="a")})),
    ("a policy", lambda s: setattr(s, "policy", PolicyChanged(by="x"))),
    ("a cordon to come", lambda s: s.device_cordons.update(g=(Cordon("a", "hot", "", 1),))),
    ("where a device is", lambda s: s.node_of_device.update({"n1-g0": "n2"})),
    ("a refused event", lambda s: setattr(s, "refused_count", 1)),
    ("a fence", lambda s: setattr(s.nodes["n1"], "fence", 1)),
    ("a chain", lambda s: setattr(s.nodes["n1"], "chain", "x")),
    ("a node that left", lambda s: setattr(s.nodes["n1"], "gone", True)),
    ("a report that is refused", lambda s: setattr(s.nodes["n1"], "refused", REFUSED)),
    ("a node's cordon", lambda s: setattr(s.nodes["n1"], "cordon", "x")),
    ("CPU in use", lambda s: setattr(s.nodes["n1"], "cpu_used_milli", 1)),
    ("an observation", lambda s: setattr(s.nodes["n1"], "observed", observed("n1"))),
    *(
        (field, lambda s, field=field: setattr(s.nodes["n1"].devices[0], field, 1))
        for field in ("memory_free_mib", "cores_free", "slots_free", "template_cpu_free", "slices")
    ),
    ("agent", lambda s: setattr(s.nodes["n1"].devices[0], "agent_health", (False, ""))),
    ("health", lambda s: setattr(s.nodes["n1"].devices[0], "healthy", False)),
    ("presence", lambda s: setattr(s.nodes["n1"].devices[0], "present", False)),
    ("a device's cordon", lambda s: setattr(s.nodes["n1"].devices[0], "cordon", "x")),
]


@pytest.mark.parametrize(
    "change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES]
)
def test_every_part_counts(change: Callable[[State], object]) -> None:
    """A change of any field of the state changes the digest."""
    changed = state()
    change(changed)
    assert digest(changed) != digest(state())


def test_order_of_learning_does_not_count() -> None:
    """Two states with the same facts have the same digest, whatever the order of their events."""
    one, other = replayed(*EVENTS[:2]), replayed(*reversed(EVENTS[:2]))
    for end in (one, other):
        for name in end.nodes.values():
            name.reported_revision = 0
    assert digest(one) == digest(other)


def test_canonical_is_json_that_anyone_can_read() -> None:
    """The canonical form of a state is JSON, so that a person can compare two states by eye."""
    ledger = Ledger(
        rack("n1", 1),
        NodeCordoned(node="n1", by="ann", reason="kernel"),
        DeviceCordoned(device="n1-g0", by="ann", reason="fan"),
    )
    found = json.loads(canonical(ledger.state))
    assert found["nodes"]["n1"]["cordon"] == "kernel"
    assert found["nodes"]["n1"]["devices"][0]["cordon"] == "fan"
    assert len(ledger.digest()) == 64
