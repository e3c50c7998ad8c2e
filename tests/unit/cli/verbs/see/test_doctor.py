"""Tests of how `doctor` prints its findings, and of its output if no service is reachable."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.exits import UNREACHABLE
from apportion.cli.verbs.see.doctor import _show, command
from apportion.core.answers.doctor import CheckAnswer, DoctorAnswer
from tests.support.golden import Golden


def test_that_nothing_runs_is_said_once(tmp_path: Path) -> None:
    """If neither ledger nor gateway is running, `doctor` says so once and names the options for
    both."""
    env = {"APPORTION_DATA": str(tmp_path), "APPORTION_NATS_URL": "", "APPORTION_GATEWAY": ""}
    alone = CliRunner().invoke(command, [], env=env)
    assert alone.exit_code == UNREACHABLE
    assert alone.output.count(str(tmp_path)) == 1
    assert "--nats URL" in alone.output
    assert "--gateway URL" in alone.output
    url = "http://127.0.0.1:1"
    named = CliRunner().invoke(command, ["--gateway", url], env=env)
    assert (named.exit_code, url in named.output) == (UNREACHABLE, True)


def test_what_is_told_in_lines_is_shown_in_lines(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """`doctor` prints a finding that has several lines as several lines, without control
    characters."""
    check = CheckAnswer(id="cordons", state="ok", words="cordoned: n1: fan;\nn2: \x1b[2Jhot")
    _show(DoctorAnswer(revision=9, checks=(check,)))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    golden({"cordons of n1 and n2": out})
