"""The commands in the README and the laptop tour run, and print what the pages show.

A ```console block holds commands behind `$ `, each with its output. Times, ids, revisions, ports
and amounts that depend on the run are normalised on both sides. Any run of blanks counts as one.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.polling import wait_until
from tests.support.standalone import Standalone
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow
PAGES = ("README.md", "docs/get-started/laptop.md")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
COLUMNS = "100"
REFUSED = {"apportion submit -f examples/too-large.yaml --wait", "apportion plan --lose ascend-1"}
"""Commands whose answer is bad news, so that their exit code is not 0."""
UNSTABLE = (
    (re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?Z)?"), "DATE"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b(GPU|NPU)-[0-9a-f]{8}[0-9a-f-]*(\+(GPU|NPU)-[0-9a-f]{8})*"), "DEVICE"),
    (re.compile(r"\b(revisions?) [\d,]+( to [\d,]+)?"), r"\1 N"),
    (re.compile(r"\b(a100|a100-mig|h100|l40s-mps|t4|v100)-\d\b"), "NODE"),
    (re.compile(r"(moved to|restarted on) NODE"), "moved to NODE"),  # which pods of the gang
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"(?<=data in )\S+|(?<=placed )[\d.]+(?= s after)|(?<=ready after )[\d.]+"), "X"),
    (re.compile(r"(?<=[(@])\w+@[\w.-]+"), "USER"),
    (re.compile(r"\b[\d.]+(?=/\d)"), "USED"),  # of a node's capacity
    (re.compile(r"\b[\d,]+(?= of [\d,]+ (GiB|devices in use))"), "USED"),
    (re.compile(r"[\d.]+ KiB"), "SIZE"),
    (re.compile(r"\b[\d,]+\.\d+"), "AMOUNT"),  # scores and GPU-hours
    (re.compile(r"\+?AMOUNTs"), "SECONDS"),
    (re.compile(r"\b\d+%"), "PERCENT"),
    (re.compile(r"\b\d+(?= (Node|Pod|Shares)[A-Z]?\w+ )"), "N"),  # the revision of an event
    (re.compile(r"(?<=TIME )\d+$", re.MULTILINE), "N"),  # the revision of a decision
)
PLACED = re.compile(r"\b(allocated) +\S.*")


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of the console blocks with the output that the page shows."""
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def stable(output: str) -> str:
    """Return the part of an output that is the same in every run."""
    for pattern, name in UNSTABLE:
        output = pattern.sub(name, output)
    return " ".join(output.split())


def printed(up: Standalone, command: str) -> str:
    """Run the command of a page with bash, and return what a terminal would show."""
    apportion = f'apportion() {{ {shlex.quote(sys.executable)} -m apportion.cli.main "$@"; }}'
    done = subprocess.run(
        ["/bin/bash", "-c", f"{apportion}\n{command}"],
        env={**os.environ, "APPORTION_DATA": str(up.data), "COLUMNS": COLUMNS},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode == 0) != (command in REFUSED), f"{command}\n{done.stdout}"
    return done.stdout


def used(up: Standalone, command: str) -> str:
    """Return a usage report once it has utilization, else an empty text."""
    report = printed(up, command)
    return report if "UTILIZED" in report else ""


def started(output: str) -> set[str]:
    """Return the lines of `make up`, without the node of each pod, which depends on the run."""
    return {stable(PLACED.sub(r"\1", line)) for line in output.splitlines()}


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page(page: str) -> None:
    """All commands of a page run in the page's order and print what the page shows."""
    shown = list(commands((ROOT / page).read_text("utf-8")))
    assert len(shown) >= 3
    with tempfile.TemporaryDirectory() as folder, Standalone(Path(folder) / "data") as up:
        up.up()
        for command, output in shown:
            if command == "make up":
                assert started(output) <= started(up.output), up.output
            else:
                said = printed(up, command)
                if command.startswith("apportion report"):  # agents record use after a while
                    said = wait_until(partial(used, up, command), "use to be recorded")
                assert stable(said) == stable(output), f"{page}: `{command}` prints:\n{said}"


def test_a_wrong_output_is_found() -> None:
    """The comparison ignores only values that depend on the run, and reports every other
    difference."""
    shown = "NODE #\nh100-1 0 GPU-06c9b42d  at revision 118 (2026-11-28T19:04:53.481398Z)\n"
    assert stable(shown) == stable(
        "NODE  #\nh100-2 0 GPU-c754f0a4 at\nrevision 7 (2027-01-02T03:04:05Z)"
    )
    assert stable(shown) != stable(shown.replace("#", "DEVICE"))
    assert stable("90,000 MiB") != stable("80,000 MiB")
    page = "```console\n$ x 1\nout\n$ y\n```\n```sh\n$ z\n```"
    assert list(commands(page)) == [("x 1", "out\n"), ("y", "")]
