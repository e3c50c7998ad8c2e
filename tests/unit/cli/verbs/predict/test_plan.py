"""Tests of what `plan` prints about the cluster as a whole and about pods that are not in the
manifest."""

import io

import pytest
from click.testing import CliRunner
from msgspec import structs

from apportion.cli.render.output import Screen
from apportion.cli.verbs.predict.plan import _show, _show_pods, _show_waiting, command, totals_words
from apportion.core.answers.plans import Ahead, PlanAnswer, PlannedPod, Totals
from apportion.core.answers.reads import StartForecast
from tests.support.golden import Golden

BEFORE = Totals(
    nodes=2, devices=4, devices_used=1, devices_unhealthy=0, memory_mib=8, memory_free_mib=4,
    placed=1, waiting=0,
)  # fmt: skip
AFTER = Totals(
    nodes=1, devices=2, devices_used=0, devices_unhealthy=1, memory_mib=4, memory_free_mib=4,
    placed=0, waiting=1,
)  # fmt: skip


def test_what_a_change_is_compared_with_is_not_called_the_present(golden: Golden) -> None:
    """`plan` labels the totals without the change "before" and the totals with it "after"."""
    answer = PlanAnswer(revision=7, outcome="fits", sentence="", before=BEFORE, after=AFTER)
    golden({"before and after": totals_words(answer)})


def test_nothing_that_stays_as_it_is_is_told_twice(golden: Golden) -> None:
    """If the totals do not change, `plan` prints them only once."""
    answer = PlanAnswer(revision=7, outcome="fits", sentence="", before=AFTER, after=AFTER)
    golden({"the same": totals_words(answer)})


def waits(name: str, why: str, was: str = "n1", *, line: int = 1) -> PlannedPod:
    """Return a planned pod that loses its place on node `was` and becomes pending."""
    return PlannedPod("default", name, "not-now", cause=why, was=was, line=line)


def test_one_reason_of_many_is_said_once(golden: Golden) -> None:
    """`plan` prints one row for all pods of a gang that are pending for the same reason. Each
    placed pod has its own row."""
    finds = [PlannedPod("default", f"f-{n}", "fits", "fits", was="n1", node="n2") for n in (0, 1)]
    gang = [waits(f"g-{number}", "gang of 4: no room") for number in range(4)]
    pods = [
        finds[0],
        *gang,
        waits("h", "gang of 4: no room", "n3"),
        waits("i", "quota", line=2),
        finds[1],
    ]
    out = Screen(file=io.StringIO(), width=120, color_system=None)
    _show_pods(out, "POD", pods)
    assert isinstance(out.file, io.StringIO)
    golden({"two that fit, four of a gang, one of it elsewhere, one alone": out.file.getvalue()})


def test_when_a_pending_pod_would_start(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    """For a pod that would be pending, `plan` prints when it would start in the words of `why`, and
    in a table of pods as `get pods -o wide` does."""
    band = StartForecast(
        as_of="2100-01-01T00:00:00Z", earliest="2100-01-01T00:05:00Z",
        median="2100-01-01T00:45:00Z", latest="2100-01-01T02:40:00Z", probability=0.8,
        similar=34, judged=200, within=158,
    )  # fmt: skip
    unknown = StartForecast(as_of=band.as_of, unknown="little-history")
    pods = tuple(
        structs.replace(waits(name, "no room", was=""), start=start)
        for name, start in (("a", band), ("a-too", band), ("b", unknown), ("c", None))
    )
    said = {}
    for what, shown_pods in (("one pod", pods[:1]), ("one unknown", pods[2:3]), ("four", pods)):
        _show(PlanAnswer(revision=7, outcome="not-now", sentence="", pods=shown_pods))
        said[what] = capsys.readouterr().out
    golden(said)


def shown(answer: PlanAnswer) -> list[str]:
    """Return the lines that `plan` prints about pending pods outside the manifest."""
    out = Screen(file=io.StringIO(), width=120, color_system=None)
    _show_waiting(out, answer)
    assert isinstance(out.file, io.StringIO)
    return [" ".join(line.split()) for line in out.file.getvalue().splitlines()]


LONG = Ahead("default", "long", 0, 6, "room", line=1)
MOVED = Ahead("default", "moved", 9, 8, "room", line=2)


def test_of_all_before_it_a_row_counts_those_that_are_not_named(golden: Golden) -> None:
    """If many pods are ahead of a pod in the queue, `plan` names some and counts the others."""
    row = Ahead("default", "g-0", 0, 6, "gang", line=3, alike=50)
    pods = (structs.replace(waits("new", "gang"), ahead=60),)
    lines = shown(after(61, row, structs.replace(row, pod="g-1"), pods=pods))
    golden({"60 before it, 50 of them alike": "\n".join(lines)})


def after(waiting: int, *named: Ahead, pods: tuple[PlannedPod, ...] = ()) -> PlanAnswer:
    """Return a plan at revision 7 that leaves `waiting` pods pending, and lists `named` of them."""
    totals = structs.replace(AFTER, waiting=waiting)
    return PlanAnswer(
        revision=7, outcome="fits", sentence="", pods=pods, waiting=named, after=totals
    )


def test_for_whom_nothing_changes_is_counted_and_not_shown(golden: Golden) -> None:
    """`plan` lists each pod that becomes pending because of the plan. Pods that would be pending
    even without the plan are only counted."""
    assert shown(after(0)) == []
    golden({
        "one as before, one for the plan": "\n".join(shown(after(2, LONG, MOVED))),
        "one as before": "\n".join(shown(after(1, LONG))),
        "nine, one of them as before": "\n".join(shown(after(9, LONG))),
    })  # fmt: skip


def test_who_waits_before_a_pod_of_the_manifest_is_shown(golden: Golden) -> None:
    """`plan` lists a pending pod that is ahead of one of the manifest's pods in the queue."""
    pod = PlannedPod(namespace="default", name="new", outcome="not-now", sentence="", ahead=1)
    two, five = (shown(after(waiting, LONG, pods=(pod,))) for waiting in (2, 5))
    assert five[:-1] == two
    golden({"five wait, one of them before it": "\n".join(five)})


def test_a_sentence_ends_its_lines_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a terminal, `plan` wraps its summary between words. Into a pipe, it prints the summary as
    one line."""
    sentence = " ".join(["sentence"] * 30)
    answer = PlanAnswer(revision=7, outcome="fits", sentence=sentence)
    for terminal, lines in ((True, 4), (False, 1)):
        out = Screen(file=io.StringIO(), width=80, color_system=None, force_terminal=terminal)
        monkeypatch.setattr("apportion.cli.verbs.predict.plan.console", lambda out=out: out)
        _show(answer)
        assert isinstance(out.file, io.StringIO)
        said = out.file.getvalue().splitlines()
        assert len(said) == lines
        assert {word for line in said for word in line.split()} == {"sentence"}


def test_help_promises_nothing_of_a_plan_of_nothing() -> None:
    """`plan` without arguments is a usage error. Its help lists the options that work without a
    manifest."""
    assert CliRunner().invoke(command, []).exit_code == 2
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "--lose, --add or --policy" in said
    assert "Without -f, what" not in said
