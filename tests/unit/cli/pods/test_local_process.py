"""Tests of `run`, which represents a local command as a pod. They check when that pod ends, and how
containers get their devices."""

import os
import subprocess
from pathlib import Path

import pytest

from apportion.cli.exits import Wrong
from apportion.cli.pods import local_process as runs
from apportion.cli.pods.local_process import Run, ended, engine_of, unreachable, with_device
from apportion.core.answers.reads import PodAnswer
from apportion.runtime.process.lives import Life, life_of

GONE = Life(1 << 30, 7)


def own_life() -> Life:
    life = life_of(os.getpid())
    assert life is not None
    return life


def pod(run: Run, uid: str = "uid-1", user: str = "ada") -> PodAnswer:
    """Return the gateway's answer about the pod of this run."""
    return PodAnswer(
        namespace=user, name=uid, uid=uid, phase="allocated", owner=f"{run.kind}/{run.name}"
    )


@pytest.mark.parametrize("engine", ["", "podman", "docker"])
def test_the_owner_names_the_process(engine: str) -> None:
    """The owner field of a run's pod identifies the machine, the process and the container engine,
    if any."""
    run = Run("n1.example", Life(12, 345), engine)
    assert Run.of_owner(f"{run.kind}/{run.name}") == run


@pytest.mark.parametrize("owner", ["", "Job/train", "Process/n1", "Process/n1/x/1", "Pod/n1/1/2"])
def test_other_owners_are_no_runs(owner: str) -> None:
    """A pod with another kind of owner, such as a Kubernetes Job, was not created by `run`."""
    assert Run.of_owner(owner) is None


def test_who_has_ended_here_is_found_and_no_other() -> None:
    """The CLI finds the runs of this machine whose process has ended. It finds neither live runs
    nor runs of other machines."""
    over, here = Run("n1", GONE), Run("n1", own_life())
    pods = [
        pod(over, "over"),
        pod(here, "here"),
        pod(Run("n2", GONE), "there"),
        PodAnswer(namespace="ada", name="j", uid="j", phase="allocated", owner="Job/train"),
    ]
    assert [each.uid for each in ended(pods, "n1", "ada")] == ["over"]


def test_what_a_command_left_behind_keeps_it_from_being_ended() -> None:
    """A run has not ended while any process that its command started is alive."""
    environment = {**os.environ, "APPORTION_POD": "uid-of-this-test"}
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env=environment) as left:
        assert Run("n1", GONE).goes_on("uid-of-this-test")
        left.communicate()
    assert not Run("n1", GONE).goes_on("uid-of-this-test")


def test_nothing_is_said_of_what_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, the CLI cannot see all processes of other users, so it never reports another
    user's run as ended."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(runs, "containers", lambda *_: [])
    for run in Run("n1", GONE), Run("n1", GONE, "podman"):
        assert ended([pod(run)], "n1", "bob") == []
        assert ended([pod(run)], "n1", "ada") == [pod(run)]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ended([pod(Run("n1", GONE))], "n1", "bob") == [pod(Run("n1", GONE))]


def test_an_engine_that_does_not_answer_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the container engine does not answer, a run in a container counts as alive."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert Run("n1", GONE, "podman").goes_on("uid-1")


def test_a_container_gets_the_device_and_a_label() -> None:
    """For `docker run` and similar commands, the CLI inserts the device and a label after the
    argument `run`."""
    words = ("/usr/bin/podman", "--log-level", "debug", "run", "--rm", "cuda", "run")
    assert engine_of(words) == "podman"
    assert with_device(words, "apportion.dev/share=uid-1", "uid-1") == (
        *words[:4], "--device", "apportion.dev/share=uid-1", "--label", "apportion.dev/pod=uid-1",
        *words[4:],
    )  # fmt: skip
    assert engine_of(("python", "run")) == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sudo", "docker", "run", "cuda"), "`sudo apportion run"),
        (("podman", "exec", "a", "nvidia-smi"), "podman run IMAGE"),
        (("docker",), "docker run IMAGE"),
    ],
)
def test_what_would_go_without_its_share_is_refused(words: tuple[str, ...], told: str) -> None:
    """The CLI refuses a command that would start a container without its share, and shows the right
    form."""
    with pytest.raises(Wrong, match=told):
        engine_of(words)


def test_a_closed_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a path is inaccessible, the error names the first folder or file to which the user has no
    access."""
    shut = tmp_path / "shut"
    shut.mkdir()
    file = shut / "file"
    file.write_text("")
    assert unreachable(file) is None
    monkeypatch.setattr(os, "access", lambda path, _: path != shut)
    assert unreachable(file) == shut
    monkeypatch.setattr(os, "access", lambda path, _: path != file)
    assert unreachable(file) == file
