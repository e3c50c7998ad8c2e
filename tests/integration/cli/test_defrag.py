"""`defrag` on a real `apportion up` makes room for a pending pod, and empties a node."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apportion.cli.client.plans import ask_moves
from apportion.cli.exits import NotFound, Wrong
from apportion.core.answers.plans import DefragRequest
from tests.support.polling import wait_until
from tests.support.standalone import APPORTION, Standalone

pytestmark = pytest.mark.slow
FLEET = "node,devices\nn-1,2xA100-80GB\nn-2,2xA100-80GB\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "COUNT", nvidia.com/gpucores: "100"}}
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Standalone]:
    """Run `apportion up` with two nodes of two GPUs, each with a pod that has one of them."""
    (tmp_path / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(tmp_path / "fleet.csv"))
    with Standalone(tmp_path / "data", *options) as running:
        running.up()
        submit(running, *(f"small-{number}" for number in range(4)))
        first = {pod["node"]: name for name, pod in pods(running).items()}
        running.json("delete", *(set(pods(running)) - set(first.values())))
        yield running
    running.nothing_left()


def pods(up: Standalone) -> dict[str, Any]:
    """Return the live pods by name."""
    return {pod["name"]: pod for pod in up.json("get", "pods")["items"]}


def submit(up: Standalone, *names: str, count: int = 1) -> None:
    """Submit pods with this number of GPUs, and wait until each is placed or refused."""
    documents = (POD.replace("NAME", name).replace("COUNT", str(count)) for name in names)
    up.run("submit", "-f", "-", "--wait", stdin="---".join(documents).encode())


def cordons(up: Standalone) -> list[Any]:
    return [each for node in up.json("get", "nodes")["items"] for each in node["cordons"]]


def test_room_is_made_for_a_pending_pod_as_planned(up: Standalone) -> None:
    """`defrag` shows a move without making it. With `--apply` the move is made as shown, the
    pending pod is placed, and no cordon stays."""
    submit(up, "large", count=2)
    before = pods(up)
    assert before["large"]["node"] == ""
    planned = up.json("defrag")
    [step] = planned["steps"]
    [move] = step["moves"]
    assert (step["name"], step["gpus_freed"], step["gpus_moved"]) == ("default/large", 2.0, 1.0)
    assert pods(up) == before
    assert up.json("defrag", "--max-lost", "0", code=5)["blocked"][0]["reason"] == "lost-max"

    assert up.run("defrag", "nosuch").returncode == 1
    assert up.data is not None
    url = json.loads((up.data / "connection.json").read_text())["gateway"]
    with pytest.raises((Wrong, NotFound), match="moves_max"):
        ask_moves(url, DefragRequest(moves_max=0), {})

    done = up.json("defrag", "large", "--apply", "--reason", "large", "--by", "ada")
    name = f"default/{move['pod']}"
    assert (done["moved"], done["was"]) == ({name: move["to"]}, {name: move["node"]})
    assert done["placed"] == {"default/large": move["node"]}
    assert (done["left"], done["waiting"], done["stopped"]) == ({}, {}, "")
    after = pods(up)
    assert {each: pod["node"] for each, pod in after.items()} == {
        "large": move["node"], **{pod: move["to"] for pod in before if pod != "large"},
    }  # fmt: skip
    assert after[move["pod"]]["uid"] != before[move["pod"]]["uid"]
    assert cordons(up) == []
    events = up.run("tail", "--from", "1", "--no-follow").stdout
    assert "moved by ada" in events
    assert "defrag: large" in events
    assert up.json("verify")["ok"]
    assert up.json("defrag") == {**planned, "steps": [], "revision": up.json("defrag")["revision"]}


def test_a_node_is_emptied(up: Standalone) -> None:
    """`--free-nodes` empties a node; a second node cannot be emptied then."""
    done = up.json("defrag", "--free-nodes", "2", "--apply", "--reason", "x", code=5)
    [freed] = done["freed"]
    assert {pod["node"] for pod in pods(up).values()} == {"n-1", "n-2"} - {freed}
    assert len(pods(up)) == 2
    assert [each["reason"] for each in done["plan"]["blocked"]] == ["pods-stay"]
    assert cordons(up) == []


def test_no_second_defrag_runs_and_cordons_of_users_stay(up: Standalone) -> None:
    """While a node has a cordon of another `defrag`, none starts. The verb's cordons have an author
    of their own, so it does not remove a user's cordon."""
    submit(up, "large", count=2)
    [move] = up.json("defrag")["steps"][0]["moves"]
    where = {name: pod["node"] for name, pod in pods(up).items()}
    up.run("cordon", move["node"], "--reason", "defrag: y", "--by", "bob (defrag 1)")
    refused = up.run("defrag", "--apply", "--reason", "x", "--by", "ada")
    assert refused.returncode == 1
    assert f"apportion uncordon {move['node']} --of 'bob (defrag 1)'" in refused.stderr
    assert {name: pod["node"] for name, pod in pods(up).items()} == where
    up.run("uncordon", move["node"], "--of", "bob (defrag 1)")

    scheduler = up.processes()["scheduler"]
    uids = {pod["uid"] for pod in pods(up).values()}
    os.kill(scheduler, signal.SIGSTOP)
    try:
        with subprocess.Popen(
            [*APPORTION, "defrag", "--apply", "--reason", "x", "--by", "ada"],
            stdout=subprocess.PIPE, env={**os.environ, "APPORTION_DATA": str(up.data)}, text=True,
        ) as moving:  # fmt: skip
            wait_until(
                lambda: {pod["uid"] for pod in pods(up).values()} - uids, "a pod to be moved"
            )
            up.run("cordon", move["node"], "--reason", "fan", "--by", "ada")
            os.kill(scheduler, signal.SIGCONT)
            moving.send_signal(signal.SIGINT)
            moving.communicate(timeout=30)
    finally:
        os.kill(scheduler, signal.SIGCONT)
    assert [(each["by"], each["reason"]) for each in cordons(up)] == [("ada", "fan")]


def test_after_an_error_the_report_is_printed_first(up: Standalone) -> None:
    """If the ledger ends after a pod was moved, the report says what was done and which node is
    still cordoned. The exit code is that of the error."""
    submit(up, "large", count=2)
    uids = {pod["uid"] for pod in pods(up).values()}
    scheduler = up.processes()["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)
    with subprocess.Popen(
        [*APPORTION, "defrag", "--apply", "--reason", "x", "--json", "--timeout", "30"],
        stdout=subprocess.PIPE, env={**os.environ, "APPORTION_DATA": str(up.data)}, text=True,
    ) as moving:  # fmt: skip
        wait_until(lambda: {pod["uid"] for pod in pods(up).values()} - uids, "a pod to be moved")
        up.signal(signal.SIGTERM)
        os.kill(scheduler, signal.SIGKILL)  # so that it decides nothing more
        out, _ = moving.communicate(timeout=90)
    assert moving.returncode == 3
    done = json.loads(out)
    assert done["cordoned"] == done["plan"]["steps"][0]["nodes"]
    assert " (defrag " in done["author"]
    assert done["was"].keys() == done["waiting"].keys() | done["moved"].keys()
    up.ended()


def test_a_step_stops_at_the_first_pod_without_a_new_node(tmp_path: Path) -> None:
    """If a moved pod is refused, the other pods of its step stay, and the exit code is 5."""
    (tmp_path / "fleet.csv").write_text(FLEET.replace("2x", "4x"))
    options = ("--no-samples", "--fleet", str(tmp_path / "fleet.csv"))
    with Standalone(tmp_path / "data", *options) as up:
        up.up()
        submit(up, *(f"small-{number}" for number in range(8)))
        nodes: dict[str, list[str]] = {}
        for name, pod in pods(up).items():
            nodes.setdefault(pod["node"], []).append(name)
        up.json("delete", *(name for names in nodes.values() for name in names[2:]))
        uids = {pod["uid"] for pod in pods(up).values()}
        scheduler = up.processes()["scheduler"]
        os.kill(scheduler, signal.SIGSTOP)
        try:
            with subprocess.Popen(
                [*APPORTION, "defrag", "--free-nodes", "1", "--apply", "--reason", "x", "--json"],
                stdout=subprocess.PIPE, env={**os.environ, "APPORTION_DATA": str(up.data)},
                text=True,
            ) as moving:  # fmt: skip
                wait_until(
                    lambda: {pod["uid"] for pod in pods(up).values()} - uids, "a pod to be moved"
                )
                for node in nodes:  # so that the scheduler refuses the moved pod
                    up.run("cordon", node, "--reason", "fan", "--by", "ada")
                os.kill(scheduler, signal.SIGCONT)
                done = json.loads(moving.communicate(timeout=30)[0])
        finally:
            os.kill(scheduler, signal.SIGCONT)
        assert (moving.returncode, done["freed"], done["moved"]) == (5, [], {})
        assert len(done["waiting"]) == len(done["left"]) == 1
        assert {each["by"] for each in cordons(up)} == {"ada"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_remove_the_cordons(up: Standalone, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM or SIGHUP while a moved pod is not placed yet ends the verb, and leaves no
    cordon."""
    submit(up, "large", count=2)
    uids = {pod["uid"] for pod in pods(up).values()}
    scheduler = up.processes()["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)
    try:
        with subprocess.Popen(
            [*APPORTION, "defrag", "--apply", "--reason", "x"], stdout=subprocess.PIPE,
            env={**os.environ, "APPORTION_DATA": str(up.data)}, text=True,
        ) as moving:  # fmt: skip
            wait_until(
                lambda: {pod["uid"] for pod in pods(up).values()} - uids, "a pod to be moved"
            )
            assert [each["reason"] for each in cordons(up)] == ["defrag: x"]
            moving.send_signal(number)
            out, _ = moving.communicate(timeout=30)
        assert moving.returncode == 130
        assert ("by a signal" in out) == (number != signal.SIGINT)
        assert cordons(up) == []
    finally:
        os.kill(scheduler, signal.SIGCONT)
    wait_until(lambda: all(pod["node"] for pod in pods(up).values()), "all to be placed")
