"""Commit messages have the form that CONTRIBUTING requires, and the hook refuses others."""

import subprocess
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT
from tools.commits import faults

HOOK = "tools/hooks/commit-msg"


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],  # noqa: S607 - the git of this machine
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_commits_since_the_hook_have_the_form() -> None:
    """Every commit since the hook was added has the required form.

    The test is needed because a commit can skip the hook."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository of git: an archive of the sources has no commits")
    first = git("log", "--diff-filter=A", "--format=%H", "--", HOOK).split()
    since = [f"{first[-1]}..HEAD"] if first else ["-1"]
    messages = git("log", "-z", "--format=%B", *since).split("\0")[:-1]
    assert [(message, list(faults(message))) for message in messages if any(faults(message))] == []


@pytest.mark.parametrize(
    "subject",
    ["Fix race in sentinel kill test", "Embed the fonts", "Merge branch 'x'", "Pass the clock on"],
)
def test_a_good_subject(subject: str) -> None:
    """The check accepts imperative commit subjects, and subjects that git writes itself."""
    assert list(faults(f"{subject}\n\nThe reason.\n")) == []


@pytest.mark.parametrize(
    "message",
    [
        "",
        "The test of a killed sentinel waits",
        "Added retries",
        "Adding retries",
        "Adds retries",
        "add retries",
        "Add retries.",
        f"Add {'retries ' * 10}",
        "Add retries\nto the binder",
    ],
)
def test_a_bad_message(message: str) -> None:
    """The check reports exactly one fault for each malformed message."""
    assert len(list(faults(message))) == 1


def test_the_hook_refuses(tmp_path: Path) -> None:
    """For a bad message, the hook exits with 1 and names the fault."""
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("Added retries\n")
    done = subprocess.run([ROOT / HOOK, message], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("commit message: ")) == (1, True)
