"""Tests of forecasts that are computed from the past waits of similar pods."""

import heapq
import math
from itertools import pairwise

import pytest

from apportion.core.forecast.durations import GRID, LEAST, OVERDUE_S, Durations, keys_of
from apportion.core.forecast.waits import KEPT, STARTS_LEAST, Band, Situation, Waits
from tests.support.pods import pod

HERE = Situation(600.0, 0.0, queue=1, kind=1, size=1)
KEYS = (("own",), ("all",))


def waited(waits: Waits, seconds: list[float], situation: Situation = HERE) -> Waits:
    """Record one pod in this situation for each of these waiting times. Return `waits`."""
    for each in seconds:
        waits.started(waits.note(situation, 0.0, "little-history"), each)
    return waits


def banded(waits: Waits, now_s: float = 0.0, elapsed_s: float = 0.0) -> Band:
    """Return the forecast for situation `HERE`. Fail the test if there is none."""
    found = waits.band(HERE, now_s, elapsed_s)
    assert isinstance(found, Band)
    return found


def test_band_has_the_quantiles_of_equal_situations() -> None:
    """If all past pods were in the same situation, the forecast has their waits' quantiles."""
    seconds = [10.0 * each for each in range(1, 101)]
    band = banded(waited(Waits(), seconds))
    assert 50 <= band.p10_s <= 150
    assert 450 <= band.p50_s <= 650
    assert 850 <= band.p90_s <= 1000


def test_similar_situations_count_more() -> None:
    """Waits of pods of the same queue, device kind and size outweigh many other waits."""
    waits = waited(Waits(), [10_000.0] * 60, Situation(100_000.0, 0.0, queue=2, kind=2, size=2))
    assert banded(waited(waits, [100.0] * 40)).p50_s < 200


def test_pods_that_still_wait_count_as_longer() -> None:
    """Pods that are still pending make a forecast later. Pods that ended while pending do not."""
    waits = waited(Waits(), [100.0 + each for each in range(40)])
    before = banded(waits)
    numbers = [waits.note(HERE, -100.0 - 2 * each, "little-history") for each in range(20)]
    pending = banded(waits)
    for number in numbers:
        waits.left(number, 0.0)
    after = banded(waits)
    assert pending.p50_s > before.p50_s
    assert abs(after.p50_s - before.p50_s) < 5


def test_history_is_bounded() -> None:
    """The oldest recorded pods are dropped. If a dropped pod then starts, nothing changes."""
    waits = Waits()
    old = waits.note(HERE, 0.0, "little-history")
    waited(waits, [100.0] * (KEPT + 5))
    before = waits.band(HERE, 0.0)
    waits.started(old, 1e6)
    waits.left(old, 1e6)
    assert waits.band(HERE, 0.0) == before


def test_unlike_situations_give_no_band() -> None:
    """There is no forecast if too few pods started, or none of them in a similar situation."""
    assert waited(Waits(), [100.0] * (STARTS_LEAST - 1)).band(HERE, 0.0) == "little-history"
    waits = waited(Waits(), [100.0] * STARTS_LEAST)
    assert banded(waits).similar == pytest.approx(STARTS_LEAST)
    assert waits.band(HERE._replace(queue=2, kind=2, size=2), 0.0) == "little-history"
    assert waits.band(HERE._replace(expected_s=1e9), 0.0) == "little-history"


def test_a_queue_that_does_not_move_gives_no_band() -> None:
    """If most pods in a situation are still pending, there is no forecast for that situation."""
    waits = waited(Waits(), [100.0 + each for each in range(STARTS_LEAST)])
    assert banded(waits).p90_s < 200
    for _ in range(500):
        waits.note(HERE, 200.0, "little-history")
    assert waits.band(HERE, 200.0 + 5 * 86_400) == "few-started"


def test_only_waits_longer_than_the_pod_has_waited_count() -> None:
    """If a pod has waited longer than the short waits, its forecast counts only the long ones."""
    waits = waited(Waits(), [60.0] * 50 + [7_200.0 + each for each in range(50)])
    assert banded(waits).p10_s < 100
    later = banded(waits, now_s=3_600.0, elapsed_s=3_600.0)
    # Its devices are expected 600 s from now, so its whole wait is longer than that of the others.
    assert 3_600 < later.p10_s < later.p90_s
    short = waited(Waits(), [60.0] * 50)
    assert short.band(HERE, 1_800.0, 1_800.0) == "few-started"


def test_long_waits_are_kept_until_they_end() -> None:
    """With one refusal per second, waits of two hours are recorded with the right frequency."""
    waits, ends = Waits(), list[tuple[float, int]]()
    noted_s = 0.0
    for second in range(6 * 3_600):
        while ends and ends[0][0] <= second:
            end_s, number = heapq.heappop(ends)
            waits.started(number, end_s)
        if second - noted_s >= waits.every_s:
            noted_s = float(second)
            number = waits.note(HERE, noted_s, "little-history")
            heapq.heappush(ends, (noted_s + (60.0 if number % 3 else 7_200.0), number))
    band = banded(waits, noted_s)
    assert band.p50_s < 100
    assert band.p90_s == pytest.approx(7_200.0, rel=0.1)


def test_a_forecast_is_wrong_once_its_band_is_over() -> None:
    """A forecast is judged when the pod starts or when its latest time has passed."""
    waits, band = Waits(), Band(10.0, 20.0, 30.0, 9.0)
    early, right, never, gone = (waits.note(HERE, 0.0, band) for _ in range(4))
    waits.note(HERE, 0.0, "little-history")
    waits.started(early, 1.0)
    waits.started(right, 15.0)
    assert waits.judged(30.0) == [False, True]
    assert waits.judged(31.0) == [False, True, False, False]
    assert waits.judged(30.0) == [False, True]  # a question changes nothing
    waits.left(gone, 40.0)
    waits.started(never, 50.0)
    assert waits.judged(60.0) == [False, True, False, False]


def test_running_pods_release_their_devices_in_time() -> None:
    """The expected number of released devices grows with time, up to all that running pods use."""
    durations = Durations()
    for each in range(LEAST):
        durations.add(KEYS, 1000.0 + each)
    total = durations.released([(KEYS, 500.0, 4.0, math.inf), (KEYS, 2000.0, 1.0, math.inf)])
    assert all(one <= other for one, other in pairwise(total))
    known = durations.released([(KEYS, 500.0, 4.0, math.inf)])
    assert known[0] == 0
    assert known[GRID > 600][0] == 4.0


@pytest.mark.parametrize("runs", [0, LEAST], ids=["no-history", "history"])
@pytest.mark.parametrize(
    ("left_s", "point"), [(60.0, 1), (61.0, 2), (18_000.0, 10), (-1.0, 1), (-OVERDUE_S, 1)]
)
def test_a_pod_has_ended_at_the_next_point_after_its_deadline(
    left_s: float, point: int, runs: int
) -> None:
    """A pod with a deadline has released its devices at the first time of the grid after it,
    whatever similar pods did, but not before. If the deadline is over, it is a minute from now."""
    durations = Durations()
    for each in range(runs):
        durations.add(KEYS, 100_000.0 + each)
    found = durations.released([(KEYS, 5_000.0, 4.0, 5_000.0 + left_s)])
    assert found[point - 1] < found[point] == 4.0


def test_a_deadline_that_ends_no_pod_does_not_count() -> None:
    """If a pod has outlived its deadline for long, the durations of other pods count again."""
    durations = Durations()
    found, plain = (
        durations.released([(KEYS, 5_000.0, 4.0, most_s)])
        for most_s in (5_000.0 - OVERDUE_S - 1, math.inf)
    )
    assert found.tolist() == plain.tolist()


def test_runs_of_one_owner_have_one_key() -> None:
    """Owners whose names differ only in a number or hash at the end share their past durations."""
    owners = (
        "Job/train-7",
        "Job/train-12",
        "ReplicaSet/web-7f9c4d6b5",
        "ReplicaSet/web-5d8b7c9",
        "Job/x",
        "Job/llama-7b",
        "Job/llama-70b",
    )
    first, second, web, other_web, other, *sizes = (
        keys_of(pod(owner=owner), "default", 1.0)[0] for owner in owners
    )
    assert first == second
    assert web == other_web
    assert len({first, web, other, *sizes}) == 5


def test_rare_keys_give_way_to_wider_ones() -> None:
    """If a key has too few runs, durations are taken from the next wider key."""
    durations = Durations()
    for each in range(LEAST):
        durations.add((("other",), ("all",)), float(each))
    durations.add(KEYS, 99.0)
    assert durations.key(KEYS) == ("all",)
    for each in range(LEAST):
        durations.add(KEYS, float(each))
    assert durations.key(KEYS) == ("own",)
