"""Tests that tables and bars contain only ASCII characters on an ASCII-only terminal."""

import io
import os
import subprocess
import sys

import pytest

from apportion.cli.render.output import Ascii, ascii_only
from apportion.cli.verbs.see.top import bar


@pytest.mark.parametrize(
    ("environment", "encoding", "only"),
    [
        ({}, "utf-8", False),
        ({"LANG": "C"}, "utf-8", True),
        ({"LANG": "POSIX"}, "utf-8", True),
        ({"LANG": "C.UTF-8"}, "utf-8", False),
        ({"LANG": "de_DE.utf8"}, "UTF-8", False),
        ({"LANG": "de_DE.ISO-8859-1"}, "utf-8", True),
        ({"LANG": "de_DE"}, "utf-8", False),
        ({"LANG": "C", "LC_ALL": "en_US.UTF-8"}, "utf-8", False),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "C"}, "utf-8", True),
        ({"LANG": "en_US.UTF-8"}, "iso8859-1", True),
    ],
)
def test_which_terminals(environment: dict[str, str], encoding: str, only: bool) -> None:
    """The first of LC_ALL, LC_CTYPE and LANG that is set decides if a terminal is ASCII-only. If
    none is set, the terminal's encoding decides."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert ascii_only(stream, environment) is only


def test_what_is_drawn_keeps_its_place() -> None:
    """On an ASCII-only terminal, each non-ASCII character is replaced by one ASCII character, so
    columns stay aligned."""
    out = io.StringIO()
    Ascii(out).write(bar(50, 100).plain + " … 训 ok")
    assert out.getvalue() == "####.... ~ ? ok"


def test_a_verb_prints_on_such_a_terminal() -> None:
    """A verb prints its output on an ASCII-only terminal without an error."""
    code = "from apportion.cli.render.output import console; console().print('█ … ─ 训')"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert done.stdout.split() == [b"#", b"~", b"-", b"?"]
