"""Measure how fast the engine decides, and how that depends on the size of the cluster.

    python -m tests.benchmarks.decide --nodes 10000 --policy binpack --json

A fleet of mixed nodes, with 8 devices each, is filled to 70 % with pods. Then one pod after another
ends, and the engine places a new pod. `flatness` is the rate of decisions divided by the rate at a
tenth of the nodes. Run `make compile` first: an interpreted engine is several times slower.

    python -m tests.benchmarks.decide --queues 200 --topology

With `--queues`, the pods are in queues that deserve equal parts. With `--topology`, nodes are in
racks of 16, and one of 100 arrivals is a gang of 4 pods that prefers one rack. `of_plain` is the
rate of decisions divided by the rate without these options; it must exceed 0.85."""

import argparse
import gc
import multiprocessing
import random
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, get_args

from msgspec import structs

from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.core.placement.engine import Engine
from apportion.core.placement.pricing.program import node_types
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.runtime.process.cpu_policy import seldom_look_for_cycles
from apportion.runtime.process.memory import gather
from apportion.runtime.solver import learn
from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    Event,
    Host,
    Mode,
    NodeConstraints,
    NodeReported,
    PodGone,
    PodGroupGone,
    PodGroupObserved,
    PodPlaced,
    PodSubmitted,
    Policy,
    PolicyChanged,
    QueueObserved,
    Shape,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell
from tests.support.deciding import decided

KINDS: tuple[tuple[str, str, int, Mode, int], ...] = (
    ("nvidia", "NVIDIA A100-SXM4-80GB", 81920, "hami-core", 4),
    ("nvidia", "NVIDIA H100-80GB-HBM3", 81920, "hami-core", 3),
    ("nvidia", "Tesla V100-SXM2-32GB", 32768, "hami-core", 1),
    ("nvidia", "NVIDIA A100-SXM4-40GB", 40960, "mig", 1),
    ("nvidia", "NVIDIA A30", 24576, "mps", 1),
    ("ascend310p", "Ascend310P3", 21527, "vnpu", 1),
)
RACK, RACK_NODES = "example.com/rack", 16
GANG_PODS, GANG_EVERY = 4, 100  # one of so many arrivals is a gang
WARM_DECISIONS = 10_000
TURNS = 8
TIME = "2026-01-01T00:00:00.000000Z"


def shapes() -> list[Shape]:
    """Return thirty-six shapes that cover every sharing mode, most of them small."""
    found = []
    node = NodeConstraints(cpu_milli=2000, memory_mib=8192)
    for memory_mib in (1000, 2000, 3000, 4096, 6000, 8000, 10000, 16000):
        for cores in (0, 10, 25):
            ask = Ask(container="main", family="nvidia", memory_mib=memory_mib, cores=cores)
            modes = DeviceConstraints(modes=("hami-core",))
            found.append(Shape(asks=(ask,), devices=modes, node=node))
    for count in (1, 2, 4):
        ask = Ask(container="main", family="nvidia", count=count, cores=100)
        found.append(Shape(asks=(ask,), node=node))
    for memory_mib in (3000, 9000, 20000):
        ask = Ask(container="main", family="nvidia", memory_mib=memory_mib)
        found.append(Shape(asks=(ask,), devices=DeviceConstraints(modes=("mig",)), node=node))
    for memory_mib in (2000, 6000):
        ask = Ask(container="main", family="nvidia", memory_mib=memory_mib, cores=20)
        found.append(Shape(asks=(ask,), devices=DeviceConstraints(modes=("mps",)), node=node))
    for memory_mib in (3000, 6144):
        ask = Ask(container="main", family="ascend310p", memory_mib=memory_mib)
        found.append(Shape(asks=(ask,), node=node))
    typed = DeviceConstraints(use_types=("A100",), modes=("hami-core",))
    ask = Ask(container="main", family="nvidia", memory_mib=5000, cores=20)
    found.append(Shape(asks=(ask,), devices=typed, node=node))
    pair = tuple(
        Ask(container=name, family="nvidia", memory_mib=4000, cores=10) for name in ("a", "b")
    )
    found.append(Shape(asks=pair, devices=DeviceConstraints(modes=("hami-core",)), node=node))
    return found


class FleetTooSmall(Exception):
    """Raised if the fleet is too small for the benchmark and refuses most pods."""


@dataclass
class Bench:
    """A simulated fleet and an engine that places pods on it.

    Its state is folded from events, as in a scheduler."""

    nodes: int
    policy: Policy
    queues: int = 0
    topology: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(7)
        self.state, self.revision, self.pods = State(), 0, 0
        weights = [kind[-1] for kind in KINDS]
        self.apply(PolicyChanged(by="bench", node_policy=self.policy, device_policy=self.policy))
        for number in range(self.nodes):
            family, model, memory_mib, mode, _ = self.random.choices(KINDS, weights)[0]
            devices = tuple(
                Device(
                    id=f"GPU-{number:05}-{index}",
                    index=index,
                    family=family,
                    model=model,
                    memory_mib=memory_mib,
                    physical_memory_mib=memory_mib,
                    cores=8 if mode == "vnpu" else 100,
                    mode=mode,
                )
                for index in range(8)
            )
            labels = {RACK: f"rack-{number // RACK_NODES}"} if self.topology else {}
            host = Host(cpu_milli=256_000, memory_mib=2_000_000, pods=250, labels=labels)
            self.apply(NodeReported(node=f"node-{number:05}", devices=devices, host=host))
        for number in range(self.queues):
            deserved = {"nvidia.com/gpu": self.nodes * 8 // self.queues}
            self.apply(QueueObserved(queue=f"queue-{number}", deserved=deserved))
        self.engine, self.histogram = Engine(self.state), ShapeHistogram(self.state)
        self.shapes = shapes()
        self.live: list[str] = []
        self.first: PodSubmitted | None = None  # of the newest gang

    def apply(self, data: Payload, engine: Engine | None = None) -> None:
        """Fold an event, as if a reader had read it from the ledger."""
        self.revision += 1
        event = Event(id="b", source="bench", time=TIME, data=data)
        change = fold.apply(self.state, self.revision, event)
        if change.refused:
            raise RuntimeError(change.refused)
        if engine is not None:
            engine.observe(change)
            self.histogram.observe(change)

    def submissions(self, count: int) -> list[PodSubmitted]:
        """Return pods of drawn shapes; the pods of a gang are next to each other."""
        found: list[PodSubmitted] = []
        for shape in self.random.choices(self.shapes, k=count):
            self.pods += 1
            uid = f"pod-{self.pods}"
            pod = PodSubmitted(
                uid=uid, namespace="default", name=uid, dialect="hami", shape=shape,
                queue=f"queue-{self.random.randrange(self.queues)}" if self.queues else "",
            )  # fmt: skip
            if self.topology and self.pods % GANG_EVERY == 0:
                pod = self.first = structs.replace(pod, group=f"default/{uid}")
            elif self.first is not None and self.pods % GANG_EVERY < GANG_PODS:
                pod = structs.replace(self.first, uid=uid, name=uid)
            found.append(pod)
        return found

    def arrive(self, submitted: PodSubmitted) -> int:
        """Submit a pod and run the engine. Return how many pods were placed.

        The first pod of a gang waits for the others."""
        group, placed = submitted.group, 0
        if group and group not in self.state.groups:
            level = RACK if self.topology else ""
            queue = submitted.queue or "default"
            self.apply(
                PodGroupObserved(
                    group=group, min_available=GANG_PODS, queue=queue, preferred_level=level
                ),
                self.engine,
            )
        self.apply(submitted, self.engine)
        for event in decided(self.engine).events:
            self.apply(event, self.engine)
            if isinstance(event, PodPlaced):
                placed += 1
                self.live.append(event.pod)
        gang = self.state.groups[group].pods if group else {submitted.uid: None}
        if not placed and (not group or len(gang) == GANG_PODS):
            for uid in list(gang):
                self.apply(PodGone(uid=uid), self.engine)
        return placed

    def depart(self, at: int) -> None:
        """End the placed pod at this index. Raises FleetTooSmall if no placed pod is left."""
        if not self.live:
            raise FleetTooSmall(
                f"too small a fleet: on {self.nodes} nodes most pods are refused, and none is left"
                " that could leave; give more --nodes (the tenth part of them decides too)"
            )
        self.live[at], self.live[-1] = self.live[-1], self.live[at]
        uid = self.live.pop()
        group = self.state.pods[uid].submitted.group
        self.apply(PodGone(uid=uid), self.engine)
        if group and group not in self.state.groups:  # the state drops a gang with its last pod
            self.apply(PodGroupGone(group=group), self.engine)

    def fill(self, part: float) -> None:
        """Place pods until this fraction of the device memory is allocated."""
        devices = [device for node in self.state.nodes.values() for device in node.devices]
        total = sum(device.device.memory_mib for device in devices)
        step = max(self.nodes // 4, 50)
        while sum(d.device.memory_mib - d.memory_free_mib for d in devices) < part * total:
            if not sum(map(self.arrive, self.submissions(step))):
                raise RuntimeError("the fleet cannot be filled that far")

    def learn(self) -> None:
        """Compute the prices of devices from the current pods, as the scheduler sometimes does."""
        types = node_types(self.state)
        self.apply(learn(self.histogram.shapes(), types, pods=self.histogram.pods), self.engine)

    def measure(self, decisions: int) -> tuple[float, list[float]]:
        """End a pod and place a new one, `decisions` times.

        Return the decisions per second, and the latency of each decision in microseconds."""
        latencies = []
        arriving = self.submissions(decisions)
        leaving = [self.random.random() for _ in range(decisions)]
        begun = time.perf_counter()
        for submitted, part in zip(arriving, leaving, strict=True):
            start = time.perf_counter()
            self.depart(int(part * len(self.live)))
            self.arrive(submitted)
            latencies.append((time.perf_counter() - start) * 1e6)
        return decisions / (time.perf_counter() - begun), sorted(latencies)


class Measured(NamedTuple):
    """The result of measuring the engine on one fleet."""

    seconds: float  # For all decisions.
    latencies: list[float]  # Of each decision, in microseconds.
    rss_mb: int  # The process's peak memory.


class Fleet:
    """Runs a `Bench` in a process of its own, and measures its decisions."""

    _bench: ClassVar[Bench]

    def __init__(
        self, nodes: int, policy: Policy, queues: int = 0, *, topology: bool = False
    ) -> None:
        self._alone = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        self._ready = self._alone.submit(self._prepare, nodes, policy, queues, topology)

    def measure(self, decisions: int) -> Measured:
        self._ready.result()
        return self._alone.submit(self._measure, decisions).result()

    @classmethod
    def _prepare(cls, nodes: int, policy: Policy, queues: int, topology: bool) -> None:
        cls._bench = Bench(nodes, policy, queues, topology)
        cls._bench.fill(0.7)
        cls._bench.learn()
        cls._bench.measure(WARM_DECISIONS)
        seldom_look_for_cycles()  # as in every service
        gc.collect()
        gc.freeze()
        gather()  # as every service does

    @classmethod
    def _measure(cls, decisions: int) -> Measured:
        rate, latencies = cls._bench.measure(decisions)
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return Measured(decisions / rate, latencies, rss_mb)


def run(given: argparse.Namespace) -> dict[str, float]:
    """Measure two fleets by turns, and return the figures of the second.

    The first has a tenth of the nodes, or, with queues or topology, neither of these."""
    nodes, policy, decisions = given.nodes, given.policy, given.decisions
    plain = not (given.queues or given.topology)
    small = Fleet(max(nodes // 10, 1) if plain else nodes, policy)
    large = Fleet(nodes, policy, given.queues, topology=given.topology)
    turns = [
        (small.measure(decisions // TURNS), large.measure(decisions // TURNS)) for _ in range(TURNS)
    ]
    seconds = sum(each.seconds for _, each in turns)
    latencies = sorted(latency for _, each in turns for latency in each.latencies)
    return {
        "decisions_per_s": round(len(latencies) / seconds),
        "p50_us": round(latencies[len(latencies) // 2], 1),
        "p99_us": round(latencies[len(latencies) * 99 // 100], 1),
        "rss_mb": turns[-1][1].rss_mb,
        "flatness" if plain else "of_plain": round(
            sum(each.seconds for each, _ in turns) / seconds, 3
        ),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--policy", choices=get_args(Policy), default="binpack")
    parser.add_argument("--decisions", type=int, default=40_000)
    parser.add_argument("--queues", type=int, default=0)
    parser.add_argument("--topology", action="store_true")
    try:
        tell(parser, run)
    except FleetTooSmall as refused:
        parser.error(str(refused))


if __name__ == "__main__":
    main()
