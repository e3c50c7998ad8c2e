"""Tests of when the pending pods of a plan would start."""

from typing import Any

import pytest

from apportion.core.answers.plans import PlannedPod
from apportion.core.answers.reads import StartForecast
from apportion.core.explain.text.answer_text import start_seconds
from apportion.core.ledger.moments import SECOND, text_of
from apportion.core.ledger.state import PodState
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.lab.changes import Changes
from apportion.lab.planning import STARTS_MAX, Plan, plan
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    Score,
)
from tests.support.fleet import A30, rack
from tests.support.pods import ask, gang, pod, share
from tests.support.story import A30S, T4S, Story

LATER_S = 60


@pytest.fixture
def story() -> Story:
    """Return a ledger with enough past waits for forecasts."""
    return Story(40)


def draft(name: str, **fields: Any) -> PodDraft:
    """Return a pod that the full node of the story could run."""
    fields.setdefault("shape", A30S)
    return PodDraft(namespace="default", name=name, dialect="hami", **fields)


def planned(
    story: Story, *drafts: PodDraft, groups: tuple[PodGroupObserved, ...] = ()
) -> tuple[PlannedPod, ...]:
    """Plan these pods `LATER_S` after the newest event."""
    time = text_of((story.now_s + LATER_S) * SECOND)
    made = plan(story.live.state, Plan(pods=drafts, groups=groups), time=time,
                forecasts_in=story.live.forecasts_in)  # fmt: skip
    return made.pods


def test_a_plan_forecasts_the_start_that_follows_its_submission(story: Story) -> None:
    """The forecast for a planned pod is the one that the pod gets when it is submitted. To plan
    changes no other forecast."""
    before = story.live.forecast(story.last)
    [new] = planned(story, draft("new"))
    assert story.live.forecast(story.last) == before
    story.now_s, story.gap_s = story.now_s + LATER_S, 0
    story.play(pod("new", shape=A30S))
    found = story.live.forecast(story.last)
    assert found is not None
    assert new.start is not None
    assert (new.outcome, new.start.unknown, new.start.as_of) == ("not-now", "", found.as_of)
    for name in ("probability", "judged", "within", "since"):
        assert getattr(new.start, name) == getattr(found, name)
    mine, its = (start_seconds(each, story.now_s) for each in (new.start, found))
    assert mine == pytest.approx(its, rel=0.05, abs=1)


def test_a_pod_that_is_placed_has_no_forecast(story: Story) -> None:
    """A pod that would be placed at once has no forecast, and neither has one that never fits."""
    fits, never = planned(story, draft("fits", shape=T4S), draft("big", shape=shape_of_all()))
    assert (fits.outcome, fits.start) == ("fits", None)
    assert (never.outcome, never.start) == ("never", None)


def shape_of_all() -> Any:
    """Return the shape of a pod that no node could ever run."""
    return pod("big", ask(900_000)).shape


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        ({"scheduler_name": "apportion"}, ""),
        ({"scheduler_name": "default-scheduler"}, "other-scheduler"),
        ({"gates": ("wait",)}, "gated"),
        ({"scheduler_name": "default-scheduler", "gates": ("wait",)}, "gated"),
    ],
)
def test_why_a_start_is_unknown(story: Story, fields: dict[str, Any], unknown: str) -> None:
    """The plan names the cause if a start is unknown, as `why` does. A kube-scheduler that our
    extender filters for chooses when its pods start."""
    extended = Configuration(extended_scheduler_names=("default-scheduler",))
    story.play(ConfigurationChanged(by="t", configuration=extended))
    [new] = planned(story, draft("new", **fields))
    assert new.start is not None
    assert (new.start.unknown, bool(new.start.median)) == (unknown, not unknown)


@pytest.mark.parametrize("chooser", ["", "default-scheduler"])
def test_a_displaced_pod_has_a_forecast(story: Story, chooser: str) -> None:
    """A pod of a lost node that would be pending has a forecast, without times if another
    scheduler chooses its node."""
    story.record(rack("n9", 1, model=A30))
    story.record(pod("displaced", shape=A30S, chooser=chooser))
    story.record(PodPlaced(
        pod="displaced", namespace="default", name="displaced", attempt=1, node="n9",
        shares=(share("n9-g0", 1600, 0),), score=Score(node="n9", total=1.0),
    ))  # fmt: skip
    made = plan(story.live.state, Plan(changes=Changes(lose=("n9",))),
                forecasts_in=story.live.forecasts_in)  # fmt: skip
    moved = next(each for each in made.moved if each.name == "displaced")
    assert moved.outcome == "not-now"
    assert moved.start is not None
    assert (moved.start.unknown == "other-scheduler") == bool(chooser)


def gangs(*sizes: int) -> tuple[tuple[PodDraft, ...], tuple[PodGroupObserved, ...]]:
    """Return the pods of gangs with these numbers of pods, and their declarations."""
    names = [f"default/gang-{number}" for number in range(len(sizes))]
    drafts = tuple(
        draft(f"{name.removeprefix('default/')}-{number}", group=name)
        for name, size in zip(names, sizes, strict=True)
        for number in range(size)
    )
    declared = zip(names, sizes, strict=True)
    return drafts, tuple(gang(name, min_available=size) for name, size in declared)


def test_equal_gangs_share_a_forecast(story: Story) -> None:
    """Equal gangs share one forecast. A gang of another size has its own, because it needs other
    devices."""
    story.play(rack("n8", 8, model=A30), *(pod(f"full-{n}", shape=A30S) for n in range(8)))
    drafts, groups = gangs(2, 2, 3)
    asked: list[str] = []

    def forecast(pod: PodState) -> StartForecast:
        asked.append(pod.submitted.group)
        return StartForecast(as_of=pod.submitted_time, unknown="little-history")

    made = plan(story.live.state, Plan(pods=drafts, groups=groups), forecasts_in=lambda _: forecast)
    assert {each.outcome for each in made.pods} == {"not-now"}
    assert all(each.start for each in made.pods)
    assert asked == ["default/gang-0", "default/gang-2"]


def test_a_replaced_gang_has_not_waited(story: Story) -> None:
    """If a plan replaces a pending gang, the time for which the old gang waited does not count."""
    story.play(PodGone(uid=story.last.uid))
    drafts, groups = gangs(1)
    [fresh] = planned(story, *drafts, groups=groups)
    story.gap_s = 0
    story.play(*groups, *(pod(f"old-{each.name}", name=each.name, group=each.group, shape=A30S,
                              priority=-1) for each in drafts))  # fmt: skip
    [replaced] = planned(story, *drafts, groups=groups)
    assert replaced.replaces
    assert fresh.start is not None
    assert replaced.start is not None
    assert (fresh.start.unknown, replaced.start.unknown) == ("", "")
    times = [start_seconds(each, 0.0) for each in (fresh.start, replaced.start)]
    assert times[0] == pytest.approx(times[1], rel=0.05, abs=1)


def test_nothing_is_forecast_if_nothing_would_be_pending(story: Story) -> None:
    """Forecasts are prepared only if a pod of the plan would be pending."""

    def fail(_: object) -> Any:
        raise AssertionError

    made = plan(story.live.state, Plan(pods=(draft("fits", shape=T4S),)), forecasts_in=fail)
    assert made.outcome == "fits"


def test_a_plan_of_the_past_has_no_forecast(story: Story) -> None:
    """Without forecasts, as for past revisions, the start of a pending pod is left out."""
    made = plan(story.live.state, Plan(pods=(draft("new"),)))
    assert (made.pods[0].outcome, made.pods[0].start) == ("not-now", None)


@pytest.mark.parametrize("different", [True, False])
def test_forecasts_of_a_plan_are_limited(story: Story, *, different: bool) -> None:
    """Equal requests share one forecast, and at most `STARTS_MAX` different ones get one."""
    asked: list[str] = []

    def forecast(pod: PodState) -> StartForecast:
        asked.append(pod.uid)
        return StartForecast(as_of=pod.submitted_time, unknown="little-history")

    drafts = tuple(
        draft(f"new-{number}", priority=number if different else 0)
        for number in range(STARTS_MAX + 5)
    )
    made = plan(story.live.state, Plan(pods=drafts), forecasts_in=lambda _: forecast)
    with_start = [each for each in made.pods if each.start is not None]
    assert len(asked) == (STARTS_MAX if different else 1)
    assert len(with_start) == (STARTS_MAX if different else STARTS_MAX + 5)
