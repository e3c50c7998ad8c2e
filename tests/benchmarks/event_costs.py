"""Measure the cost of single events for a scheduler with hundreds of shapes, by event type.

The benchmark `waiting` includes these figures. Half of the shapes have running pods, and the pods
of the other shapes cannot be placed. The cost of an event is the scheduler's longest single step
after the event: to fold the event, or to make one decision. Times are CPU milliseconds, the median
of a few events of a type."""

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from statistics import median
from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.configuration import read_configuration
from apportion.core.placement.pricing.program import node_types
from apportion.runtime.process.cpu_policy import seldom_look_for_cycles
from apportion.runtime.process.memory import gather
from apportion.runtime.solver import learn
from apportion_schemas import (
    Ask,
    ConfigurationChanged,
    Device,
    DeviceConstraints,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    Host,
    LabelExpression,
    NodeConstraints,
    NodeCordoned,
    NodeGone,
    NodeObserved,
    NodeReported,
    NodeUncordoned,
    PodConstraints,
    PodGone,
    PodGroupObserved,
    PodSelector,
    PodSubmitted,
    PodTerm,
    Policy,
    PolicyChanged,
    QueueObserved,
    QuotaObserved,
    Shape,
    Taint,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.decide import Bench

FULL: Final = 0.7  # share of the device memory in use
REPEATS: Final = 5
BATCH: Final = 32
HUGE_MIB: Final = 200_000  # more than any device of the fleet has
RUNNING: Final = 256
WAITING: Final = (
    ("huge", 144),
    ("labels", 32),
    ("named", 16),
    ("company", 16),
    ("gangs", 16),
    ("quota", 32),
)
HOST: Final = Host(cpu_milli=256_000, memory_mib=2_000_000, pods=250)
NEEDS: Final = NodeConstraints(cpu_milli=2000, memory_mib=8192)
SHARED: Final = DeviceConstraints(modes=("hami-core",))
_GROUP: Final = {"group": "g", "geometries": [{"name": "1g.5gb", "memory": 5120, "count": 7}]}
GEOMETRIES: Final = [{"models": ["A100-SXM4-40GB"], "allowedGeometries": [_GROUP]}]


class EventType(NamedTuple):
    """A type of event to measure: its name, and a function that returns its `n`-th event."""

    name: str
    event: Callable[[int], Payload]


def event_costs(nodes: int, policy: Policy) -> dict[str, float]:
    """Return the median cost of one event of each type, in CPU milliseconds, highest first."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        return alone.submit(_measured, nodes, policy).result()


def _measured(nodes: int, policy: Policy) -> dict[str, float]:
    costs = EventCosts(Bench(nodes, policy), FULL)
    seldom_look_for_cycles()  # as in every service
    gc.collect()
    gc.freeze()
    gather()
    found = costs.measure()
    return dict(sorted(found.items(), key=lambda each: -each[1]))


class EventCosts:
    """Measures the cost of each type of event on one fleet.

    The fleet must not be used for other measurements, because the events change it."""

    def __init__(self, bench: Bench, part: float) -> None:
        self._bench = bench
        self._numbers = count()
        self._shapes = [share(4000 + 100 * n, n % 40) for n in range(RUNNING)]
        bench.shapes = self._shapes
        bench.fill(part)
        bench.learn()
        self._wait()
        self._drain()

    def measure(self) -> dict[str, float]:
        """Return the cost in milliseconds by event type."""
        found = {}
        for kind in self._types():
            found[kind.name] = round(median(self._cost(kind, n) for n in range(REPEATS)), 1)
        return found

    def _cost(self, kind: EventType, number: int) -> float:
        data = kind.event(number)
        begun = time.process_time()
        self._bench.apply(data, self._bench.engine)
        longest = [time.process_time() - begun, self._drain()]
        for pods in (1, BATCH):
            first = number * BATCH + pods
            uids = [self._submit(self._shapes[(first + n) % RUNNING]) for n in range(pods)]
            longest.append(self._drain())
            for uid in uids:
                self._bench.apply(PodGone(uid=uid), self._bench.engine)
        self._drain()
        return max(longest) * 1e3

    def _drain(self) -> float:
        """Run all decisions that are due. Return the CPU seconds of the longest decision."""
        longest = 0.0
        while True:
            begun = time.process_time()
            decision = self._bench.engine.decide()
            longest = max(longest, time.process_time() - begun)
            for event in decision.events:
                self._bench.apply(event, self._bench.engine)
            if not decision.events and not decision.more:
                return longest

    def _submit(self, shape: Shape, **fields: str) -> str:
        uid = f"event-{next(self._numbers)}"
        pod = PodSubmitted(uid=uid, namespace="default", name=uid, dialect="hami", shape=shape)
        self._bench.apply(structs.replace(pod, **fields), self._bench.engine)
        return uid

    def _wait(self) -> None:
        """Submit pods of many shapes that stay pending."""
        engine, pods = self._bench.engine, dict(WAITING)
        quota = QuotaObserved(namespace="poor", quota="q", hard={"limits.nvidia.com/gpumem": 1})
        self._bench.apply(quota, engine)
        for number in range(pods["huge"]):
            self._submit(share(HUGE_MIB + number))
        for number in range(pods["labels"]):
            key = "rack" if number % 2 else f"team-{number}"
            node = structs.replace(NEEDS, selector={key: f"r{number}"})
            self._submit(structs.replace(share(4000), node=node))
        for number in range(pods["named"]):
            named = structs.replace(SHARED, use_ids=(f"GPU-unknown-{number}",))
            self._submit(structs.replace(share(4000), devices=named))
        for number in range(pods["company"]):
            wanted = PodConstraints(affinity=(beside(f"app-{number}"),))
            self._submit(structs.replace(share(4000), pods=wanted))
        for number in range(pods["gangs"]):
            gang = f"default/gang-{number}"
            self._bench.apply(PodGroupObserved(group=gang, min_available=4), engine)
            for _ in range(4):
                self._submit(share(HUGE_MIB + 1000 + number), group=gang)
        for number in range(pods["quota"]):
            self._submit(share(5000 + number), namespace="poor")

    def _types(self) -> Iterator[EventType]:
        """Yield all event types in the order to measure them.

        The order matters: a node is cordoned before it is uncordoned, for example."""
        names = sorted(self._bench.state.nodes)
        yield from self._of_all()
        yield from self._of_nodes(names)
        yield from self._of_devices(names)
        yield from self._of_limits()
        yield EventType("PodSubmitted, a new shape", self._of_new_shape)
        yield EventType("PodGone", lambda _: PodGone(uid=self._bench.live.pop()))
        yield EventType(
            "PodGroupObserved",
            lambda n: PodGroupObserved(group=f"default/gang-{n}", min_available=3),
        )
        yield EventType("NodeGone", lambda n: NodeGone(node=names[-1 - n]))

    def _of_new_shape(self, number: int) -> Payload:
        """Return the submission of a pod with a new shape, which requires a new node label."""
        node = structs.replace(NEEDS, selector={"zone": "z", f"new-{number}": "true"})
        shape = structs.replace(share(3000), node=node)
        uid = f"new-{number}"
        return PodSubmitted(uid=uid, namespace="default", name=uid, dialect="hami", shape=shape)

    def _of_all(self) -> Iterator[EventType]:
        """Yield the event types that affect all nodes: prices, policies and configurations."""
        histogram, state = self._bench.histogram, self._bench.state
        types, policy, configured = node_types(state), state.policy, state.configuration
        first = PolicyChanged(
            by="bench", node_policy=policy.node_policy, device_policy=policy.device_policy
        )
        cut = read_configuration({"nvidia": {"knownMigGeometries": GEOMETRIES}})
        yield EventType(
            "PricesLearnt", lambda n: learn(histogram.shapes(), types, pods=histogram.pods + n)
        )
        yield EventType(
            "PolicyChanged",
            lambda n: structs.replace(policy, node_policy=("price", "spread")[n % 2]),
        )
        yield EventType("PolicyChanged, back to the first", lambda _: first)
        yield EventType(
            "ConfigurationChanged, geometries alike",
            lambda _: ConfigurationChanged(by="bench", configuration=configured),
        )
        yield EventType(
            "ConfigurationChanged, other geometries",
            lambda n: ConfigurationChanged(by="bench", configuration=(cut, configured)[n % 2]),
        )

    def _of_nodes(self, names: Sequence[str]) -> Iterator[EventType]:
        """Yield the types of event that concern whole nodes."""
        nodes = self._bench.state.nodes.values()
        reports = [node.reported for node in nodes if node.reported is not None]
        yield EventType("NodeReported, a new node", lambda n: report(f"node-0{n}500-new"))
        yield EventType(
            "NodeReported, a new kind", lambda n: report(f"node-0{n}600-kind", model=f"Kind {n}")
        )
        yield EventType("NodeReported, a wider node", lambda n: report(names[7 * n], count=9 + n))
        yield EventType("NodeReported, as it was", lambda n: structs.replace(reports[5 * n + 3]))
        yield EventType(
            "NodeObserved, another label", lambda n: observed(names[11 * n], labels={"zone": "z"})
        )
        yield EventType(
            "NodeObserved, another taint",
            lambda n: observed(names[11 * n], taints=(Taint(key="k", effect="NoSchedule"),)),
        )
        yield EventType(
            "NodeCordoned", lambda n: NodeCordoned(node=names[13 * n], by="bench", reason="test")
        )
        yield EventType("NodeUncordoned", lambda n: NodeUncordoned(node=names[13 * n], by="bench"))

    def _of_devices(self, names: Sequence[str]) -> Iterator[EventType]:
        """Yield the event types in which a device is cordoned, is uncordoned, fails or recovers."""
        nodes = self._bench.state.nodes

        def device(number: int) -> str:
            return nodes[names[13 * number]].devices[0].device.id

        yield EventType(
            "DeviceCordoned", lambda n: DeviceCordoned(device=device(n), by="bench", reason="test")
        )
        yield EventType(
            "DeviceUncordoned", lambda n: DeviceUncordoned(device=device(n), by="bench")
        )
        yield EventType(
            "DeviceHealthChanged",
            lambda n: DeviceHealthChanged(node=names[13 * n], device=device(n), healthy=n % 2 > 0),
        )

    def _of_limits(self) -> Iterator[EventType]:
        """Yield the event types of queues and quotas."""
        yield EventType("QueueObserved", lambda n: QueueObserved(queue=f"queue-{n}", weight=2))
        yield EventType(
            "QueueObserved, with a limit",
            lambda n: QueueObserved(queue="default", capability={"cpu": 10**9 + n}),
        )
        yield EventType(
            "QuotaObserved",
            lambda n: QuotaObserved(
                namespace="poor", quota="q", hard={"limits.nvidia.com/gpumem": 1 + n}
            ),
        )


def share(memory_mib: int, cores: int = 0) -> Shape:
    ask = Ask(container="main", family="nvidia", memory_mib=memory_mib, cores=cores)
    return Shape(asks=(ask,), devices=SHARED, node=NEEDS)


def beside(app: str) -> PodTerm:
    """Return an affinity term that requires a pod of this app on the same node."""
    here = LabelExpression(key="app", operator="In", values=(app,))
    return PodTerm(topology_key="kubernetes.io/hostname", pods=PodSelector(expressions=(here,)))


def report(node: str, *, count: int = 8, model: str = "NVIDIA A100-SXM4-80GB") -> NodeReported:
    """Return the report of a node with `count` GPUs."""
    devices = tuple(
        Device(
            id=f"GPU-{node}-{index}",
            index=index,
            family="nvidia",
            model=model,
            memory_mib=81920,
            physical_memory_mib=81920,
            cores=100,
        )
        for index in range(count)
    )
    return NodeReported(node=node, devices=devices, host=HOST)


def observed(
    node: str, *, labels: dict[str, str] | None = None, taints: tuple[Taint, ...] = ()
) -> NodeObserved:
    """Return a watcher's event about a ready node with ample free CPU and memory."""
    return NodeObserved(
        node=node,
        ready=True,
        cpu_milli=HOST.cpu_milli,
        memory_mib=HOST.memory_mib,
        pods=HOST.pods,
        labels=labels or {},
        taints=taints,
    )
