"""Measure the cost of the first pod of a shape, and the cost of pending pods.

    python -m tests.benchmarks.waiting --nodes 10000 --policy binpack --json

The fleet is that of the benchmark `decide`, 70 % full.

- `cold_ms` and `cold_p50_ms` are the longest and the median time to place a pod of a new shape.
- `unschedulable` is how many pods stay pending because no device is large enough.
- `ratio` is the rate of decisions with these pending pods, divided by the rate without them.
- `refused_again` is how many of these pods the engine refused again.
- `helped_ms` is from the report of a larger device to the first placement of a pending pod on it.
- `event_ms` is the cost of each type of event for a scheduler with 512 shapes.
- `worst_event` is the type of event with the highest cost."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final, get_args

from apportion_schemas import (
    Ask,
    Device,
    DeviceConstraints,
    Host,
    NodeConstraints,
    NodeReported,
    PodPlaced,
    PodSubmitted,
    Policy,
    Shape,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.decide import TURNS, Fleet
from tests.benchmarks.event_costs import event_costs
from tests.benchmarks.telling import parser_of, tell
from tests.support.deciding import decided

HUGE_MIB: Final = 200_000  # more than any device of the fleet has
SHAPES: Final = 20
COLD: Final = 30


def share(memory_mib: int, cores: int) -> Shape:
    ask = Ask(container="main", family="nvidia", memory_mib=memory_mib, cores=cores)
    modes = DeviceConstraints(modes=("hami-core",))
    return Shape(asks=(ask,), devices=modes, node=NodeConstraints(cpu_milli=1000))


class Waiting(Fleet):
    """The fleet of the benchmark `decide`, with additional pods that stay pending."""

    _refused: ClassVar[dict[str, int]]

    def cold_ms(self) -> list[float]:
        """Place a few pods, each of a new shape. Return the milliseconds for each."""
        return self._alone.submit(self._cold_ms).result()

    def refuse(self, pods: int) -> int:
        """Submit `pods` pods that fit no device. Return how many are pending."""
        return self._alone.submit(self._refuse, pods).result()

    def refused_again(self) -> int:
        """Return how many of the pending pods were refused more than once."""
        return self._alone.submit(self._refused_again).result()

    def helped_ms(self) -> float:
        """Report a node with a large device.

        Return the milliseconds until the first pending pod is placed on it."""
        return self._alone.submit(self._helped_ms).result()

    @classmethod
    def _cold_ms(cls) -> list[float]:
        found = []
        for number in range(COLD):
            cls._bench.depart(0)
            pod = _pod(f"cold-{number}", share(1111 + 97 * number, 3 + number % 20))
            start = time.perf_counter()
            placed = cls._bench.arrive(pod)
            found.append((time.perf_counter() - start) * 1e3)
            if not placed:
                raise RuntimeError("there is no room for a new shape")
        return sorted(found)

    @classmethod
    def _refuse(cls, pods: int) -> int:
        wishes = [share(HUGE_MIB + number, 0) for number in range(SHAPES)]
        for number in range(pods):
            pod = _pod(f"unschedulable-{number}", wishes[number % SHAPES])
            cls._bench.apply(pod, cls._bench.engine)
            cls._decide()
        cls._refused = cls._refusals()
        return len(cls._refused)

    @classmethod
    def _refused_again(cls) -> int:
        now = cls._refusals()
        return sum(now.get(uid) != revision for uid, revision in cls._refused.items())

    @classmethod
    def _helped_ms(cls) -> float:
        device = Device(
            id="GPU-huge",
            index=0,
            family="nvidia",
            model="huge",
            memory_mib=2 * HUGE_MIB,
            physical_memory_mib=2 * HUGE_MIB,
            cores=100,
            mode="hami-core",
        )
        host = Host(cpu_milli=256_000, memory_mib=2_000_000, pods=250)
        report = NodeReported(node="node-huge", devices=(device,), host=host)
        start = time.perf_counter()
        cls._bench.apply(report, cls._bench.engine)
        if not any(isinstance(event, PodPlaced) for event in cls._decide()):
            raise RuntimeError("nobody was helped")
        return (time.perf_counter() - start) * 1e3

    @classmethod
    def _decide(cls) -> Sequence[Payload]:
        events = decided(cls._bench.engine).events
        for event in events:
            cls._bench.apply(event, cls._bench.engine)
        return events

    @classmethod
    def _refusals(cls) -> dict[str, int]:
        return {
            uid: pod.refused_revision
            for uid, pod in cls._bench.state.pods.items()
            if uid.startswith("unschedulable") and pod.refusal is not None
        }


def _pod(uid: str, shape: Shape) -> PodSubmitted:
    return PodSubmitted(uid=uid, namespace="default", name=uid, dialect="hami", shape=shape)


def run(nodes: int, policy: Policy, pods: int, decisions: int) -> dict[str, Any]:
    costs = event_costs(nodes, policy)
    worst = next(iter(costs))
    alone, beside = Waiting(nodes, policy), Waiting(nodes, policy)
    cold_ms = beside.cold_ms()
    alone.cold_ms()  # both have the same classes
    unschedulable = beside.refuse(pods)
    turns = [
        (alone.measure(decisions // TURNS).seconds, beside.measure(decisions // TURNS).seconds)
        for _ in range(TURNS)
    ]
    return {
        "cold_ms": round(cold_ms[-1], 1),
        "cold_p50_ms": round(cold_ms[len(cold_ms) // 2], 1),
        "unschedulable": unschedulable,
        "ratio": round(sum(each for each, _ in turns) / sum(each for _, each in turns), 3),
        "refused_again": beside.refused_again(),
        "helped_ms": round(beside.helped_ms(), 1),
        "worst_event_ms": costs[worst],
        "worst_event": worst,
        "event_ms": costs,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--policy", choices=get_args(Policy), default="binpack")
    parser.add_argument("--unschedulable", type=int, default=100_000)
    parser.add_argument("--decisions", type=int, default=40_000)
    tell(parser, lambda given: run(given.nodes, given.policy, given.unschedulable, given.decisions))


if __name__ == "__main__":
    main()
