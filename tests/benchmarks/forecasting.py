"""Measure what a forecast of a start costs.

    python -m tests.benchmarks.forecasting --nodes 10000 --pending 3000 --json

Every node has 8 devices, half of them allocated to pods of 4 devices. The pending pods are of 50
queues and of several sizes.

- `forecast_ms` and `forecast_p99_ms` are the median and the 99th percentile of the cost of a
  forecast after the end of a pod, so only results that depend on nodes alone are cached.
- `closed_ms` is the 99th percentile for pods that no node accepts by its labels.
- `page_ms` is the mean cost of a forecast for each pending pod at one revision.
- `event_us` is the mean cost of an event, and `refused_ms` of the first refusal of a pod.

Costs are processor time, so other processes on the machine hardly change them."""

import argparse
import random
import time
from typing import Any, Final

import numpy as np

from apportion.core.forecast.line import Line
from apportion.core.ledger import fold
from apportion.core.ledger.state import PodState, State
from apportion_schemas import (
    Ask,
    Event,
    Host,
    NodeConstraints,
    NodeReported,
    PodGone,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    Score,
    Shape,
)
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell

QUEUES: Final = 50
HISTORY: Final = 3_000  # pods that have waited, run and ended
WAITED: Final = 500  # pods that are submitted while one of them waits
ASKED: Final = 300
BEGIN_S: Final = 1_700_000_000.0
LIMITS: Final = {"forecast_p99_ms": 5.0, "closed_ms": 5.0}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=3_000)
    tell(parser, measure, LIMITS)


class Bench:
    """A forecast line with past, running and pending pods. It records the cost of each event."""

    def __init__(self) -> None:
        self.state = State()
        self.draw = random.Random(1)
        self.line = Line(self.state)
        self.now_s = BEGIN_S
        self.events: list[float] = []
        self.refusals: list[float] = []

    def tell(self, data: Payload) -> None:
        """Pass an event to the line, and record how much processor time the line needs."""
        self.now_s += 1.1
        begun = time.process_time()
        self.line.observe(data, self.now_s)
        costs = self.refusals if isinstance(data, PodRefused) else self.events
        costs.append(time.process_time() - begun)

    def submit(self, uid: str, devices: int, selector: dict[str, str] | None = None) -> None:
        """Submit a pod to the line. If its id begins with `pending`, add it to the state too."""
        ask = Ask(container="main", family="nvidia", count=devices, cores=100)
        data = PodSubmitted(
            uid=uid, namespace=f"team-{self.draw.randrange(QUEUES)}", name=uid, dialect="hami",
            shape=Shape(asks=(ask,), node=NodeConstraints(selector=selector or {})),
            queue=f"queue-{self.draw.randrange(QUEUES)}",
            owner=f"Job/job-{self.draw.randrange(1_000)}",
        )  # fmt: skip
        self.tell(data)
        if uid.startswith("pending"):
            self.fold(data)

    def fold(self, data: Payload) -> None:
        """Apply an event to the state."""
        event = Event(id="e", source="bench", time="2026-01-01T00:00:00Z", data=data)
        fold.apply(self.state, self.state.revision + 1, event)

    def refuse(self, uid: str) -> None:
        """Report a pod's refusal to the line."""
        self.tell(PodRefused(pod=uid, namespace="n", name=uid, reasons={}, nodes=1))

    def place(self, uid: str) -> None:
        """Place a pod on a node that the state does not know, so its devices have no model."""
        score = Score(node="n", total=1.0)
        self.tell(
            PodPlaced(pod=uid, namespace="n", name=uid, attempt=1, node="n", shares=(), score=score)
        )

    def ask(self, pod: PodState) -> float:
        """Return the cost of a forecast after a pod's end, in seconds."""
        self.tell(PodGone(uid="unknown"))
        begun = time.process_time()
        self.line.forecast(pod)
        return time.process_time() - begun


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark once, and return its figures."""
    bench = Bench()
    host = Host(cpu_milli=64_000, memory_mib=256_000, pods=110)
    for number in range(given.nodes):
        bench.fold(NodeReported(node=f"node-{number}", devices=(), host=host))
        bench.submit(f"running-{number}", 4)
        bench.place(f"running-{number}")
    for number in range(given.pending):
        bench.submit(f"pending-{number}", bench.draw.choice((1, 2, 4, 8, 16)))
    for number in range(HISTORY + WAITED):
        if number < HISTORY:
            bench.submit(f"old-{number}", bench.draw.choice((1, 2, 4, 8)))
            bench.refuse(f"old-{number}")
        if number >= WAITED:
            bench.place(f"old-{number - WAITED}")
            bench.tell(PodGone(uid=f"old-{number - WAITED}"))
    bench.refusals.clear()
    for number in range(ASKED):
        bench.refuse(f"pending-{number}")
    pods = [bench.state.pods[f"pending-{number}"] for number in range(given.pending)]
    bench.submit("pending-nowhere", 1, selector={"example.com/zone": "none"})
    alone = [bench.ask(pod) for pod in pods[:ASKED]]
    closed = [bench.ask(bench.state.pods["pending-nowhere"]) for _ in range(ASKED)]
    begun = time.process_time()
    found = [bench.line.forecast(pod) for pod in pods]
    page = (time.process_time() - begun) / len(pods)
    return {
        "forecast_ms": round(float(np.median(alone)) * 1e3, 3),
        "forecast_p99_ms": round(float(np.percentile(alone, 99)) * 1e3, 3),
        "closed_ms": round(float(np.percentile(closed, 99)) * 1e3, 3),
        "page_ms": round(page * 1e3, 3),
        "event_us": round(float(np.mean(bench.events)) * 1e6, 2),
        "refused_ms": round(float(np.mean(bench.refusals)) * 1e3, 3),
        "unknown": sum(each is None or bool(each.unknown) for each in found),
    }


if __name__ == "__main__":
    main()
