"""Generate events of a small cluster in any order, including events that contradict each other.

There are few names, so that events often concern the same pods, devices and gangs."""

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger import fold
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion_schemas import (
    AllocationFailed,
    BindFailed,
    Configuration,
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    KeptNode,
    LimitsChecked,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeSilent,
    NodesReserved,
    NodeUncordoned,
    PlacementVoided,
    PodBound,
    PodGone,
    PodPlaced,
    PodRefused,
    PodRejected,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    RefusalCode,
    SharesAllocated,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import gpu, node, observed
from tests.support.ledger_of import event_of
from tests.support.pods import ask, gang, placed, pod, share

NODES = ("n1", "n2")
DEVICES = ("g0", "g1", "g2")
UIDS = ("p1", "p2", "p3", "p4")
GROUPS = ("", "team/a", "team/b")


def _reports() -> Iterator[Payload]:
    for name in NODES:
        yield observed(name, cpu_milli=1)
        yield observed(name, cpu_milli=2)
        yield NodeGone(node=name)
        yield NodeSilent(node=name, grace_s=40)
        yield NodeHeard(node=name)
        yield NodeCordoned(node=name, by="b", reason="r")
        yield NodeCordonLifted(node=name, of="b", by="c", reason="r")
        yield NodeUncordoned(node=name, by="b", reason="r")
        for size in range(3):
            for devices in itertools.combinations(DEVICES, size):
                yield node(name, *(gpu(device, slots=3 - size) for device in devices))
    for name, device in itertools.product(NODES, DEVICES):
        yield DeviceHealthChanged(node=name, device=device, healthy=name == "n1", reason="r")
    for device in DEVICES:
        yield DeviceCordoned(device=device, by="b", reason="r")
        yield DeviceCordonLifted(device=device, of="b", by="c", reason="r")
        yield DeviceUncordoned(device=device, by="b", reason="r")


def _pods() -> Iterator[Payload]:
    for uid in UIDS:
        for group in GROUPS:
            yield pod(uid, ask(1000), group=group, priority=1)
            yield pod(uid, ask(2000), ask(3000, container="b"), group=group)
        yield PodGone(uid=uid)
        yield PodRejected(
            uid=uid, namespace="d", name=uid, field="f", value="v", problem="p", fix="x"
        )
        yield PodRefused(
            pod=uid, namespace="d", name=uid, nodes=1, reasons={RefusalCode.NODE_GONE: 1}
        )


def _decisions() -> Iterator[Payload]:
    for uid, name, attempt in itertools.product(UIDS, NODES, (1, 2)):
        whom: dict[str, Any] = {"pod": uid, "node": name, "attempt": attempt}
        for devices in ((), *itertools.combinations(DEVICES, 1), DEVICES[:2]):
            yield placed(uid, name, map(share, devices), attempt=attempt)
        yield PlacementVoided(reason="r", **whom)
        yield PodBound(**whom)
        yield BindFailed(message="m", final=True, **whom)
        yield SharesAllocated(devices=DEVICES[:1], **whom)
        yield AllocationFailed(message="m", **whom)


def _rest() -> Iterator[Payload]:
    for number, group in enumerate(GROUPS[1:], 1):
        yield gang(group, number)
        yield QueueObserved(queue=group, weight=number)
        for name in ("cards", "memory"):
            yield QuotaObserved(namespace=group, quota=name, hard={"nvidia.com/gpu": number})
            yield QuotaGone(namespace=group, quota=name)
        yield LimitsChecked(kind="queue", name=group)
        yield NodesReserved(
            pod=f"p{number}",
            name=group,
            kept=(KeptNode(namespace="default", pod=f"p{number}", node=f"n{number}"),),
        )
        yield PricesLearnt(pods=number, shapes=())
        yield ConfigurationChanged(by="b", configuration=Configuration(scheduler_names=(group,)))
        yield PolicyChanged(by=group)


_KINDS = tuple(tuple(kind()) for kind in (_reports, _pods, _decisions, _rest))


def happenings() -> st.SearchStrategy[list[Payload]]:
    """Return a Hypothesis strategy for lists of up to fifty events."""
    return st.lists(st.one_of(*map(st.sampled_from, _KINDS)), max_size=50)


def happen(state: State, data: Payload) -> Change:
    """Fold one event. If the event is a placement, first link it to the previous placement on its
    node."""
    if isinstance(data, PodPlaced) and data.node in state.nodes:
        data = placed(
            data.pod, data.node, data.shares, attempt=data.attempt,
            previous=state.nodes[data.node].chain,
        )  # fmt: skip
    elif isinstance(data, PodSubmitted):
        # a state keeps the objects that it folds and must not share them
        data = structs.replace(data)
    revision = state.revision + 1
    return fold.apply(state, revision, event_of(data), digest=f"sha-{revision}")
