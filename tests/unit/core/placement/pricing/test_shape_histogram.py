"""Tests of the histogram of submitted pods by shape, and of when prices are learnt from it."""

import pytest

from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.core.placement.pricing import shape_histogram as counting
from apportion.core.placement.pricing.shape_histogram import ShapeHistogram
from apportion.core.placement.pricing.sizes import SeenShape
from apportion_schemas import DeviceConstraints, PodSubmitted
from tests.support.ledger_of import Ledger, event_of
from tests.support.pods import ask, pod, shape, wants
from tests.support.prices import learnt, piece, priced


def counted(*pods: PodSubmitted) -> ShapeHistogram:
    """Return a histogram of shapes after these pods were submitted."""
    state = State()
    histogram = ShapeHistogram(state)
    for revision, each in enumerate(pods, 1):
        histogram.observe(fold.apply(state, revision, event_of(each)))
    return histogram


def pods(count: int, first: int = 0) -> list[PodSubmitted]:
    return [pod(f"p{first + number}", ask(1000)) for number in range(count)]


def test_equal_pods_are_one_shape() -> None:
    """Pods that differ only in their names count as one shape, and the most frequent shape comes
    first."""
    histogram = counted(
        pod("p1", ask(1000)),
        pod("p2", ask(2000, container="other")),
        pod("p3", ask(2000)),
        pod("p4", shape=wants(cpu_milli=500, memory_mib=64)),
    )
    small, large = ask(1000, container="any"), ask(2000, container="any")
    assert histogram.shapes() == [
        SeenShape(large, 0, 0, 2),
        SeenShape(small, 0, 0, 1),
        SeenShape(None, 500, 64, 1),
    ]


def test_host_memory_is_the_mean() -> None:
    """Pods that differ only in host memory count as one shape with their mean memory."""
    histogram = counted(
        pod("p1", shape=wants(piece(50), cpu_milli=100, memory_mib=1000)),
        pod("p2", shape=wants(piece(50), cpu_milli=100, memory_mib=2000)),
    )
    assert histogram.shapes() == [SeenShape(piece(50), 100, 1500, 2)]


def test_a_pod_of_several_containers_counts_once_for_each() -> None:
    """Every container of a pod counts as a shape of its own, with an equal part of the pod's CPU
    and memory."""
    both = wants(ask(1000), ask(3000, container="b"), cpu_milli=1000, memory_mib=64)
    first, second = ask(1000, container="any"), ask(3000, container="any")
    assert set(counted(pod("p1", shape=both)).shapes()) == {
        SeenShape(first, 500, 32, 1),
        SeenShape(second, 500, 32, 1),
    }


def test_modes_and_models_are_kept() -> None:
    """A shape in the histogram keeps the sharing modes and models that its pods accept."""
    picky = DeviceConstraints(modes=("mig",), use_types=("A100",))
    (seen,) = counted(pod("p1", shape=shape(piece(50), devices=picky))).shapes()
    assert (seen.modes, seen.use_types) == (("mig",), ("A100",))


def test_learning_is_due_at_twenty_pods_and_whenever_they_have_doubled() -> None:
    """Prices are first learnt from twenty pods, and again whenever the number of pods has
    doubled."""
    state = State()
    histogram, due = ShapeHistogram(state), []
    for each in pods(400):
        histogram.observe(fold.apply(state, state.revision + 1, event_of(each)))
        if histogram.due:
            due.append(histogram.pods)
            histogram.priced()
    assert due == [20, 40, 80, 160, 320]


def test_prices_are_never_older_than_ten_thousand_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are learnt again after ten thousand further pods, even if the number of pods has not
    doubled."""
    monkeypatch.setattr(counting, "FRESH_PODS_MAX", 50)
    histogram = counted(*pods(200))
    histogram.priced()
    ledger = Ledger(*pods(50, first=200))
    for each in ledger.state.pods.values():
        assert not histogram.due
        histogram.note(each)
    assert histogram.due


def test_prices_that_another_scheduler_learnt_count() -> None:
    """If one scheduler has learnt prices, no other scheduler needs to learn them from the same
    pods."""
    state = State()
    histogram = ShapeHistogram(state)
    for each in pods(20):
        histogram.observe(fold.apply(state, state.revision + 1, event_of(each)))
    before = histogram.due
    prices = learnt(priced(piece(50), 500_000, pods=20))
    histogram.observe(fold.apply(state, state.revision + 1, event_of(prices)))
    assert (before, histogram.due) == (True, False)


def test_a_shape_histogram_from_a_snapshot_goes_on_from_the_prices() -> None:
    """A histogram that is built from a state starts with the counts of the last prices. Only pods
    that are newer than these prices are added."""
    ledger = Ledger(*pods(3), learnt(priced(piece(50), 500_000, 700, memory_mib=64, pods=20)))
    ledger.submit(*pods(2, first=3)).gone("p0", "p3")
    histogram = ShapeHistogram(ledger.state)
    assert (histogram.pods, histogram.fresh) == (21, 1)
    assert histogram.shapes() == [
        SeenShape(piece(50), 700, 64, 20),
        SeenShape(ask(1000, container="any"), 0, 0, 1),
    ]


def test_what_no_longer_comes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The histogram halves all counts regularly, so that recent pods weigh most."""
    monkeypatch.setattr(counting, "MEMORY_PODS", 10)
    old = [pod(f"o{number}", ask(9000)) for number in range(10)]
    histogram = counted(*old, *pods(40))
    by_memory = {s.ask.memory_mib: s.pods for s in histogram.shapes() if s.ask}
    assert by_memory == {1000: 18, 9000: 1}
    assert histogram.pods == 50


def test_shapes_that_come_once_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The histogram drops rare shapes, which bounds its memory."""
    monkeypatch.setattr(counting, "KEYS_MAX", 30)
    histogram = counted(*(pod(f"p{number}", ask(1 + number)) for number in range(200)))
    assert len(histogram.shapes()) <= 31


def test_a_refused_pod_is_not_counted() -> None:
    """The histogram does not count a submission that the fold refused."""
    assert counted(pod("p1", ask(1)), pod("p1", ask(1))).pods == 1
