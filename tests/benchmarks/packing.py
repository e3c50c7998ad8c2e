"""How much of a cluster each policy gets allocated, on a production trace.

    python -m tests.benchmarks.packing --trace pods_default.csv \
        --nodes nodes.csv --policy price --online --json

The protocol is that of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the pods of the
trace in an order drawn from the seed, then more drawn from it until 1.3 times the cluster's devices
are asked for. They arrive one by one; each is placed at once or fails for good, and none departs.
The result is the part of all devices that is allocated then, in percent.

Everything goes through the real state, fold and engine. The policies that weigh shapes know the
trace's shapes beforehand, as in the paper; with `--online` they learn them from the pods as they
come, by the scheduler's own rule, from an empty ledger. `decisions` is a SHA-256 over the bytes of
all that was decided: whoever changes how nodes are weighed compares it with that of the commit
before, which it must equal unless placements were meant to change.
"""

import argparse
import csv
import random
import resource
import statistics
import time
from hashlib import sha256
from pathlib import Path
from typing import Final, get_args

import msgspec

from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.core.manifests.trace import read_trace_pods
from apportion.core.placement.engine import Engine
from apportion.core.placement.pricing.fleet import node_types
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.runtime.solving.learning import learn
from apportion_schemas import (
    Device,
    Event,
    Host,
    NodeReported,
    PodGone,
    PodPlaced,
    PodSubmitted,
    Policy,
    PolicyChanged,
    Shape,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell
from tests.support.deciding import decided

TIME: Final = "2026-01-01T00:00:00.000000Z"
OVERLOAD: Final = 1.3  # asked for, of what there is
SHUFFLE_NODES: Final = 1  # once, the same for all runs: the paper breaks ties by this order
MEMORY_MIB: Final = 100_000  # of a device; the trace's shares are parts of it
WHOLE: Final = 100


class Ledger:
    """A state, the fold that makes it, and the engine and histogram that look on."""

    def __init__(self) -> None:
        self.state = State()
        self.engine, self.histogram = Engine(self.state), ShapeHistogram(self.state)

    def apply(self, data: Payload) -> None:
        """The event comes back from the ledger."""
        event = Event(id="b", source="bench", time=TIME, data=data)
        change = fold.apply(self.state, self.state.revision + 1, event)
        if change.refused:
            raise RuntimeError(change.refused)
        self.engine.observe(change)
        self.histogram.observe(change)

    def submit(self, number: int, shape: Shape) -> None:
        """A pod wants a place."""
        name = f"pod-{number}"
        self.apply(PodSubmitted(uid=name, namespace="b", name=name, shape=shape, dialect="hami"))


def node(rank: int, row: dict[str, str]) -> NodeReported:
    """A node of the trace, named by its rank."""
    name = f"node-{rank:05}"
    devices = tuple(
        Device(
            id=f"{name}-{index}",
            index=index,
            family="nvidia",
            model=row["model"],
            memory_mib=MEMORY_MIB,
            physical_memory_mib=MEMORY_MIB,
            slots=WHOLE,
        )
        for index in range(int(row["gpu"]))
    )
    host = Host(cpu_milli=int(row["cpu_milli"]), memory_mib=int(row["memory_mib"]), pods=250)
    return NodeReported(node=name, devices=devices, host=host)


def taken_percent(shape: Shape) -> int:
    """What a pod of the trace takes, in percent of one device."""
    return sum(ask.count * ask.cores for ask in shape.asks)


def arrivals(shapes: list[Shape], devices: int, seed: int) -> list[Shape]:
    """The pods in the order in which they come; `shapes` are the trace's, sorted by pod name."""
    drawn = random.Random(seed)
    pods = list(shapes)
    drawn.shuffle(pods)
    asked = sum(taken_percent(shape) for shape in pods)
    while True:
        more = drawn.choice(shapes)
        asked += taken_percent(more)
        if asked > OVERLOAD * devices * WHOLE:
            return pods
        pods.append(more)


def known_beforehand(shapes: list[Shape], ledger: Ledger) -> Payload:
    """The prices for the trace's own shapes on this cluster."""
    trace = Ledger()
    for number, shape in enumerate(shapes):
        trace.submit(number, shape)
    return learn(trace.histogram.shapes(), node_types(ledger.state), pods=trace.histogram.pods)


def run(
    nodes: list[NodeReported], shapes: list[Shape], policy: Policy, seed: int, *, online: bool
) -> tuple[float, bytes]:
    """The allocated part of all devices after one run, in percent, and the digest of decisions."""
    ledger, decisions = Ledger(), sha256()
    ledger.apply(PolicyChanged(by="bench", node_policy=policy, device_policy=policy))
    for report in nodes:
        ledger.apply(report)
    weighs = policy in ("price", "fgd")
    if weighs and not online:
        ledger.apply(known_beforehand(shapes, ledger))
    devices = sum(len(report.devices) for report in nodes)
    for number, shape in enumerate(arrivals(shapes, devices, seed)):
        ledger.submit(number, shape)
        (event,) = decided(ledger.engine).events
        decisions.update(msgspec.json.encode(event))
        placed = isinstance(event, PodPlaced)
        ledger.apply(event if placed else PodGone(uid=f"pod-{number}"))
        if weighs and online and ledger.histogram.due:
            histogram = ledger.histogram
            types = node_types(ledger.state)
            ledger.apply(learn(histogram.shapes(), types, pods=histogram.pods))
    each = [state for found in ledger.state.nodes.values() for state in found.devices]
    allocated = sum(state.device.cores - state.cores_free for state in each) / devices
    return allocated, decisions.digest()


def measure(given: argparse.Namespace) -> dict[str, object]:
    """One run for each seed."""
    first, _, last = given.seeds.partition("-")
    with given.nodes.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    random.Random(SHUFFLE_NODES).shuffle(rows)
    nodes = [node(rank, row) for rank, row in enumerate(rows)]
    with given.trace.open(encoding="utf-8") as lines:
        drafts = sorted(read_trace_pods(lines), key=lambda draft: draft.name)
    shapes = [draft.shape for draft in drafts]
    allocated, seconds, cpu_seconds, decisions = {}, [], [], sha256()
    for seed in range(int(first), int(last or first) + 1):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        percent, digest = run(nodes, shapes, given.policy, seed, online=given.online)
        allocated[seed] = round(percent, 3)
        decisions.update(digest)
        seconds.append(time.perf_counter() - begun)
        cpu_seconds.append(time.process_time() - cpu_begun)
    return {
        "policy": given.policy,
        "online": given.online,
        "allocated_percent": round(statistics.fmean(allocated.values()), 2),
        "seeds": allocated,
        "decisions": decisions.hexdigest(),
        "seconds_per_run": round(statistics.fmean(seconds), 1),
        "cpu_seconds_per_run": round(statistics.fmean(cpu_seconds), 1),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """Print the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--policy", choices=get_args(Policy), default="price")
    parser.add_argument("--seeds", default="42-51", help="as in 42-51 or 42")
    parser.add_argument("--online", action="store_true", help="learn from the pods as they come")
    tell(parser, measure)


if __name__ == "__main__":
    main()
