"""Tests that no fact in an answer depends on the wording of a sentence.

Every answer is built twice from one state, the second time with *lorem ipsum* for every sentence.
Only sentences may then differ."""

from collections.abc import Iterator

import msgspec
import pytest

from apportion.core.answers.plans import PlanRequest
from apportion.core.answers.reads import Answer, WhyRefused
from apportion.core.explain import causes
from apportion.core.explain.tenant_redaction import redacted
from apportion.core.explain.text import answer_text, words
from apportion.core.explain.views import device_answers, node_answer, pod_answer
from apportion.core.explain.waiting_lines import lines_answer
from apportion.core.explain.why import why
from apportion.lab.planning import plan, plan_of
from apportion_schemas import DeviceCordoned, NodeCordoned
from tests.support.fleet import T4, rack
from tests.support.ledger_of import Ledger
from tests.support.lorem import differences, replaced
from tests.support.pods import ask, pod

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  schedulerName: apportion
  containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: COUNT}}}]
"""


def a_ledger() -> Ledger:
    """Return a ledger with a pending pod and a pod that never fits. Both were refused before
    operators cordoned a node and a device."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), rack("small", 1, model=T4))
    ledger.submit(pod("holds-1", ask(70_000)), pod("holds-2", ask(70_000))).settle()
    ledger.submit(pod("large", ask(60_000)), pod("never", ask(900_000))).settle()
    return ledger.play(
        NodeCordoned(node="n2", by="ann", reason="fan"),
        DeviceCordoned(device="n1-g0", by="bob", reason="noise"),
    )


def plans(ledger: Ledger) -> Iterator[PlanRequest]:
    """Yield planning requests for pods that fit, must wait, never fit or already exist.

    Some of the plans also change the nodes or the policy."""
    pods = (("holds-1", 1), ("large", 1), ("small", 1), ("two", 2), ("huge", 9))
    texts = {name: MANIFEST.replace("NAME", name).replace("COUNT", str(n)) for name, n in pods}
    yield PlanRequest(files=texts)
    yield PlanRequest(files=texts, lose=("n1",), add=("2x1xT4",), policy="spread")
    yield PlanRequest(drain=("n1", "n2"))


def answers(ledger: Ledger) -> list[Answer]:
    """Return every answer: unredacted, and redacted for a user with all namespaces or with none."""
    state = ledger.state
    found: list[Answer] = [why(state, each) for each in state.pods.values()]
    found += [pod_answer(state, each) for each in state.pods.values()]
    found += [node_answer(each) for each in state.nodes.values()]
    found += [device for each in state.nodes.values() for device in device_answers(each)]
    found += [lines_answer(state)]
    found += [plan(state, plan_of(each, state)) for each in plans(ledger)]
    return [
        *found,
        *(redacted(each, lambda _: True) for each in found),
        *(redacted(each, lambda _: False) for each in found),
    ]


def differing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the facts that change in the answers when every sentence is replaced."""
    ledger = a_ledger()
    before = msgspec.to_builtins(answers(ledger), str_keys=True)
    assert replaced(monkeypatch.setattr) > 50
    after = msgspec.to_builtins(answers(ledger), str_keys=True)
    assert before != after
    as_lists = [msgspec.json.decode(msgspec.json.encode(each)) for each in (before, after)]
    return list(differences(*as_lists))


def test_with_other_sentences_the_facts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fact in the answers is the same when all sentences are replaced."""
    assert differing(monkeypatch) == []


def test_code_that_reads_a_sentence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison detects code that derives a fact from a sentence."""

    def reads(refused: WhyRefused) -> WhyRefused:
        made = answer_text.refused_with_text(refused)
        parts = len(words.nodes(2).split(";")) + refused.since_more
        return msgspec.structs.replace(made, since_more=parts)

    monkeypatch.setattr(causes, "refused_with_text", reads)
    assert any(path.endswith(".since_more") for path in differing(monkeypatch))
