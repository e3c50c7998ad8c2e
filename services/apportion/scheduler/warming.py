"""Decides something once before anything depends on it, so that the first real decision is quick.

The loops of the placement index are compiled when they are first run, or loaded from where they
were kept: half a second to many seconds, in which a scheduler that was already counted as a member
would keep its pods waiting. Invariant: what is decided here is on a state of its own and goes
nowhere.
"""

from __future__ import annotations

from typing import get_args

from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.core.placement.engine import Engine
from apportion.core.placement.pricing.fleet import node_types
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.scheduler.learning import learn
from apportion_schemas import (
    Ask,
    Device,
    Event,
    Host,
    NodeReported,
    PodGone,
    PodSubmitted,
    Policy,
    PolicyChanged,
    Shape,
)
from apportion_schemas.quantities import Payload

_TIME = "2026-01-01T00:00:00.000000Z"
_ASKS = (
    (Ask(container="main", family="nvidia", memory_mib=1_000, cores=10),),
    (Ask(container="main", family="nvidia", count=2, cores=100),),
    (Ask(container="main", family="nvidia", count=16, cores=100),),  # fits nowhere
    (Ask(container="main", family="nvidia", memory_mib=1 << 20),),
    tuple(Ask(container=name, family="nvidia", memory_mib=500, cores=5) for name in "ab"),
)


def warm_up() -> None:
    """Decide for a few pods under every policy, with prices and without."""
    for policy in get_args(Policy):
        _decide(policy)


def _decide(policy: Policy) -> None:
    state = State()
    engine, histogram = Engine(state), ShapeHistogram(state)

    def take(data: Payload) -> None:
        event = Event(id="warm", source="scheduler", time=_TIME, data=data)
        change = fold.apply(state, state.revision + 1, event)
        engine.observe(change)
        histogram.observe(change)

    take(PolicyChanged(by="scheduler", node_policy=policy, device_policy=policy))
    for number in range(2):
        take(_node(f"node-{number}"))
    for round_ in range(2):
        for number, asks in enumerate(_ASKS):
            uid = f"pod-{round_}-{number}"
            shape = Shape(asks=asks)
            take(PodSubmitted(uid=uid, namespace="", name=uid, dialect="plain", shape=shape))
        for event in engine.decide().events:
            take(event)
        take(PodGone(uid=f"pod-{round_}-0"))
        engine.decide()
        take(learn(histogram.shapes(), node_types(state), pods=histogram.pods))


def _node(name: str) -> NodeReported:
    devices = tuple(
        Device(
            id=f"{name}-{index}",
            index=index,
            family="nvidia",
            model="T4",
            memory_mib=16_000,
            physical_memory_mib=16_000,
        )
        for index in range(4)
    )
    return NodeReported(
        node=name, devices=devices, host=Host(cpu_milli=64_000, memory_mib=64_000, pods=100)
    )
