"""Tests of the page that lists example manifests, and of the tool that checks these manifests."""

import re
from pathlib import Path

import pytest

from tools.compatibility import table
from tools.examples import FILE, PAGE, Reason, Verdict, manifests, section, verdicts
from tools.examples import Repository as Checkout

REASONS = (Reason("G8", "dependsOn is not supported"),)
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x}]}\n"
WRONG = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: j}
spec: {tasks: [{template: {spec: {containers: [{name: c}]}}, dependsOn: {name: [b]}}]}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {"a.yaml": f"{POD}---\napiVersion: v1\nkind: Service\n", "sub/b.yml": WRONG}
    files |= {"c.json": "{", "notes.txt": "x"}
    for name, text in files.items():
        path = tmp_path / "examples" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return tmp_path


def test_verdicts(checkout: Path) -> None:
    """The tool accepts, skips or refuses each document.

    It shows a refusal with the compatibility row whose pattern matches its message, or with "?"."""
    files = manifests(checkout, ["examples"])
    found = verdicts(files, REASONS)
    shown = {
        path.name: [each._replace(message="") for each in listed] for path, listed in found.items()
    }
    assert shown == {
        "a.yaml": [Verdict("Pod"), Verdict("Service", skipped=True)],
        "c.json": [Verdict(FILE, row="?")],
        "b.yml": [Verdict("Job", row="G8")],
    }


def test_the_table_of_a_repository(checkout: Path) -> None:
    """A repository's section has counts, and a line for each file with a workload."""
    found = verdicts(manifests(checkout, ["examples"]), REASONS)
    lines = list(section(Checkout("o/name", "abc", ("examples",)), checkout, found))
    assert (
        "3 files in `name/examples`: 1 documents accepted, 2 refused, 1 without pods." in lines[3]
    )
    assert lines[-3:] == [
        "| `name/examples/a.yaml` | Pod | - | - |",
        "| `name/examples/c.json` | - | a file | ? |",
        "| `name/examples/sub/b.yml` | - | Job | G8 |",
    ]


def test_each_refusal_on_the_page_is_documented() -> None:
    """Each refused manifest on the committed page has a row of the compatibility table."""
    text = PAGE.read_text("utf-8")
    cells = re.findall(r"\| ([A-Z0-9, ?]+) \|$", text, re.MULTILINE)
    rows = {row for cell in cells for row in cell.split(", ")}
    assert rows
    assert rows <= {row.id for row in table().difference}
