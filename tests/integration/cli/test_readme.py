"""README tells the truth: its commands are run, and what it shows is what they say.

Every ```console block holds commands behind `$ ` and their output; `...` stands for what differs
from run to run, and any run of blanks for any other. `make up` is the `apportion up` that the test
started, whose output is compared like that of the others."""

import doctest
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.standalone import APPORTION, Standalone
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
COLUMNS = "100"
REFUSED = {"apportion submit -f examples/too-large.yaml --wait"}
"""The commands that README shows being refused: exit code 1 is what it documents."""


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of the console blocks, and the output that is shown below it."""
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def said_by(up: Standalone, command: str) -> str:
    """What the command says now."""
    if command == "make up":
        up.up()
        port = re.search(r"ledger at 127\.0\.0\.1:(\d+)", up.output)
        assert port
        return up.output.replace(port[1], "4222") + "\n"
    verb, *words = shlex.split(command)
    assert verb == "apportion", command
    done = subprocess.run(
        [*APPORTION, *words],
        env={**os.environ, "APPORTION_DATA": str(up.data), "COLUMNS": COLUMNS},
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == (1 if command in REFUSED else 0), f"{command}\n{done.stderr}"
    return done.stdout


def test_commands_of_the_readme(tmp_path: Path) -> None:
    """Each command ends as it should and says what README shows, in the order of the page."""
    checker = doctest.OutputChecker()
    shown = list(commands((ROOT / "README.md").read_text("utf-8")))
    assert len(shown) >= 9
    with Standalone(tmp_path / "data") as up:
        for command, output in shown:
            said = said_by(up, command)
            assert checker.check_output(output, said, FLAGS), (
                f"README shows for `{command}`:\n{output}\nand it says:\n{said}"
            )


def test_a_wrong_output_is_found() -> None:
    """The comparison lets blanks and `...` differ, and nothing else."""
    checker = doctest.OutputChecker()
    assert checker.check_output("a  b\n...\nz\n", "a b\n1\n2\nz\n", FLAGS)
    assert not checker.check_output("a  b\n...\nz\n", "a c\n1\nz\n", FLAGS)
    page = "```console\n$ x 1\nout\n$ y\n```\n```sh\n$ z\n```"
    assert list(commands(page)) == [("x 1", "out\n"), ("y", "")]
