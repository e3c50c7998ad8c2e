"""Tests of how the gateway redacts answers for a tenant if rows have no namespace field or combine
several namespaces."""

from typing import Any

import msgspec
import pytest

from apportion.core.answers.past import DiffAnswer, DiffRow, MomentAnswer, Side
from apportion.core.answers.plans import PlanAnswer
from apportion.core.answers.reads import (
    GangAnswer,
    GangPage,
    LinesAnswer,
    Part,
    QueueAnswer,
    QueuePage,
)
from apportion.core.answers.visibility import OF_OTHERS, OTHERS
from apportion.core.explain.explainer import queue_answers
from apportion.core.explain.fleet_rows import FleetAnswer
from apportion.core.explain.text.answer_text import diff_with_text
from apportion.core.explain.waiting_lines import lines_answer
from apportion.core.explain.why import why
from apportion.core.reports.answers import LostAnswer, LostRow, ReportAnswer, ReportRow
from apportion.gateway.access.redaction_rules import LOOKS, is_shown, look_at
from apportion.lab.changes import Changes
from apportion.lab.planning import Plan, plan
from apportion_schemas import QueueObserved, QuotaObserved
from tests.support.endpoints import endpoint_at
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, pod

NOW = MomentAnswer(revision=9, time="2026-01-01T00:00:00Z")


def row(name: str, cause: str = "") -> DiffRow:
    """Return a row of a diff whose sentence contains the row's name."""
    namespace, slash, own = name.partition("/")
    part = Part(name=own, namespace=namespace) if slash else Part(name=name)
    row = DiffRow(name=name, what="x", now=Side(value="x"), parts=(part, " is gone"),
                  by="watcher", cause=cause)  # fmt: skip
    return diff_with_text(row)


def as_sent(answer: msgspec.Struct) -> Any:
    """Encode the answer as JSON, and return the decoded JSON."""
    return msgspec.json.decode(msgspec.json.encode(answer))


def test_differences_tell_nothing_of_others() -> None:
    """A tenant's diff hides names, people, limits and evictions of other namespaces. Rows of the
    tenant's own namespace are complete."""
    mine = row("ml/mine", "deleted by mei")
    answer = DiffAnswer(
        revision=9, begin=NOW, end=NOW, waiting=(mine, row("ops/secret")),
        placements=(
            mine, row("ops/secret", "drained by olga"), row("ml/b", "evicted for ops/boss"),
        ),
        limits=(row("quota ops/secret"), row("queue all")), configuration=(row("key"),),
    )  # fmt: skip
    shown: dict[str, Any] = seen_by_ml("diff", answer)
    for told in ("ops", "olga", "secret", "boss", "queue all"):
        assert told not in str(shown)
    assert shown["waiting"][0] == shown["placements"][0] == as_sent(mine)
    assert (shown["limits"], len(shown["waiting"]), len(shown["placements"])) == ([], 2, 3)


def test_the_place_of_a_hidden_row_does_not_tell_its_name() -> None:
    """Rows of other namespaces are sorted only by values that the tenant sees. Otherwise their
    position would hint at their names."""
    gangs = [
        GangAnswer(
            group=name, namespace=name.partition("/")[0], min_available=least, declared=True
        )
        for name, least in (("a/x", 3), ("ml/x", 1), ("z/x", 2))
    ]  # fmt: skip
    page = seen_by_ml("gangs", GangPage(revision=9, items=tuple(gangs)))
    assert [each["min_available"] for each in page["items"]] == [1, 2, 3]
    rows = (row("a/x"), row("ml/x"), row("z/x"))
    found = seen_by_ml("diff", DiffAnswer(revision=9, begin=NOW, end=NOW, waiting=rows))
    assert [each["name"] == "ml/x" for each in found["waiting"]] == [True, False, False]


def seen_by_ml(path: str, answer: msgspec.Struct) -> Any:
    """Return the answer as the gateway sends it to a tenant who may read only the namespace
    `ml`."""
    look = look_at(endpoint_at(path))
    sent = msgspec.json.decode(msgspec.json.encode(answer), type=look.kind)
    return as_sent(look.shown(sent, lambda namespace: namespace == "ml"))


def waiting(*namespaces: str, limit: int = 99) -> LinesAnswer:
    """Return the groups of pending pods in a cluster with one GPU. One pod of the namespace `ops`
    and one pod of each given namespace request that GPU.

    The namespace `ops` has a quota of `limit` GPUs."""
    ledger = Ledger(rack("n1", 1))
    ledger.play(QuotaObserved(namespace="ops", quota="merger", hard={"nvidia.com/gpu": limit}))
    for number, namespace in enumerate(("ops", *namespaces)):
        ledger.submit(pod(f"u{number}", cards(1), namespace=namespace)).settle()
    return lines_answer(ledger.state)


def test_a_limit_of_another_namespace_is_told_to_nobody_else() -> None:
    """A tenant sees why its own pods are pending, but not the limit of another namespace."""
    whole = waiting("ops", "ml", limit=1)
    assert "merger" in whole.lines[0].sentence
    shown = seen_by_ml("lines", whole)
    assert "merger" not in str(shown)
    assert "nvidia.com/gpu" not in str(shown)
    theirs, mine = shown["lines"]
    assert (theirs["whose"], theirs["sentence"]) == (OTHERS, OF_OTHERS)
    assert (theirs["causes"], theirs["nearest"], theirs["nodes"]) == ([], [], 0)
    assert (theirs["queue"], theirs["gang"]) == ("", None)
    assert (theirs["wants"], theirs["pods"]) == (whole.lines[0].wants, 1)
    assert mine["sentence"].startswith("no node fits")
    assert msgspec.convert(shown, LinesAnswer).lines[1].whose == "ml"


def test_a_line_that_another_heads_says_why_his_own_pod_waits() -> None:
    """A group of identical pending pods may start with a pod of another namespace. A tenant still
    sees why the tenant's own first pod is pending."""
    whole = waiting("ops", "ml")
    [line] = seen_by_ml("lines", whole)["lines"]
    assert line["sentence"] == whole.lines[0].first[1].sentence != ""
    assert (line["whose"], line["causes"], line["nearest"]) == (OTHERS, [], [])
    [his_first] = seen_by_ml("lines", waiting("ml", "ops"))["lines"]
    assert (his_first["whose"], len(his_first["causes"])) == ("ml", 1)


def test_a_line_at_which_nobody_has_looked_says_no_more_to_him() -> None:
    """While the scheduler has yet to decide about a group of pods, a tenant sees the group without
    a reason."""
    ledger = Ledger(rack("n1", 1), pod("u1", cards(1), namespace="ops", name="secret"))
    [line] = seen_by_ml("lines", lines_answer(ledger.state))["lines"]
    assert (line["whose"], line["sentence"]) == (OTHERS, "")


@pytest.mark.parametrize("namespace", ["ops", "ml"])
def test_of_a_queue_he_learns_what_it_allows_and_not_what_pods_hold(namespace: str) -> None:
    """A tenant sees the limits of a queue but never its usage, even if the tenant's own pods are in
    it."""
    ledger = Ledger(rack("n1", 1), QueueObserved(queue="q", weight=3, capability={"cpu": 4000}))
    ledger.submit(*(pod(uid, cards(1), namespace=namespace, queue="q") for uid in "ab")).settle()
    items = queue_answers(ledger.state, ["q"])
    assert (items[0].pods, items[0].waiting, items[0].used) == (1, 1, {"cpu": 0})
    shown = msgspec.convert(seen_by_ml("queues", QueuePage(revision=9, items=items)), QueuePage)
    left_out = QueueAnswer(
        queue="q", weight=3, open=True, capability={"cpu": 4000},
        used=None, devices=None, pods=None, waiting=None, parts=None, past_use=None,
    )  # fmt: skip
    assert [*shown.items] == [left_out]


def test_cards_and_resources_of_a_queue_keep_their_names() -> None:
    """A queue shows tenants its GPU models and resources by name, even if such a name looks like
    `namespace/name`."""
    limits = {"a100/mig-1g.5gb-mixed": 1, "t4/mps-4g-1/2": 2, "A100/mig-1g.5gb-mixed": 3}
    queue = QueueAnswer(queue="q", weight=1, open=True, cards=limits, capability=limits)
    [shown] = seen_by_ml("queues", QueuePage(revision=9, items=(queue,)))["items"]
    assert (shown["cards"], shown["capability"]) == (limits, limits)


def test_namespaces_of_others_are_one_row_of_a_report() -> None:
    """A report merges all namespaces that a tenant may not read into one row. The totals stay the
    same."""
    steps = (
        ReportRow(key="ml", start="t0", allocated_gpu_hours=1.0),
        ReportRow(key="ops", start="t0", allocated_gpu_hours=2.0),
        ReportRow(key="web", start="t1", allocated_gpu_hours=3.0),
        ReportRow(key="", start="t1", free_gpu_hours=9.0),
    )
    rows = (
        ReportRow(key="ops", allocated_gpu_hours=2.0, cost=0.2, reported_gpu_hours=1.0),
        ReportRow(key="ml", allocated_gpu_hours=1.0, cost=0.1),
        ReportRow(key="web", allocated_gpu_hours=3.0, cost=0.3),
    )
    total = ReportRow(key="", allocated_gpu_hours=6.0, cost=0.6, free_gpu_hours=9.0)
    answer = ReportAnswer(
        revision=9, report="cost", by="namespace", start="t0", end="t2", rows=rows, total=total,
        steps=steps,
    )  # fmt: skip
    shown = msgspec.convert(seen_by_ml("report/cost", answer), ReportAnswer)
    mine, others = shown.rows
    assert mine == rows[1]
    assert (others.key, others.allocated_gpu_hours, others.cost) == (OTHERS, 5.0, 0.5)
    assert others.reported_gpu_hours == 1.0
    assert shown.total == total
    assert [(each.key, each.start, each.allocated_gpu_hours) for each in shown.steps] == [
        ("ml", "t0", 1.0), ("", "t1", 0.0), (OTHERS, "t0", 2.0), (OTHERS, "t1", 3.0),
    ]  # fmt: skip


def test_lost_hours_of_others_are_one_row() -> None:
    """A tenant sees the total of lost hours, and how many of them no pod requested. The lost hours
    of all other namespaces are one row, in the period and in each step."""
    rows = (
        LostRow(key="", no_demand_gpu_hours=9.0),
        LostRow(key="ops", start="t0", quota_gpu_hours=2.0, lost_cost=0.2),
        LostRow(key="ml", start="t0", idle_gpu_hours=1.0, lost_cost=0.1),
        LostRow(key="web", start="t0", quota_gpu_hours=3.0, lost_cost=0.3),
    )
    answer = LostAnswer(
        revision=9, by="namespace", start="t0", end="t1", rows=rows, steps=rows,
        total=LostRow(key="", lost_gpu_hours=15.0),
    )  # fmt: skip
    shown = msgspec.convert(seen_by_ml("report/lost", answer), LostAnswer)
    assert shown.total == answer.total
    assert shown.steps == shown.rows
    unallocated, mine, others = shown.rows
    assert (unallocated, mine) == (rows[0], rows[2])
    assert (others.key, others.quota_gpu_hours, others.lost_cost) == (OTHERS, 5.0, 0.5)


def test_a_report_by_node_is_everybodys() -> None:
    """A tenant sees the complete usage report by node."""
    row = ReportRow(key="n1", allocated_gpu_hours=2.0)
    answer = ReportAnswer(
        revision=9, report="usage", by="node", start="t0", end="t2", rows=(row,), total=row
    )
    assert seen_by_ml("report/usage", answer) == as_sent(answer)


@pytest.mark.parametrize(
    ("path", "query", "is_it"),
    [
        ("report/usage", {}, True), ("report/idle", {"by": "node"}, True),
        ("report/lost", {"by": "model"}, True), ("report/lost", {"by": "queue"}, False),
        ("report/usage", {"by": "user"}, False), ("report/cost", {"by": "label:team"}, False),
        ("report/cost", {"by": "queue"}, False), ("report/usage", {"format": "csv"}, False),
        ("pods", {"by": "user"}, True), ("configuration", {}, False), ("doctor", {}, False),
    ],
)  # fmt: skip
def test_reports_whose_rows_are_of_several_namespaces_are_not_shown(
    path: str, query: dict[str, str], is_it: bool
) -> None:
    """A tenant gets no report by user, label or queue, because each row of such a report adds up
    several namespaces."""
    assert is_shown(endpoint_at(path), query) == is_it


def test_a_plan_tells_where_others_would_go_in_a_form_that_can_be_read() -> None:
    """A tenant's plan shows where pods of other namespaces would go and what they use, but not
    their names."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), rack("n3", 1))
    for name, namespace in (("a", "ops"), ("b", "ops"), ("c", "ml")):
        ledger.submit(pod(name, cards(1), namespace=namespace, name=f"secret-{name}")).settle()
    lost = [ledger.state.pods[name].placement.node for name in ("a", "b")]  # type: ignore[union-attr]
    answer = plan(ledger.state, Plan(changes=Changes(lose=tuple(lost), add=("1x1xA100-80GB",))))
    shown = seen_by_ml("plan", answer)
    for told in ("secret-a", "secret-b", "ops"):
        assert told not in str(shown)
    moved = {each.outcome: each for each in msgspec.convert(shown, PlanAnswer).moved}
    assert moved["fits"].was in lost
    placed = moved["fits"].placed
    assert placed is not None
    assert (placed.node, moved["fits"].node) == ("added-1", "added-1")
    assert placed.shares[0].share.memory_mib > 0
    assert moved["not-now"].refused is not None


def test_how_many_hold_a_queue_is_told_to_nobody_else() -> None:
    """If a tenant's pod is pending because of a queue's limit, the tenant does not see how many
    pods of other namespaces use the queue."""
    ledger = Ledger(rack("n1", 8))
    ledger.play(QueueObserved(queue="all", capability={"volcano.sh/vgpu-number": 7}))
    for number in range(7):
        ledger.submit(pod(f"s{number}", cards(1), namespace="ops", queue="all")).settle()
    ledger.submit(pod("m", cards(1), namespace="ml", queue="all", priority=9)).settle()
    answer = why(ledger.state, ledger.pod("m"))
    assert answer.refused is not None
    assert (answer.refused.causes[0].held_by[0], answer.refused.causes[0].holders) == ("ops/s0", 7)
    shown = seen_by_ml("pods/ml/m/why", answer)
    [cause] = shown["refused"]["causes"]
    assert (cause["held_by"], cause["holders"]) == ([OF_OTHERS], 0)
    assert "ops" not in cause["unblocked_by"]
    assert "Pods of lower priority use part of the limit" in shown["sentence"]


def test_the_fleet_is_shown_with_pods_of_others_without_their_names() -> None:
    """A tenant sees all nodes and devices. Pods of other namespaces are shown without name and
    usage."""
    own, theirs = (["ml", "a", "placed", [0, 250, 0], ""], ["x", "b", "placed", [0, 500, 0], ""])
    node = ["n1", "H100", 1, "", [["H100", 1000]], [0, 0, 0], {}, [own, theirs], {}]
    used = ["n1", [["ml/a", 0, 0.5], ["x/b", 0, 0.5]]]
    answer = {"revision": 1, "whole": True, "nodes": [node], "used": [used]}
    look = LOOKS[FleetAnswer]
    whole = msgspec.json.decode(msgspec.json.encode(answer), type=look.kind)
    assert look.namespaces(whole) == {"ml", "x"}
    shown = as_sent(look.shown(whole, {"ml"}.__contains__))
    [[name, *_, pods, _, _]] = shown["nodes"]
    assert name == "n1"
    assert pods[0] == own
    assert pods[1][0] == OTHERS
    assert "b" not in pods[1]
    assert shown["used"] == [["n1", [["ml/a", 0, 0.5]]]]
