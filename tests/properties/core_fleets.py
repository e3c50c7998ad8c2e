"""Hypothesis strategies that draw nodes of every kind, and events about these nodes."""

from typing import Any, Literal

from hypothesis import strategies as st

from apportion_schemas import (
    Device,
    DeviceCordonLifted,
    Host,
    HostPort,
    LabelExpression,
    Neighbour,
    NodeCordonLifted,
    NodeObserved,
    NodeReported,
    PodSelector,
    PodTerm,
    Taint,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A30, A100_40, A100_80, T4

NODES = ("a", "b", "c", "d")
KINDS: tuple[dict[str, Any], ...] = (
    {"model": A100_80, "memory_mib": 4000},
    {"model": A100_80, "memory_mib": 4000, "slots": 1},
    {"model": T4, "memory_mib": 1000, "cores": 50, "slots": 2},
    {"model": A30, "memory_mib": 24576, "mode": "mps"},
    {"model": A100_40, "memory_mib": 40960, "mode": "mig", "slots": 7},
    {"model": A100_40, "memory_mib": 40960, "mode": "mig", "slots": 7, "closed_slices": 0b10010},
    {"model": T4, "memory_mib": 1000, "mode": "exclusive"},
    {"model": "XPU", "memory_mib": 98304, "mode": "vnpu", "slots": 4},
    {"model": "Ascend310P3", "memory_mib": 21527, "cores": 8, "mode": "vnpu", "slots": 7},
)
DIE: dict[str, Any] = {
    "model": "Ascend910C", "memory_mib": 65536, "cores": 20, "mode": "vnpu", "slots": 4,
}  # fmt: skip
FAMILY = {"Ascend310P3": "ascend310p", "Ascend910C": "ascend910c", "XPU": "kunlun-vxpu"}
EFFECTS: tuple[Literal["NoSchedule", "PreferNoSchedule", "NoExecute"], ...] = (
    "NoSchedule",
    "PreferNoSchedule",
    "NoExecute",
)
names = st.sampled_from(NODES)
lifted: st.SearchStrategy[Payload] = st.builds(
    NodeCordonLifted, node=names, of=st.just("x"), by=st.just("y")
) | st.builds(
    DeviceCordonLifted,
    device=st.builds("{}{}".format, names, st.integers(0, 3)),
    of=st.just("x"),
    by=st.just("y"),
)
"""Events in which the cordon of one operator on a node or device is lifted, if it exists."""
labels = st.fixed_dictionaries(
    {},
    optional={"zone": st.sampled_from("12"), "rank": st.just("7"), "host": st.sampled_from("abc")},
)
kinds = st.sampled_from(KINDS)
states = st.sampled_from(((None, True), (0, True), (1, True), (1, False)))
lanes = st.sampled_from((None, None, 4, 2))
homes = {node: st.sampled_from((node,) * 19 + NODES) for node in NODES}


@st.composite
def devices(draw: st.DrawFn, node: str, index: int, *, die: bool = False) -> Device:
    """Draw a device of `node` with this index. A device of another node may get the same id."""
    home, kind, (numa, healthy) = draw(homes[node]), DIE if die else draw(kinds), draw(states)
    linked = draw(lanes)
    return Device(
        id=f"{home}{index}",
        index=index,
        family=FAMILY.get(kind["model"], "nvidia"),
        physical_memory_mib=kind["memory_mib"],
        healthy=healthy,
        numa=numa,
        nvlink_lanes={} if linked is None else {f"{home}{0 if linked == 4 else 1}": linked},
        **kind,
    )


equipped = {
    node: st.sampled_from((5, 4, 3, 2, 1, 0)).flatmap(
        [
            st.tuples(*(devices(node, index) for index in range(count))) for count in range(5)
        ].__add__([st.tuples(*(devices(node, index, die=True) for index in range(4)))]).__getitem__
    )
    for node in NODES
}
"""Nodes of up to four devices, and nodes with the dies of two modules."""
hosts = st.builds(
    Host,
    cpu_milli=st.sampled_from((1000, 500)),
    memory_mib=st.just(1000),
    pods=st.sampled_from((10, 2)),
    labels=labels,
)


@st.composite
def reports(draw: st.DrawFn) -> NodeReported:
    """Draw the inventory of a node with up to four devices."""
    node = draw(names)
    return NodeReported(node=node, devices=draw(equipped[node]), host=draw(hosts))


WEB = Neighbour(namespace="team", labels={"app": "x"}, count=2, ports=(HostPort(port=80),))
GUARD = Neighbour(
    namespace="default",
    anti_affinity=(
        PodTerm(
            pods=PodSelector(
                expressions=(LabelExpression(key="app", operator="In", values=("y",)),)
            ),
            topology_key="zone",
        ),
    ),
)
"""Pods of other schedulers: some of our pods have affinity to one, and anti-affinity to one."""
observations = st.builds(
    NodeObserved,
    node=names,
    ready=st.sampled_from((True,) * 7 + (False,)),
    cpu_milli=st.sampled_from((500, 1000)),
    memory_mib=st.just(1000),
    pods=st.sampled_from((1, 10)),
    extended=st.sampled_from(({}, {"nic": 1}, {"nic": 3})),
    labels=labels,
    taints=st.sampled_from(((),) * 5 + tuple((Taint(key="t", effect=e),) for e in EFFECTS)),
    unschedulable=st.sampled_from((False,) * 7 + (True,)),
    others=st.sampled_from(((),) * 4 + ((WEB,), (WEB, GUARD), (GUARD,))),
)
