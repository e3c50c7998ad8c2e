"""CONTRIBUTING's recipes for adding a filter, a score and a refusal code work in a copy.

Each test edits exactly as many files as its recipe names. The addition must then appear in every
interface."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODES = "schemas/apportion_schemas/placement.py"
POLICIES = "schemas/apportion_schemas/operations.py"
NODES = "services/apportion/core/placement/feasibility/nodes.py"
CAUSES = "services/apportion/core/placement/feasibility/causes.py"
SCORES = "services/apportion/core/placement/scores/nodes.py"

Edits = tuple[tuple[str, str, str], ...]
"""(file, text to insert after, inserted text)"""

CODE: Edits = ((CODES, "\n    @classmethod\n    def _missing_", '    MOON_WANES = "MoonWanes"\n'),)
CAUSE = 'Cause(_C.MOON_WANES, "the moon wanes over the node", "wait a month on {node}", '
MOON = '''def moon(shape: Shape, node: NodeState) -> tuple[int, int]:
    """No moon wanes there."""
    del shape
    return NO if node.name.startswith("moon") else YES


'''
FILTER: Edits = (
    *CODE,
    (NODES, "NodeCheck = Callable", MOON),
    (
        NODES,
        ')  # fmt: skip\n"""Causes whose check gives the same result until',
        f'    {CAUSE}TOLD, check=moon, closes=lambda node: "moon" in node.name),\n',
    ),
)
REFUSAL: Edits = (
    *CODE,
    (CAUSES, ')  # fmt: skip\n"""What keeps a pod from every node', f"    {CAUSE}CLAIMED),\n"),
)
MOONLIT = '''class Moonlit(Spread):
    """The node under the moon."""

    policy = "moonlit"


'''
SCORE: Edits = (
    (POLICIES, ' "bestfit", "binpack", "spread"]', ' "moonlit",'),
    (
        POLICIES,
        '    "bestfit": PolicyText(',
        '    "moonlit": PolicyText("the node under the moon", "to where the moon shines"),\n',
    ),
    (SCORES, "LOADS: Final", MOONLIT),
    (SCORES, '    "bestfit": Bestfit,\n', '    "moonlit": Moonlit,\n'),
)

REFUSED = """
import json
from apportion.core.explain.text import words
from apportion.core.explain.waiting_lines import lines_answer
from apportion.core.explain.why import why
from apportion.core.placement.queueing.hints import BY_REASON
from apportion.lab.fitting import EmptyFleet
from apportion_schemas import PodRefused, RefusalCode
from msgspec import json as encoded
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod
from tools.reference import refusals, scores_and_filters
code = RefusalCode("MoonWanes")
ledger = Ledger(observed(NODE), rack(NODE, 1)).submit(pod("p", ask(1))).settle()
refusal = ledger.pod("p").refusal
if refusal is None:
    ledger = Ledger(rack(NODE, 1)).submit(pod("p", ask(1)))
    refusal = PodRefused(pod="p", namespace="default", name="p", reasons={code: 1}, nodes=1)
    ledger.play(refusal)
print(json.dumps({
    "reasons": {k.value: v for k, v in refusal.reasons.items()},
    "what_if": EmptyFleet(ledger.state).lasting(ledger.pod("p")) is not None,
    "known": code.name,
    "hints": len(BY_REASON[code]),
    "sentence": words.refusal(refusal),
    "why": encoded.encode(why(ledger.state, ledger.pod("p"))).decode(),
    "lines": encoded.encode(lines_answer(ledger.state)).decode(),
    "page": scores_and_filters() + refusals(),
}))
"""
SCORED = """
import json
from click.testing import CliRunner
from apportion.cli.verbs.act.policy import command as policy
from apportion.cli.verbs.predict.plan import command as plan_verb
from apportion.gateway.console.console import vocabulary
from apportion.lab.changes import Changes
from apportion.lab.planning import Plan, plan
from apportion_schemas import PolicyChanged
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod
from tools.reference import scores_and_filters
ledger = Ledger(rack("n1", 1), rack("n2", 1))
ledger.play(PolicyChanged(by="ann", node_policy="moonlit", device_policy="spread"))
ledger.submit(pod("p", ask(1))).settle()
tried = plan(ledger.state, Plan(changes=Changes(policy="moonlit"), pods=()))
print(json.dumps({
    "score": ledger.placement("p").score.parts,
    "what_if": tried.revision,
    "set": CliRunner().invoke(policy, ["set", "--help"]).output,
    "plan": CliRunner().invoke(plan_verb, ["--help"]).output,
    "console": vocabulary().decode(),
    "page": scores_and_filters(),
}))
"""


def follow(copy: Path, edits: Edits) -> int:
    """Copy the product, and apply a recipe's edits to the copy. Return how many files changed."""
    for folder in ("services", "schemas", "tools"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "static", "json")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for path, before, text in edits:
        source = (copy / path).read_text("utf-8")
        assert source.count(before) == 1, f"{path} has no such place: {before!r}"
        (copy / path).write_text(source.replace(before, text + before), "utf-8")
    return len({path for path, _, _ in edits})


def answers(copy: Path, program: str) -> dict[str, Any]:
    """Run a program in a process that imports the copy, and return the JSON that it prints."""
    paths = (copy / "services", copy / "schemas", copy, ROOT)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("edits", "node"), [(FILTER, "moon-1"), (REFUSAL, "n1")])
def test_a_filter_and_a_refusal_code_are_two_files(tmp_path: Path, edits: Edits, node: str) -> None:
    """Adding a filter or a refusal code changes two files."""
    assert follow(tmp_path, edits) == 2
    found = answers(tmp_path, f"NODE = {node!r}\n{REFUSED}")
    if edits is FILTER:
        assert found["reasons"] == {"MoonWanes": 1}
    assert found["known"] == "MOON_WANES"
    assert found["hints"]
    for surface in ("sentence", "why", "lines", "page"):
        assert "the moon wanes over the node" in found[surface], surface
    (cause,) = json.loads(found["why"])["refused"]["causes"]
    named = node if edits is FILTER else "NODE"  # nothing says which node the other refuses
    assert (cause["code"], cause["unblocked_by"]) == ("MoonWanes", f"wait a month on {named}")
    assert json.loads(found["why"])["refused"].get("never", False) == (edits is FILTER)
    assert found["what_if"] == (edits is FILTER)


def test_a_score_is_two_files(tmp_path: Path) -> None:
    """A new score takes two files: its name in the schemas, and its function."""
    assert follow(tmp_path, SCORE) == 2
    found = answers(tmp_path, SCORED)
    assert list(found["score"]) == ["moonlit"]
    assert found["what_if"]
    assert "the node under the moon" in found["set"]
    assert "moonlit" in found["plan"]
    assert '"moonlit"' in found["console"]
    assert "`moonlit` | the node under the moon" in found["page"]
