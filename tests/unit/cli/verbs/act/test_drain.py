"""Tests of what `drain` prints: its plan in a dry run, and its report when it ends or is
stopped."""

import io
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.exits import NOT_NOW, REFUSED, UNREACHABLE, USAGE
from apportion.cli.pods.moving import BY_HAND, LEAVING, UNDECIDED, Moving, Progress, how_far
from apportion.cli.pods.resubmit import Unit
from apportion.cli.verbs.act.drain import Order, Report, _end, _note_before, _tell, command
from apportion.core.answers.reads import PodAnswer
from apportion.runtime.service.options import KubeChoice
from tests.support.golden import Golden


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (Report(target="n"), ["no pod was moved"]),
        (
            Report(target="n", moved={"a": "m", "b": ""}, waiting={"c": UNDECIDED}),
            ["2 pods moved",
             "1 pod pending: the scheduler continues without this command"],
        ),
        (
            Report(target="n", left={"a": LEAVING, "b": "not moved yet", "c": "its budget"}),
            ["1 pod evicted: still ending", "2 pods not moved: still running"],
        ),
    ],
)  # fmt: skip
def test_how_far_it_came(report: Report, said: list[str]) -> None:
    """The report of a drain has separate lines for moved, pending and remaining pods."""
    assert how_far(report) == said


def test_one_count_of_those_without_a_place(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a stopped drain has the number of pending pods only once."""
    report = Report(target="n", revision=7, moved={"a": "m"}, waiting={"c": "no room"})
    _tell(report, dry_run=False)
    whole = capsys.readouterr().out
    report.stopped = BY_HAND
    _tell(report, dry_run=False)
    stopped = capsys.readouterr().out
    assert ("1 of 2" in whole, "1 of 2" in stopped) == (True, False)
    golden({"one of two has no place": whole, "stopped": stopped})


def test_what_nobody_decided_does_not_wait_yet(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the scheduler has yet to decide about a pod, a stopped drain does not report the pod as
    refused."""
    waiting = {"a": UNDECIDED, "b": "no room"}
    _tell(Report(target="n", revision=7, waiting=waiting, stopped=BY_HAND), dry_run=False)
    golden({"a was not looked at, b was refused": capsys.readouterr().out})


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (Report(target="n", revision=7, moved={"a": "m"}), "no pods are left on n"),
        (Report(target="n", revision=7, left={"a": "x"}), "run the command again"),
        (Report(target="n", revision=7), "run the command again"),
    ],
)
def test_a_stop_behind_the_last_pod_left_nothing(
    report: Report, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a stopped drain suggests running `drain` again if pods are left. Otherwise it
    says that no pods are left."""
    report.stopped = BY_HAND
    _tell(report, dry_run=False)
    told = [line for line in capsys.readouterr().out.splitlines()
            if line.startswith(("no pods are left", "run the command"))]  # fmt: skip
    assert [line.startswith(said) for line in told] == [True]


@pytest.mark.parametrize(
    ("planned", "along", "headline"),
    [
        ({}, [], "0 pods would be moved from n"),
        ({"a": "m", "b": ""}, [], "2 pods would be moved from n; 1 of 3 would be pending"),
        (
            {"a": "m", "b": "m", "c": "m"}, ["b", "c"],
            "1 pod would be moved from n, with 2 pods of its gang on other nodes",
        ),
        (
            {"a": "m", "b": "m", "c": "m"}, ["c"],
            "2 pods would be moved from n, with 1 pod of their gangs on other nodes",
        ),
    ],
)  # fmt: skip
def test_pods_of_a_gang_elsewhere_are_not_counted_as_the_nodes(
    planned: dict[str, str], along: list[str], headline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A drain also moves a gang's pods on other nodes. It counts them separately from the node's
    own pods."""
    left = {**dict.fromkeys(planned, "would move"), "command": "would stay where it is"}
    report = Report(target="n", planned=planned, with_gang=along, left=left)
    report.was = dict.fromkeys(planned, "n") | dict.fromkeys(along, "far")
    _tell(report, dry_run=True)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == headline
    finds = [name for name in along if planned[name]]
    assert [line.split(",")[0] for line in said if "far" in line] == finds


@pytest.mark.parametrize(
    ("planned", "left", "code"),
    [({"a": "m"}, {"a": "would move"}, None), ({"a": ""}, {"a": "would wait"}, NOT_NOW),
     ({"a": ""}, {"a": "would wait", "command": "would stay where it is"}, REFUSED)],
)  # fmt: skip
def test_a_dry_run_ends_as_the_drain_would(
    planned: dict[str, str], left: dict[str, str], code: int | None
) -> None:
    """A dry run of `drain` has the exit code that the real drain would have."""
    report = Report(target="n", planned=planned, left=left)
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        _end(report, as_json=True, dry_run=True)
    assert code is None or (ended is not None and ended.value.code == code)


def test_who_would_be_placed_instead_is_named(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """If another pod takes the room of a drained pod, the dry run and the final report name that
    other pod."""
    report = Report(target="n", planned={"r1": ""}, left={"r1": "would wait: full"})
    report.instead = {"r2": "m"}
    _tell(report, dry_run=True)
    before = capsys.readouterr().out
    _tell(Report(target="n", waiting={"r1": "full"}, instead=report.instead), dry_run=False)
    after = capsys.readouterr().out
    assert "r2" in before
    assert "r2" in after
    golden({"what is lost and won by it, and then pod by pod": before, "done": after})


@pytest.mark.parametrize("dry_run", [True, False])
def test_nobody_knows_whether_pods_run_whose_node_is_not_heard(
    golden: Golden, capsys: pytest.CaptureFixture[str], *, dry_run: bool
) -> None:
    """If a node's agent is silent, both the dry run and the report of a drain mention that."""
    kube = KubeChoice(wanted=False)
    order = Order("n", "", "x", Moving(what="node n", who="ann", why="x", timeout_s=1.0, kube=kube))
    silent = "the agent of n is not heard, found silent at 2026-01-02T03:04:05Z"
    there = PodAnswer("default", "p", "1", "allocated", node="n", unready=silent)
    heard = PodAnswer("default", "q", "2", "allocated", node="m")
    report = Report(target="n", revision=7, left={"default/p": "would move"})
    _note_before(report, order, [Unit((there, heard), "default/g")])
    assert (report.with_gang, report.was) == (["default/q"], {"default/p": "n", "default/q": "m"})
    if not dry_run:
        report.left, report.moved = {}, {"default/p": "m"}
    _tell(report, dry_run=dry_run)
    out = capsys.readouterr().out
    assert silent in out
    golden({"told": out})


def test_who_comes_back_to_where_he_was_has_not_moved(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gang's pod that is placed on its former node again does not count as moved."""
    report = Report(target="n", revision=7, moved={"a": "m", "b": "m"}, with_gang=["b"])
    report.was = {"a": "n", "b": "m"}
    _tell(report, dry_run=False)
    golden({"a moved from n to m, b was on m": capsys.readouterr().out})


def test_what_many_wait_for_is_said_once(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """If many pods are pending for the same reason, `drain` prints the reason once."""
    names = [f"g-{number}" for number in range(4)]
    left = {**dict.fromkeys(names, "would wait: no room"), "a": "would move", "b": "would move"}
    planned = {**dict.fromkeys(names, ""), "a": "m", "b": "m"}
    _tell(Report(target="n", left=left, planned=planned), dry_run=True)
    before = capsys.readouterr().out
    _tell(Report(target="n", waiting=dict.fromkeys(names, "no room")), dry_run=False)
    after = capsys.readouterr().out
    assert (before.count("no room"), after.count("no room")) == (1, 1)
    golden({"dry run": before, "done": after})


def test_how_many_pods_had_their_turn_is_told_of_all_pods(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """The progress of a drain counts each pod of a gang, both on a terminal and in a pipe."""
    pods = [PodAnswer("default", f"p-{number}", str(number), "placed") for number in range(4)]
    units = [Unit((pods[0],)), Unit(tuple(pods[1:]), "default/g")]
    progress = Progress(units)
    progress.tell(units[0], stays=True)
    progress.tell(units[1])
    golden({"one that stays, then a gang": capsys.readouterr().err})


def test_ctrl_c_does_not_cut_what_was_done(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C stops a drain, the verb still prints the complete report."""

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            signal.raise_signal(signal.SIGINT)
            return super().write(text)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(sys, "stdout", out := Interrupted())
        moved = {f"p-{number}": "m" for number in range(10)}
        _end(Report(target="n", revision=7, moved=moved), as_json=False, dry_run=False)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(f"{name} moved to m" in out.getvalue() for name in moved)
    golden({"ten moved": out.getvalue()})


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_ctrl_c_before_anything_is_done(
    golden: Golden, options: tuple[str, ...], tmp_path: Path
) -> None:
    """If Ctrl-C stops `drain` while it waits for the gateway, `drain` reports that it changed
    nothing."""
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
    golden({"Ctrl-C": out})


def test_only_a_drain_that_cordons_needs_a_reason(tmp_path: Path) -> None:
    """`drain` requires `--reason` unless it is a dry run."""
    nowhere = ["n-1", "--gateway", "http://127.0.0.1:1", "--nats", "nats://127.0.0.1:1"]
    env = {"APPORTION_DATA": str(tmp_path)}
    without = CliRunner().invoke(command, nowhere, env=env)
    assert (without.exit_code, "--reason" in without.output) == (USAGE, True)
    tried = CliRunner().invoke(command, [*nowhere, "--dry-run"], env=env)
    assert tried.exit_code == UNREACHABLE, tried.output
