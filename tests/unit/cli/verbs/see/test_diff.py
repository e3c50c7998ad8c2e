"""Tests of the tables that `diff` prints: where each pod was before, where it is after, and which
event caused the change."""

import io

from click.testing import CliRunner
from msgspec import structs
from rich.console import Console

from apportion.cli.verbs.see.diff import FROM_THE_FIRST, LISTS, command, rows_of
from apportion.core.answers.past import DiffAnswer, DiffRow, MomentAnswer, Side
from apportion.core.explain.differences import SHOWN
from apportion.core.explain.text.answer_text import diff_with_text
from apportion_schemas import Share
from tests.support.answering import answering
from tests.support.golden import Golden

CARDS = tuple(
    Share(container="main", device=device, memory_mib=32_768, cores=100)
    for device in ("GPU-1a2b3c4d", "GPU-2b3c4d5e", "GPU-3c4d5e6f", "GPU-4d5e6f70")
)


def shown(name: str, *rows: DiffRow, width: int) -> list[str]:
    """Print these rows as the list `name` of a diff, on a terminal of this width. Return the
    printed lines."""
    out = io.StringIO()
    Console(file=out, width=width).print(rows_of(name, rows))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_what_the_first_event_told_is_said_to_be_there_before() -> None:
    """If a diff starts at revision 1, `diff` prints a note that it does not show the first event as
    a change."""
    said = []
    for begin in (1, 2):
        first, last = (MomentAnswer(each, "2026-01-02T03:04:05Z") for each in (begin, 9))
        with answering({"diff": DiffAnswer(revision=9, begin=first, end=last)}) as url:
            done = CliRunner().invoke(command, ["--from", str(begin), "--gateway", url])
        said.append(done.stdout.splitlines())
    assert said[0][1:] == [FROM_THE_FIRST, "no changes"]
    assert said[1][1:] == ["no changes"]


NOWHERE = Side()


def held(node: str, device: str, memory_mib: int) -> Side:
    """Return one side of a diff: a pod with a share of this much memory on one GPU."""
    share = Share(container="main", device=device, memory_mib=memory_mib, cores=0)
    return Side(node=node, shares=(share,))


HELD = held("n1", "g0", 1)


def moved(before: Side, after: Side) -> DiffRow:
    """Return the diff row of a pod whose placement changed from `before` to `after`."""
    name = "default/distributed-gpu-training-worker-0"
    row = DiffRow(name=name, what="placement", was=before, now=after, revision=129,
                  time="2026-01-02T03:04:05.678Z", by="scheduler/one")  # fmt: skip
    return diff_with_text(row)


def test_a_pod_that_moved_is_one_line_at_80_columns(golden: Golden) -> None:
    """At 80 columns, a pod that moved takes one line, which ends with the revision. On a wide
    terminal, the line also has the pod's shares."""
    row = moved(Side(node="v100-1", shares=CARDS), Side(node="a100-1", shares=CARDS))
    narrow, wide = (shown("placements", row, width=width) for width in (80, 300))
    assert [len(narrow), len(wide)] == [2, 2]
    golden({"80 columns": "\n".join(narrow), "300 columns": "\n".join(wide)})


def test_a_column_of_nothing_is_left_out() -> None:
    """`diff` leaves out a column that is empty in every row."""
    lines = shown("placements", moved(NOWHERE, Side(node="n1", shares=CARDS)), width=300)
    assert ("SHARES BEFORE" in lines[0], "SHARES AFTER" in lines[0]) == (False, True)


def test_a_pod_that_came_went_or_holds_something_else_where_it_is(golden: Golden) -> None:
    """`diff` says if a pod is new, has ended or was resized."""
    lines = shown(
        "placements", moved(NOWHERE, HELD), moved(HELD, NOWHERE), moved(HELD, held("n1", "g0", 2)),
        width=80,
    )  # fmt: skip
    golden({"came, went, holds more": "\n".join(lines)})


def test_what_a_resized_pod_holds_is_said_once() -> None:
    """For a resized pod, `diff` prints its shares once, not for both sides."""
    resized = moved(HELD, held("n1", "g0", 2))
    [head, line] = shown("placements", resized, width=300)
    assert ("SHARES BEFORE" in head, "SHARES AFTER" in head) == (False, False)
    assert line.count("g0 1 MiB") == line.count("g0 2 MiB") == 1
    [_, again, _] = shown("placements", resized, moved(HELD, held("n2", "g1", 1)), width=300)
    assert again == line


def test_why_a_pod_had_to_go_stands_for_who_placed_it_elsewhere() -> None:
    """If an event says why a pod had to move, `diff` prints that reason instead of the name of the
    service that placed the pod."""
    drained = structs.replace(moved(HELD, held("n2", "g0", 1)), cause="drained by ann: fan")
    assert shown("placements", drained, width=300)[1].endswith(f"Z {drained.cause}")


def test_pods_that_wait_and_limits_are_lists_of_their_own(golden: Golden) -> None:
    """`diff` prints pending pods and changed limits as separate tables, each with its own
    columns."""
    waits = DiffRow(name="default/a", what="waiting", before="", after="pending", by="agent")
    assert shown("waiting", waits, width=80)[1].split() == ["default/a", "-", "pending", "agent"]
    limit = DiffRow(name="queue ml", what="weight", before="1", after="2", by="watcher")
    golden({"limits": "\n".join(shown("limits", limit, width=80))})
    assert set(LISTS) == set(SHOWN), "whatever is compared is shown"
