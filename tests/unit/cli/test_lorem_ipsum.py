"""Tests that verbs decide nothing by the wording of a sentence. The tests replace every sentence in
the gateway's answers, and then expect the same exit codes and facts."""

import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from apportion.cli.exits import NEVER
from apportion.cli.main import root
from apportion.core.answers.past import DiffAnswer, MomentAnswer, WhoPage
from apportion.core.answers.plans import PlanAnswer, PlanLine, PlanRequest
from apportion.core.answers.reads import Answer, Page
from apportion.core.explain.views import pod_answer
from apportion.core.explain.why import why
from apportion.lab.planning import plan, plan_of
from apportion_schemas import DeviceCordoned, NodeCordoned
from tests.support.answering import answering, answers_of
from tests.support.fleet import T4, rack
from tests.support.ledger_of import Ledger
from tests.support.lorem import LOREM, differences, replaced, reworded
from tests.support.pods import ask, pod

MOMENT = MomentAnswer(revision=9, time="2026-01-01T00:00:00Z")
PODS = ("holds-1", "holds-2", "large", "never")
FLOWS = (
    *(("why", f"default/{name}") for name in PODS),
    ("get", "pods"),
    ("get", "nodes"),
    ("get", "devices"),
    ("who", "n1"),
    ("diff", "--from", "1"),
    ("plan", "--lose", "n1"),
)


def answers() -> dict[str, Answer]:
    """Return a gateway's answers about a cluster with two running pods, a pending pod and one that
    can never fit."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), rack("small", 1, model=T4))
    ledger.submit(pod("holds-1", ask(70_000)), pod("holds-2", ask(70_000))).settle()
    ledger.submit(pod("large", ask(60_000)), pod("never", ask(900_000))).settle()
    ledger.play(
        NodeCordoned(node="n2", by="ann", reason="fan"),
        DeviceCordoned(device="n1-g0", by="bob", reason="noise"),
    )
    state = ledger.state
    pods = [ledger.pod(name) for name in PODS]
    wish = plan_of(PlanRequest(lose=("n1",)), state)
    return answers_of(ledger) | {
        "pods": Page(revision=9, items=tuple(pod_answer(state, each) for each in pods)),
        **{f"pods/{each.full_name}/why": why(state, each) for each in pods},
        "who": WhoPage(revision=9, since=9, items=()),
        "moment": MOMENT,
        "diff": DiffAnswer(revision=9, begin=MOMENT, end=MOMENT),
        "plan": PlanLine(answer=plan(state, wish)),
    }


def other(answer: Answer) -> Answer:
    """Return the answer with all its sentences replaced."""
    decoded = msgspec.json.decode(msgspec.json.encode(answer))
    return msgspec.convert(reworded(decoded), type(answer), strict=False)


def done(answered: dict[str, Answer], flow: tuple[str, ...], *options: str) -> Result:
    """Run the verb and arguments in `flow` against a gateway with these answers, and return the
    result."""
    with answering(answered) as url:
        return CliRunner().invoke(root, [*flow, "--gateway", url, *options])


@pytest.mark.parametrize("flow", FLOWS, ids=" ".join)
def test_verbs_read_no_sentence(monkeypatch: pytest.MonkeyPatch, flow: tuple[str, ...]) -> None:
    """The wording of messages affects neither exit codes nor the facts in `--json` output."""
    known = answers()
    shown, printed = done(known, flow), done(known, flow, "--json")
    assert replaced(monkeypatch.setattr) > 50
    worded = {path: other(answer) for path, answer in known.items()}
    shown_other, printed_other = done(worded, flow), done(worded, flow, "--json")
    assert (shown.exit_code, printed.exit_code) == (shown_other.exit_code, printed_other.exit_code)
    before, after = json.loads(printed.stdout), json.loads(printed_other.stdout)
    assert list(differences(before, after)) == []


def test_other_sentences_are_shown() -> None:
    """Verbs print the sentences of the gateway's answer as they are. The exit code of `plan`
    depends only on the answer's outcome."""
    known: dict[str, Any] = {path: other(answer) for path, answer in answers().items()}
    assert LOREM in done(known, ("why", "default/large")).stdout
    plan_line = known["plan"]
    assert isinstance(plan_line.answer, PlanAnswer)
    assert any(each.cause == LOREM for each in plan_line.answer.waiting)
    never = msgspec.structs.replace(plan_line.answer, outcome="never")
    known["plan"] = msgspec.structs.replace(plan_line, answer=never)
    assert done(known, ("plan", "--lose", "n1")).exit_code == NEVER
