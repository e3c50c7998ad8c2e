"""The packing study: how much of a fleet a policy can allocate before no more pods fit.

The protocol is that of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023). The pods of a
trace arrive in a seeded random order, repeated at random until they request `OVERLOAD` times the
devices. Each pod is placed at once or fails for good, and none ends. Invariant: equal nodes, pods,
policy and seed give equal decisions on every machine."""

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct, structs

from apportion.core.ledger.state import State
from apportion.core.placement.pricing.program import node_types
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.core.placement.scores import WEIGH_SHAPES
from apportion.lab.changes import known_policy
from apportion.lab.course import Course
from apportion.runtime.files.fleets import SimulatedNode
from apportion.runtime.solver import learn
from apportion_schemas import (
    NodeReported,
    PodGone,
    PodPlaced,
    PodSubmitted,
    PolicyChanged,
    PricesLearnt,
    Shape,
)
from apportion_schemas.quantities import WHOLE

OVERLOAD: Final = 1.3
SHUFFLE_NODES: Final = 1  # seed of the node order in all runs; ties go to the first node
WHO: Final = "lab"


class Point(Struct, frozen=True):
    """The percentages of all devices that are requested and allocated after one arrival."""

    asked_percent: float
    allocated_percent: float


class Packed(Struct, frozen=True):
    """The result of one run. Equal `decisions` (a SHA-256) mean that two runs decided the same."""

    allocated_percent: float
    pods: int
    failed: int
    decisions: bytes
    points: tuple[Point, ...] = ()


class _Counting:
    def __init__(self) -> None:
        self.course = Course(State())
        self.histogram = ShapeHistogram(self.course.state)
        self.course.watch(self.histogram.observe)

    def submit(self, number: int, shape: Shape) -> str:
        name = f"pod-{number}"
        pod = PodSubmitted(uid=name, namespace="b", name=name, shape=shape, dialect="hami")
        self.course.apply(pod)
        return name

    def prices(self, state: State) -> PricesLearnt:
        return learn(self.histogram.shapes(), node_types(state), pods=self.histogram.pods)


def shuffled(nodes: Sequence[SimulatedNode]) -> list[NodeReported]:
    """Return the nodes in the study's random order, renamed by their position."""
    order = list(nodes)
    random.Random(SHUFFLE_NODES).shuffle(order)  # noqa: S311 - repeatable on purpose
    reports = []
    for rank, node in enumerate(order):
        name = f"node-{rank:05}"
        devices = tuple(
            structs.replace(device, id=f"{name}-{device.index}", nvlink_lanes={})
            for device in node.devices
        )
        reports.append(NodeReported(node=name, devices=devices, host=node.host))
    return reports


def taken_percent(shape: Shape) -> int:
    """Return the request of a trace's pod, in percent of one device."""
    return sum(ask.count * ask.cores for ask in shape.asks)


def arrivals(shapes: Sequence[Shape], devices: int, seed: int) -> list[Shape]:
    """Return a trace's pods in random order, repeated at random until they overload the devices.

    `shapes` must be sorted by pod name, so that equal seeds give equal orders."""
    drawn = random.Random(seed)  # noqa: S311 - repeatable on purpose
    pods = list(shapes)
    drawn.shuffle(pods)
    asked = sum(taken_percent(shape) for shape in pods)
    while True:
        more = drawn.choice(shapes)
        asked += taken_percent(more)
        if asked > OVERLOAD * devices * WHOLE:
            return pods
        pods.append(more)


def pack(
    nodes: Sequence[NodeReported], shapes: Sequence[Shape], policy: str, *, seed: int = 42,
    online: bool = False,
) -> Packed:  # fmt: skip
    """Place arriving pods until they request `OVERLOAD` times the devices, and return the result.

    A policy with prices knows all shapes in advance, or learns them from arriving pods if `online`.
    Raises WishInvalid if the policy is unknown, and NoPrices if the solver gave up."""
    run = _Counting()
    named = known_policy(policy)
    run.course.apply(PolicyChanged(by=WHO, node_policy=named, device_policy=named))
    for report in nodes:
        run.course.apply(report)
    if policy in WEIGH_SHAPES and not online:
        known = _Counting()
        for number, shape in enumerate(shapes):
            known.submit(number, shape)
        run.course.apply(known.prices(run.course.state))
    devices = sum(len(report.devices) for report in nodes)
    decisions, points, failed = sha256(), list[Point](), 0
    asked = allocated = 0
    for number, shape in enumerate(arrivals(shapes, devices, seed)):
        name = run.submit(number, shape)
        (event,) = run.course.decide()
        decisions.update(msgspec.json.encode(event))
        asked += taken_percent(shape)
        if isinstance(event, PodPlaced):
            allocated += taken_percent(shape)
            run.course.apply(event)
        else:
            failed += 1
            run.course.apply(PodGone(uid=name))
        points.append(Point(asked / devices, allocated / devices))
        if online and policy in WEIGH_SHAPES and run.histogram.due:
            run.course.apply(run.prices(run.course.state))
    return Packed(allocated_percent(run.course.state), len(points), failed, decisions.digest(),
                  tuple(points))  # fmt: skip


def allocated_percent(state: State) -> float:
    """Return the allocated part of the cores of all devices, in percent."""
    each = [held for node in state.nodes.values() for held in node.devices]
    cores = sum(held.device.cores for held in each)
    return WHOLE * sum(held.device.cores - held.cores_free for held in each) / cores
