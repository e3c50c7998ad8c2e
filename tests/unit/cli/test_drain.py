"""What `drain` says of itself when it is stopped on its way."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.drain import BY_HAND, LEAVING, UNDECIDED, Report, _tell, command, how_far
from apportion.cli.exits import UNREACHABLE, USAGE


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (Report(target="n"), "no pod was to be moved"),
        (
            Report(target="n", moved={"a": "m", "b": ""}, waiting={"c": UNDECIDED}),
            "2 pods moved, 1 pod without a place yet, for which this verb is not needed",
        ),
        (
            Report(target="n", left={"a": LEAVING, "b": "not moved yet", "c": "its budget"}),
            "1 pod will end without this verb, 2 pods not moved, and running on",
        ),
    ],
)
def test_how_far_it_came(report: Report, said: str) -> None:
    """What is done, what goes on, and what is left, each counted once."""
    assert how_far(report) == said


def test_one_count_of_those_without_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    """A drain that was stopped says once how many wait, and not in two ways."""
    report = Report(target="n", revision=7, moved={"a": "m"}, waiting={"c": "no room"})
    _tell(report, dry_run=False)
    assert "1 of 2 has no place" in capsys.readouterr().out
    report.stopped = BY_HAND
    _tell(report, dry_run=False)
    out = capsys.readouterr().out
    assert "1 pod without a place yet, for which this verb is not needed" in out
    assert "1 of 2" not in out


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_ctrl_c_before_anything_is_done(options: tuple[str, ...], tmp_path: Path) -> None:
    """It waits for a gateway that does not answer: nothing was done, and it says so."""
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        url = f"http://127.0.0.1:{gateway.getsockname()[1]}"
        verb = [sys.executable, "-m", "apportion.cli.main", "drain", "n-1", "--reason", "x"]
        process = subprocess.Popen(
            [*verb, "--gateway", url, *options], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "APPORTION_DATA": str(tmp_path)},
        )  # fmt: skip
        asking, _ = gateway.accept()
        with asking:
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == (
        "stopped by Ctrl-C; nothing was done: n-1 is not cordoned by this, and no pod was moved\n"
    )


def test_only_a_drain_that_cordons_needs_a_reason(tmp_path: Path) -> None:
    """A dry run leaves nothing that somebody could ask about; it comes as far as the gateway."""
    nowhere = ["n-1", "--gateway", "http://127.0.0.1:1", "--nats", "nats://127.0.0.1:1"]
    env = {"APPORTION_DATA": str(tmp_path)}
    without = CliRunner().invoke(command, nowhere, env=env)
    assert (without.exit_code, "give --reason" in without.output) == (USAGE, True)
    tried = CliRunner().invoke(command, [*nowhere, "--dry-run"], env=env)
    assert tried.exit_code == UNREACHABLE, tried.output
