"""Tests of what `apportion migrate status` prints."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner
from msgspec import structs

from apportion.cli.verbs.see.migrate import BACK, STEPS, Advice, command
from apportion.core.answers.reads import (
    BackStep,
    MigrationAnswer,
    MigrationStep,
    PlacedRow,
    SourceRow,
)
from tests.support.answering import answering
from tests.support.golden import Golden

DOCS = Path(__file__).parents[5] / "docs"
HALF_WAY = MigrationAnswer(
    revision=9,
    stage="both",
    step="move-more",
    target="web",
    back="return-namespace",
    back_target="web",
    sources=(
        SourceRow("agent", placeable=True, nodes=2, devices=16, first=("n1", "n2")),
        SourceRow("hami", placeable=True, nodes=1, devices=8, first=("n3",)),
        SourceRow("hami", placeable=False, nodes=1, devices=8, first=("n4",)),
        SourceRow("hami", placeable=False, problem="it has 3 fields", nodes=1, first=("n5",)),
        SourceRow("none", placeable=False, nodes=1200, first=("n6", "n7", "n8", "n9")),
    ),
    namespaces=(
        PlacedRow("web", ours=1, others=1200, left=2),
        PlacedRow("research", ours=9, left=9, pending=1),
    ),
    scheduler_names=("apportion",),
    pods=("web/a", "web/b"),
    pods_count=1200,
    back_pods=("web/c", "web/d"),
    back_pods_count=2,
    tainted=True,
)


def shown(answer: MigrationAnswer, *options: str) -> str:
    """Return what the verb prints for this answer of the gateway."""
    with answering({"migration": answer}) as url:
        done = CliRunner().invoke(command, ["status", "--gateway", url, *options])
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_tables_stage_and_next_step(golden: Golden) -> None:
    """The verb prints the nodes, the pods, the stage, and the next step with its command."""
    said = {"half way": shown(HALF_WAY)}
    for step in get_args(MigrationStep):
        target = "" if step in {"conflict", "shadow", "stop-old-scheduler", "done"} else "n4"
        names = ("web/a", "web/b") if step == "conflict" else ()
        answer = MigrationAnswer(
            revision=9, stage="shadow", step=step, back="uninstall", target=target, overtaken=names,
            overtaken_count=7 if names else 0, scheduler_names=("apportion",),
            sources=HALF_WAY.sources[2:3], pods=("n4/a",), pods_count=1,
        )  # fmt: skip
        said[step] = shown(answer).partition("next:  ")[2]
    alone = structs.replace(HALF_WAY, pods=("web/a",), pods_count=1, pods_alone=True)
    said["no controller"] = shown(alone).partition("next:  ")[2]
    golden(said)


def test_next_step_back(golden: Golden) -> None:
    """With `--back`, the verb prints the pods that need Apportion, and the next step back."""
    said = {"half way": shown(HALF_WAY, "--back")}
    for step in get_args(BackStep):
        target = "" if step in {"conflict", "restore-names", "uninstall"} else "n4"
        answer = MigrationAnswer(
            revision=9, stage="both", step="done", back=step, back_target=target,
            overtaken=("web/a",), overtaken_count=1, unbound=("web/b", "web/c"),
            unbound_count=5, scheduler_names=("apportion",), sources=HALF_WAY.sources[2:3],
            back_pods=("n4/a",), back_pods_count=1,
        )  # fmt: skip
        said[step] = shown(answer, "--back").partition("next:  ")[2]
    golden(said)


def test_json_is_the_answer() -> None:
    """With `--json`, the verb prints the gateway's answer."""
    body = json.loads(shown(HALF_WAY, "--json"))
    assert (body["step"], body["target"], body["stage"]) == ("move-more", "web", "both")


@pytest.mark.parametrize("advice", [*STEPS.values(), *BACK.values()])
def test_each_step_leads_to_a_section_of_the_guide(advice: Advice) -> None:
    """The advice for each step links to an existing page and heading."""
    for link in filter(None, (advice.link, advice.kept)):
        page, _, anchor = link.partition("#")
        text = (DOCS / page).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors
