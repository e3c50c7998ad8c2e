"""Preemption in a real `apportion up`: evicted pods end and are queued again by themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import wait_until
from tests.support.standalone import APPORTION, Standalone

pytestmark = pytest.mark.slow
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  priority: PRIORITY
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "CARDS"}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: x
        resources: {limits: {nvidia.com/gpu: "1"}}
"""
GANG = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  minAvailable: 2
  tasks:
  - name: worker
    replicas: 2
    template:
      spec:
        containers:
        - name: main
          image: x
          resources: {limits: {nvidia.com/gpu: "1"}}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Start `apportion up` with one node of two GPUs."""
    data = tmp_path_factory.mktemp("preempting") / "data"
    with Standalone(data, "--no-samples", "--fleet", "2xA100-80GB", "--nodes", "1") as up:
        yield up.up()
    up.nothing_left()


@pytest.fixture
def up(running: Standalone) -> Iterator[Standalone]:
    """Provide the running `apportion up`. Delete all its pods after the test."""
    yield running
    names = list(pods(running))
    if names:
        running.json("delete", *names)


def pods(up: Standalone) -> dict[str, Any]:
    """Return the live pods by name."""
    return {pod["name"]: pod for pod in up.json("get", "pods")["items"]}


def pod(name: str, priority: int, cards: int = 1) -> str:
    """Return the manifest of a pod with this priority and number of GPUs."""
    said = POD.replace("NAME", name).replace("PRIORITY", str(priority))
    return said.replace("CARDS", str(cards))


def submit(up: Standalone, *documents: str, wait: bool = True) -> dict[str, Any]:
    """Submit these manifests and return the report."""
    options = ("--wait",) if wait else ()
    report: dict[str, Any] = up.json(
        "submit", "-f", "-", *options, stdin="---".join(documents).encode()
    )
    return report


def runs(up: Standalone, name: str) -> bool:
    """Return True if the pod has its devices."""
    found = pods(up).get(name, {})  # a gateway may still have to read of one that has just come
    return bool(found.get("phase") == "allocated")


def test_who_is_evicted_ends_and_waits_anew(up: Standalone) -> None:
    """A Deployment replaces its evicted pod with a pending pod, which runs when there is room
    again."""
    submit(up, DEPLOYMENT)
    both = ["allocated"] * 2
    wait_until(lambda: [pod["phase"] for pod in pods(up).values()] == both, "both to run")
    before = pods(up)
    submit(up, pod("high", 1000))
    wait_until(lambda: runs(up, "high"), "the important one to run")
    after = pods(up)
    assert after.keys() == {*before, "high"}, "nobody is lost"
    [evicted] = [name for name in before if before[name]["uid"] != after[name]["uid"]]
    assert (after[evicted]["node"], after[evicted]["owner"]) == ("", before[evicted]["owner"])
    story = [row["sentence"] for row in up.json("history", evicted)["items"]]
    assert any("evicted for default/high" in said for said in story), story
    said = [row["sentence"] for row in up.json("history", "high")["items"]]
    assert any(each.startswith(f"default/{evicted} (priority 0) evicted") for each in said), said
    last = up.run("why", evicted).stdout.splitlines()[-1]
    assert last.startswith("earlier pod of this name: ")
    assert re.search(r"node-1\b.*\bdefault/high", last)
    assert f"`apportion history default/{evicted}`" in last
    assert up.run("why", "high").stdout.splitlines()[-1].endswith(f": default/{evicted}")
    told, came = (up.json("why", name)["evictions"] for name in ("high", evicted))
    assert [each["name"] for each in told["made_room"]] == [evicted]
    assert (told["predecessors"], told["before"]) == (0, None)
    assert (came["predecessors"], came["made_room"]) == (1, [])
    assert (came["before"]["beneficiary"], came["before"]["node"]) == ("default/high", "node-1")
    up.json("delete", "high")
    wait_until(lambda: runs(up, evicted), "the one that waited to run again")
    assert up.json("verify")["ok"]


def test_a_gang_that_is_evicted_comes_again_as_a_whole(up: Standalone) -> None:
    """Evicting one pod of a gang evicts the whole gang, which later runs again as a whole."""
    submit(up, GANG)
    wait_until(lambda: len(pods(up)) == 2, "both to be listed")
    before = pods(up)
    submit(up, pod("high", 1000), wait=False)
    wait_until(lambda: runs(up, "high"), "the important one to run")
    after = pods(up)
    assert after.keys() == {*before, "high"}
    assert not [name for name in before if after[name]["uid"] == before[name]["uid"]]
    assert not [name for name in before if after[name]["node"]]
    up.json("delete", "high")
    wait_until(lambda: all(runs(up, name) for name in before), "the gang to run again")


def test_submit_waits_on_while_others_go(up: Standalone) -> None:
    """`submit --wait` waits during an eviction, names the victims, and exits with 0."""
    submit(up, pod("low", 0, cards=2))
    watcher = up.processes()["watcher"]
    os.kill(watcher, signal.SIGSTOP)  # so that the victim stays until it was seen
    try:
        with subprocess.Popen(
            [*APPORTION, "submit", "-f", "-", "--wait"], text=True,
            env={**os.environ, "APPORTION_DATA": str(up.data), "COLUMNS": "250"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as waiting:  # fmt: skip
            assert waiting.stdin is not None
            assert waiting.stderr is not None
            waiting.stdin.write(pod("high", 1000))
            waiting.stdin.close()
            told = waiting.stderr.readline()
            os.kill(watcher, signal.SIGCONT)
            assert waiting.stdout is not None
            said = waiting.stdout.read()
    finally:
        os.kill(watcher, signal.SIGCONT)
    assert "default/high pending: " in told
    assert "default/low has left" in told
    assert waiting.returncode == 0, said
    assert "for it: default/low" in said
    assert "1 submitted, 1 placed, 1 evicted" in said


def test_drain_waits_on_while_others_go(up: Standalone) -> None:
    """`drain` waits until a pod of lower priority is evicted for the drained pod, and names the
    evicted pod."""
    submit(up, pod("high", 1000), pod("low", 0))
    [card] = [share["device"] for share in pods(up)["high"]["shares"]]
    done = up.json("drain", card, "--reason", "loose")
    assert (done["moved"], done["waiting"]) == ({"default/high": "node-1"}, {})
    assert done["evicted"] == {"default/high": ["default/low"]}
    up.json("uncordon", card)


def test_submit_ends_in_time_where_who_is_to_go_stays(up: Standalone) -> None:
    """If a victim never ends, `submit --wait` exits with 1 after its timeout and names the
    victim."""
    submit(up, pod("low", 0, cards=2))
    watcher = up.processes()["watcher"]
    os.kill(watcher, signal.SIGSTOP)
    try:
        said = up.run(
            "submit", "-f", "-", "--wait", "--timeout", "12",
            stdin=pod("high", 1000).encode(),
        )  # fmt: skip
        assert said.returncode == 1
        assert "default/low" in said.stdout
    finally:
        os.kill(watcher, signal.SIGCONT)


QUEUE = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: NAME}
spec: {deserved: {nvidia.com/gpu: GPUS}}
"""
TEAM = DEPLOYMENT.replace("name: web", "name: NAME").replace("replicas: 2", "replicas: 40")
TEAM = TEAM.replace(
    "{app: web}}\n    spec:",
    "{app: web}, annotations: {scheduling.volcano.sh/queue-name: NAME}}\n    spec:",
)


def test_two_teams_lend_and_take_back(tmp_path: Path) -> None:
    """A team borrows idle GPUs of another team, and returns them when the other team needs them.

    Of 40 GPUs, `ml` deserves 28 and `web` deserves 12. While `ml` is idle, `web` uses all 40. When
    `ml` submits pods, it gets 28 of them."""
    fleet = ("--no-samples", "--fleet", "8xA100-80GB", "--nodes", "5")
    with Standalone(tmp_path / "data", *fleet) as up:
        up.up()
        submit(up, _team("ml", 28), _team("web", 12), wait=False)

        def placed(name: str) -> int:
            return int(up.json("get", "queues", name)["items"][0]["pods"])

        submit(up, TEAM.replace("NAME", "web"), wait=False)
        wait_until(lambda: placed("web") == 40, "web to borrow all GPUs")
        (web,) = up.json("get", "queues", "web")["items"]
        (part,) = (each for each in web["parts"] if each["devices"])
        assert (part["used"], part["deserved"], part["borrowed"]) == (40_000, 12_000, 28_000)
        submit(up, TEAM.replace("NAME", "ml"), wait=False)
        wait_until(lambda: placed("ml") == 28 and placed("web") == 12, "ml to get its GPUs back")
        pending = next(each for each in pods(up).values() if each["phase"] == "pending")
        why = up.json("why", f"{pending['namespace']}/{pending['name']}")
        assert why["refused"]["entitlement"]["parts"][0]["used"] in {12_000, 28_000}
    up.nothing_left()


def _team(name: str, gpus: int) -> str:
    return QUEUE.replace("NAME", name).replace("GPUS", str(gpus))
