"""The metrics registry of a process, and the metrics that all services share.

Invariant: a label has few values, such as a code, a type or an outcome. Only metrics that are
computed at each scrape may name pods or devices, because they leave no series behind."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

M = TypeVar("M")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Buckets from 0.1 ms to 10 s.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Tally(Collector):
    """A counter for very frequent events; only the event loop increments `counts`."""

    def __init__(self, name: str, meaning: str, label: str) -> None:
        self._name, self._meaning, self._label = name, meaning, label
        self.counts: Counts[str] = Counts()

    def collect(self) -> Iterable[Metric]:
        """Return the counter's samples. The library appends `_total` to the name."""
        family = CounterMetricFamily(self._name, self._meaning, labels=[self._label])
        for value, count in sorted(self.counts.items()):
            family.add_metric([value], count)
        yield family


class Family(NamedTuple):
    """A gauge whose series appear and disappear: its name, meaning and labels."""

    name: str
    meaning: str
    labels: tuple[str, ...]


Sample = tuple[Family, tuple[str, ...], float]  # a gauge, the values of its labels, and its value


class LookedUp(Collector):
    """Gauges whose series are computed at each scrape and not stored."""

    def __init__(self, families: Sequence[Family], look: Callable[[], Iterable[Sample]]) -> None:
        self._families = families
        self._look = look

    def collect(self) -> Iterable[Metric]:
        """Return the samples of all gauges, computed by one call of `look`."""
        made = {family: _empty(family) for family in self._families}
        for family, labels, value in self._look():
            made[family].add_metric(labels, value)
        return made.values()

    def describe(self) -> Iterable[Metric]:
        """Return the gauges without samples, so that registering them does not call `look`."""
        return [_empty(family) for family in self._families]


def _empty(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.name, family.meaning, labels=family.labels)


class Metrics:
    """The metrics of one process and their registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Any] = {}
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.fold_revision = self.gauge(
            "apportion_fold_revision",
            "Number of the newest event that this process has read and applied.",
        )
        self.fold_lag = self.gauge(
            "apportion_fold_lag",
            "Number of events in the ledger that this process has not applied yet.",
        )
        self.fold_halted = self.gauge(
            "apportion_fold_halted",
            "1 if this process cannot apply further events; /readyz has the reason.",
        )
        self.events_folded = Tally(
            "apportion_events_folded", "Events applied since the process started.", "type"
        )
        self.registry.register(self.events_folded)
        self.append_seconds = self.histogram(
            "apportion_append_seconds",
            "Time from sending events to the ledger until the ledger acknowledges them.",
        )
        self.appends = self.counter(
            "apportion_append_total",
            "Appends to the ledger by outcome: ok, fence (the state had changed), duplicate, "
            "unknown (no answer), unserved (no stream accepts it), unavailable, full, or refused.",
            ("outcome",),
        )
        self.drafts_appended = self.counter(
            "apportion_append_drafts_total", "Events that this process appended to the ledger."
        )
        self.append_conflicts = self.counter(
            "apportion_append_conflicts_total",
            "Appends rejected because the subject had a newer event.",
        )
        self.restarts = self.counter(
            "apportion_restarts_total", "Restarts of the service inside its process after an error."
        )

    def looked_up(self, families: Sequence[Family], look: Callable[[], Iterable[Sample]]) -> None:
        """Register gauges whose samples `look` computes. A second call replaces `look`."""
        name = families[0].name
        if name in self._made:
            self.registry.unregister(self._made[name])
        self._made[name] = LookedUp(families, look)
        self.registry.register(self._made[name])

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """Register and return a counter, which only increases. Its name ends in `_total`."""
        return self._once(name, lambda: Counter(name, meaning, labels, registry=self.registry))

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        """Register and return a gauge, which can increase and decrease."""
        return self._once(name, lambda: Gauge(name, meaning, labels, registry=self.registry))

    def histogram(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Histogram:
        """Register and return a histogram of times in seconds."""
        return self._once(
            name, lambda: Histogram(name, meaning, labels, registry=self.registry, buckets=SECONDS)
        )

    def _once(self, name: str, make: Callable[[], M]) -> M:
        if name not in self._made:
            self._made[name] = make()
        made: M = self._made[name]
        return made

    def appended(self, outcome: str, drafts: int, seconds: float) -> None:
        """Record the outcome of an append. Pass this method to `client.connect` as `watch`."""
        self.append_seconds.observe(seconds)
        self.appends.labels(outcome).inc()
        if outcome == "ok":
            self.drafts_appended.inc(drafts)
        elif outcome == "fence":
            self.append_conflicts.inc()

    def render(self) -> bytes:
        """Return the body of /metrics in Prometheus text format."""
        return generate_latest(self.registry)
