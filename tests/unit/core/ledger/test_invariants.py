"""Tests that the invariants detect every kind of damage to a state. Each test damages a field that
the fold maintains."""

from collections.abc import Callable

import pytest

from apportion.core.ledger.invariants import violations
from apportion.core.ledger.state import Phase, State
from apportion_schemas import BindFailed, NodeConstraints
from tests.support.fleet import A100_40, gpu, node, npu, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, instance, member, pod, shape, share
from tests.support.pods import placed as placement

NEEDS = NodeConstraints(cpu_milli=100, memory_mib=10, extended={"example.com/nic": 1})


def busy() -> State:
    """Return a state with three pods on a GPU, a MIG device and an NPU. One pod is failing and one
    is in a gang."""
    devices = (gpu("g0"), gpu("m1", model=A100_40, mode="mig"), npu("u2"))
    return Ledger(
        node("n1", *devices),
        rack("n2", 1),
        pod("p1", shape=shape(ask(1000), node=NEEDS)),
        member("p2", ask(1000)),
        pod("p3", ask(1000)),
        placement("p1", shares=[share("g0")]),
        placement("p2", shares=[share("m1", 5120, 0, instance=instance("1g.5gb", 6, 1))]),
        placement("p3", shares=[share("u2", 3072, 1, template="vir01")]),
        BindFailed(pod="p3", node="n1", attempt=1, message="conflict", final=True),
    ).state


def _device(state: State, name: str, **fields: int | bool) -> None:
    for key, value in fields.items():
        setattr(state.nodes["n1"].by_id[name], key, value)


def _node(state: State, **fields: object) -> None:
    for key, value in fields.items():
        setattr(state.nodes["n1"], key, value)


def _held_twice(state: State) -> None:
    instance_of = state.pods["p2"].placement
    assert instance_of is not None
    state.pods["p1"].placement = instance_of


def _offered_twice(state: State) -> None:
    state.nodes["n2"].devices.append(state.nodes["n1"].devices[0])


BREAKS: list[tuple[str, Callable[[State], object]]] = [
    ("memory free is", lambda s: _device(s, "g0", memory_free_mib=0)),
    ("cores free is", lambda s: _device(s, "g0", cores_free=100)),
    ("slots free is", lambda s: _device(s, "g0", slots_free=10)),
    ("AI CPUs free is", lambda s: _device(s, "u2", template_cpu_free=7)),
    ("MIG slices occupied are", lambda s: _device(s, "m1", slices=0)),
    ("are allocated twice", _held_twice),
    ("CPU in use is not", lambda s: _node(s, cpu_used_milli=0)),
    ("host memory in use is not", lambda s: _node(s, memory_used_mib=0)),
    ("extended resources in use are not", lambda s: _node(s, extended_used={})),
    ("which is not placed", lambda s: s.pods.pop("p1")),
    ("which n1 lacks", lambda s: s.nodes["n1"].devices.pop(0)),
    ("which does not list it", lambda s: s.nodes["n1"].pods.pop("p1")),
    ("p1 is pending but its placement is", lambda s: setattr(s.pods["p1"], "phase", Phase.PENDING)),
    (
        "the placement of pod p3 is to be voided, but the pod is not live",
        lambda s: s.pods.pop("p3"),
    ),
    (
        "to be voided, but the pod is allocated",
        lambda s: setattr(s.pods["p3"], "phase", Phase.ALLOCATED),
    ),
    ("gang team/job has pod p2, which is not live", lambda s: s.pods.pop("p2")),
    ("pod p9 is held, although it", lambda s: s.groups["team/job"].held.update(p9=None)),
    ("no valid first revision: 0", lambda s: setattr(s.groups["team/job"], "since", 0)),
    (
        "team/job has pods, but is listed as a gang without pods",
        lambda s: s.gangs_left.update({"team/job": 1}),
    ),
    ("device g0 is on two nodes: n1 and n2", _offered_twice),
    ("indexed under another node", lambda s: s.node_of_device.pop("g0")),
    ("indexed under node n2, which does not have it", lambda s: s.node_of_device.update(g0="n2")),
]


def test_what_the_fold_made_breaks_nothing() -> None:
    """A state that the fold built has no violations."""
    assert not violations(busy())


@pytest.mark.parametrize(("said", "damage"), BREAKS, ids=[said for said, _ in BREAKS])
def test_damage_is_seen(said: str, damage: Callable[[State], object]) -> None:
    """If one field of the state is damaged, the violations mention that field."""
    state = busy()
    damage(state)
    assert any(said in line for line in violations(state)), violations(state)


def test_oversold_is_a_placement_beyond_the_offer(golden: Golden) -> None:
    """A device counts as oversold if a placement exceeds what the device offers. A later report
    that shrinks the device is no violation."""
    ledger = Ledger(
        rack("n1", 1), pod("p1", ask(9000)), placement("p1", shares=[share("n1-g0", 9000)])
    )
    ledger.report(rack("n1", 1, memory_mib=8000))
    assert not violations(ledger.state)
    ledger.node().reported_revision = 0
    golden({"9000 MiB of 8000": "\n".join(violations(ledger.state))})
