"""Draining a node and a device of a real `apportion up` moves the pods that ran there."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import open_ledger
from apportion.cli.pods.append import Submitted
from apportion.cli.pods.decisions import Awaited, Decided
from apportion.cli.pods.pending import wait_for_room
from apportion.cli.pods.resubmit import UNIT_MAX
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.process.reach import Reach
from apportion_schemas import Host, NodeCordoned, NodeObserved, PodGone, PodRefused
from tests.support.facts import Facts
from tests.support.fleet import gpu, node, rack
from tests.support.nats import running_bus
from tests.support.pods import gang, member, share
from tests.support.polling import wait_until
from tests.support.processes import ServiceProcess
from tests.support.standalone import APPORTION, Standalone

pytestmark = pytest.mark.slow
OTHER = {"n-1": "n-2", "n-2": "n-1"}
FLEET = "node,devices\nn-1,2xA100-80GB\nn-2,2xA100-80GB\nn-3,2xT4\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {team: blue}}
spec:
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "40000"}}
"""
WHOLE = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, annotations: {nvidia.com/use-gputype: A100}}
spec:
  priority: PRIORITY
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpucores: "100"}}
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
          resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "30000"}}
"""


QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: default}
spec: {hard: {requests.nvidia.com/gpu: "1"}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Run `apportion up` with three nodes. The tests' pods fit on only two of them."""
    folder = tmp_path_factory.mktemp("drain")
    (folder / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(folder / "fleet.csv"))
    with Standalone(folder / "data", *options) as running:
        yield running.up()
    running.nothing_left()


def pods(up: Standalone) -> dict[str, Any]:
    """Return the live pods by name."""
    return {pod["name"]: pod for pod in up.json("get", "pods")["items"]}


def submit(up: Standalone, *documents: str) -> None:
    """Submit these manifests, and wait until all pods are allocated."""
    report = up.json("submit", "-f", "-", "--wait", stdin="---".join(documents).encode())
    names = {pod["name"] for pod in report["submitted"]}

    def run() -> bool:
        there = pods(up)
        return there.keys() >= names and all(p["phase"] == "allocated" for p in there.values())

    wait_until(run, "all to run")


def having(up: Standalone, what: str) -> set[str]:
    """Return the names of the live pods whose field `what` is not empty."""
    return {name for name, pod in pods(up).items() if pod[what]}


def test_a_node_is_drained_and_undone(up: Standalone) -> None:
    """Drain moves a single pod with its requests and labels, and moves a gang as a whole.
    Afterwards the node's cordon can be lifted."""
    submit(up, POD.replace("NAME", "alone"), GANG)
    before = pods(up)
    node = before["alone"]["node"]
    there = {name for name, pod in before.items() if pod["node"] == node}
    gang = {name for name in before if name.startswith("gang")}
    moving = there | (gang if there & gang else set())
    planned = up.json("drain", node, "--dry-run")
    assert {name.partition("/")[2] for name in planned["left"]} == moving
    assert planned["planned"].keys() == {f"default/{name}" for name in moving}
    assert planned["left"]["default/alone"].startswith(f"would move to {OTHER[node]} (")
    assert planned["planned"]["default/alone"] == OTHER[node]
    assert pods(up)["alone"]["uid"] == before["alone"]["uid"], "a dry run changes nothing"

    report = up.json("drain", node, "--reason", "firmware", "--by", "ada")
    assert (report["left"], report["stopped"]) == ({}, "")
    assert report["moved"] == planned["planned"], "it comes as it was said"
    after = pods(up)
    assert set(after) == set(before)
    assert not [pod for pod in after.values() if pod["node"] == node]
    for name in moving:
        assert after[name]["uid"] != before[name]["uid"]
        for kept in ("asks", "group", "dialect", "owner"):
            assert after[name][kept] == before[name][kept]
    [shown] = [each for each in up.json("get", "nodes")["items"] if each["node"] == node]
    assert [(each["by"], each["reason"]) for each in shown["cordons"]] == [
        ("ada", "drain: firmware")
    ]
    its_end_is_told(up, "alone", node)
    refused = up.run("uncordon", node, "--by", "bob")
    assert "drain: firmware (ada)" in refused.stderr
    assert up.json("uncordon", node, "--by", "ada")["event"] == "NodeCordonLifted"
    assert up.json("verify")["ok"]
    up.json("delete", *before)


def its_end_is_told(up: Standalone, name: str, node: str) -> None:
    """Check that the end of the drained pod is explained in the events, the pod's history, and
    `why` of its replacement. Each must name the drained node, the user and the reason."""
    why = f"drained from {node} by ada: firmware"
    assert why in up.run("tail", "--from", "1", "--no-follow").stdout
    story = [row["sentence"] for row in up.json("history", name)["items"]]
    before_it = next(at for at, said in enumerate(story) if "drained" in said)
    assert story[before_it].startswith(f"default/{name}: the previous pod ended: {why}")
    assert story[before_it + 1].startswith(f"default/{name} placed on {OTHER[node]}")
    last = up.run("why", name).stdout.splitlines()[-1]
    assert last.startswith(f"earlier pod of this name: {why}, at revision ")


def test_a_device_is_drained(up: Standalone) -> None:
    """Draining a device moves the pods on it. Pods on the node's other device stay."""
    submit(up, POD.replace("NAME", "one"), POD.replace("NAME", "two"), POD.replace("NAME", "three"))
    before = pods(up)
    device = before["one"]["shares"][0]["device"]
    on_it = {name for name, pod in before.items() if pod["shares"][0]["device"] == device}
    planned = up.json("drain", device, "--reason", "hot", "--dry-run")
    assert {name.partition("/")[2] for name in planned["planned"]} == on_it
    assert all(planned["planned"].values()), "there is room on the other devices"
    said = up.run("drain", device, "--reason", "hot", "--dry-run").stdout
    begins = {True: "would restart on", False: "would move to"}
    for name, there in planned["planned"].items():
        before_it = before[name.partition("/")[2]]["node"]
        assert f"{name} {begins[there == before_it]} {there} (" in said
    report = up.json("drain", device, "--reason", "hot")
    assert {name.partition("/")[2] for name in report["moved"]} == on_it
    again = up.json("drain", device, "--reason", "hot")
    assert (again["revision"], again["moved"]) == (report["revision"], {}), "the same stands"
    after = pods(up)
    assert all(pod["shares"][0]["device"] != device for pod in after.values())
    assert all(after[name]["uid"] == before[name]["uid"] for name in set(before) - on_it)
    up.json("uncordon", device, "--all")
    up.json("delete", *before)


def test_what_has_no_other_place_waits_and_is_named(up: Standalone) -> None:
    """A drain also evicts pods that fit on no other node. It reports them as pending and exits with
    5."""
    submit(up, *(POD.replace("NAME", f"full-{number}") for number in range(8)))
    there = {f"default/{pod['name']}" for pod in pods(up).values() if pod["node"] == "n-1"}
    tried = up.run("drain", "n-1", "--reason", "x", "--dry-run")
    assert tried.returncode == 5
    first, *_ = tried.stdout.splitlines()
    assert [int(each) for each in re.findall(r"\b\d+\b", first.replace("n-1", ""))] == (
        [len(there)] * 3
    )
    assert f" and {len(there) - 1} more would be pending: " in tried.stdout, (
        "one reason is said once"
    )
    assert not any(node["cordons"] for node in up.json("get", "nodes")["items"])
    done = up.run("drain", "n-1", "--reason", "x", "--timeout", "90")
    assert done.returncode == 5, done.stdout + done.stderr
    assert f" and {len(there) - 1} more pending: " in done.stdout
    assert f"\n{len(there)} of {len(there)} pods pending\n" in done.stdout
    assert "apportion uncordon n-1" in done.stdout
    assert not [pod for pod in pods(up).values() if pod["node"] == "n-1"]
    up.json("uncordon", "n-1")
    wait_until(lambda: all(pod["node"] for pod in pods(up).values()), "all to have a place again")
    up.json("delete", *pods(up))


def test_who_takes_what_a_drained_pod_gives_back_is_named(up: Standalone) -> None:
    """A drained pod goes to the end of the queue. If another pod then takes the quota that the
    drained pod freed, `drain` prints the name of that other pod."""
    up.json("submit", "-f", "-", stdin=QUOTA.encode())
    submit(up, POD.replace("NAME", "first"))
    first = pods(up)["first"]
    up.run("submit", "-f", "-", "--wait", stdin=POD.replace("NAME", "second").encode())
    assert not pods(up)["second"]["node"]
    tried = up.json("drain", first["node"], "--dry-run", code=5)
    assert tried["planned"] == {"default/first": ""}
    assert tried["instead"].keys() == {"default/second"}
    done = up.json("drain", first["node"], "--reason", "x", "--timeout", "90", code=5)
    assert done["waiting"].keys() == {"default/first"}
    assert done["instead"] == {"default/second": pods(up)["second"]["node"]}
    up.json("uncordon", first["node"])
    up.json("delete", "first", "second")
    up.run("delete", "-f", "-", stdin=QUOTA.encode())


def test_pods_of_a_gang_on_another_node_are_said_to_go_with_it(up: Standalone) -> None:
    """When a gang has pods on the drained node, drain reports that the gang's pods on other nodes
    move too."""
    submit(up, GANG.replace("30000", "79000").replace("2\n", "4\n"))
    there = [name for name, pod in pods(up).items() if pod["node"] == "n-1"]
    elsewhere = {f"default/{name}" for name in set(pods(up)) - set(there)}
    assert (len(there), len(elsewhere)) == (2, 2)
    assert set(up.json("drain", "n-1", "--dry-run", code=5)["with_gang"]) == elsewhere
    headline, *rows = up.run("drain", "n-1", "--dry-run").stdout.splitlines()
    counted = re.findall(r"(?<!-)\b\d+\b", headline)
    assert counted == ["2", "2", "4", "4"], "moved, moved with them, and both have no place"
    assert [re.match(r"default/gang-worker-0 .*\b3 more", row) is not None for row in rows] == [
        True
    ]
    up.json("delete", *pods(up))


def until_it_waits(pid: int) -> None:
    """Wait until process `pid` has been idle for half a second.

    By that time the process has read everything that the server sent."""
    looks = 0

    def waits() -> bool:
        nonlocal looks
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        return looks > 25

    wait_until(waits, "the verb to wait")


def test_ctrl_c_while_room_is_made_tells_who_has_a_place(up: Standalone) -> None:
    """On Ctrl-C, a drain that is waiting for evictions reports which moved pods are placed and
    which are pending.

    In this test a user deletes one of the evicted pods while the drain waits."""
    high, low = (WHOLE.replace("PRIORITY", priority) for priority in ("9", "0"))
    submit(up, *(high.replace("NAME", f"high-{number}") for number in range(2)))
    [node] = {pod["node"] for pod in pods(up).values()}
    moved = set(pods(up))
    submit(up, *(low.replace("NAME", f"low-{number}") for number in range(2)))
    watcher = up.processes()["watcher"]
    os.kill(watcher, signal.SIGSTOP)  # so that no evicted pod ends
    try:
        with subprocess.Popen(
            [*APPORTION, "drain", node, "--reason", "x"], stdout=subprocess.PIPE,
            env={**os.environ, "APPORTION_DATA": str(up.data)}, text=True,
        ) as draining:  # fmt: skip
            [leaving] = wait_until(lambda: having(up, "evicted_for"), "room for one to be made")
            up.json("delete", leaving)
            wait_until(lambda: having(up, "node") & moved, "one to be placed")
            wait_until(lambda: having(up, "room_on"), "room for the other to be made")
            until_it_waits(draining.pid)
            draining.send_signal(signal.SIGINT)
            said, _ = draining.communicate(timeout=30)
    finally:
        os.kill(watcher, signal.SIGCONT)
    assert draining.returncode == 130
    assert re.search(
        rf"^default/high-\d moved to {OTHER[node]}; evicted for it: ", said, re.MULTILINE
    ), said
    assert re.search(r"^default/high-\d pending: ", said, re.MULTILINE), said
    assert [line[:6] for line in said.splitlines()].count("1 pod ") == 2
    up.json("delete", *pods(up))
    up.json("uncordon", node)


def test_ctrl_c_stops_and_says_what_was_done(up: Standalone) -> None:
    """Ctrl-C stops a drain that is waiting for placements. It reports which pods it has moved so
    far, and the node stays cordoned."""
    submit(up, *(POD.replace("NAME", f"stop-{number}") for number in range(2)))
    node = pods(up)["stop-0"]["node"]

    def there() -> list[str]:
        return [name for name, pod in pods(up).items() if pod["node"] == node]

    scheduler = up.processes()["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)
    try:
        process = subprocess.Popen(
            [*APPORTION, "drain", node, "--reason", "x"], stdout=subprocess.PIPE,
            env={**os.environ, "APPORTION_DATA": str(up.data)}, text=True,
        )  # fmt: skip
        wait_until(lambda: not there(), "all its pods to be submitted anew")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    finally:
        os.kill(scheduler, signal.SIGCONT)
    assert process.returncode == 130
    assert out.startswith(f"{node} cordoned")
    assert "\ndefault/stop-0" in out
    assert " undecided\n" in out
    assert " pending: " in out.partition("stopped by Ctrl-C:\n")[2]
    assert f"apportion uncordon {node}" in out
    wait_until(lambda: pods(up)["stop-0"]["node"] not in {"", node}, "the pod to have a place")
    assert up.json("uncordon", node, "--all")


def test_two_people_have_a_reason_each(up: Standalone) -> None:
    """If two users cordon a node, both cordons are shown with user and reason. The node stays
    cordoned until both are lifted."""
    up.json("cordon", "n-3", "--reason", "fan", "--by", "ada")
    told = up.json("cordon", "n-3", "--reason", "firmware", "--by", "bob")
    again = up.run("cordon", "n-3", "--reason", "firmware", "--by", "bob").stdout
    assert "already cordoned by bob" in again
    assert re.search(rf"\brevision {told['revision']}$", again.strip())
    shown = up.run("get", "nodes").stdout
    assert "fan (ada, " in shown
    assert "firmware (bob, " in shown
    assert "fan (ada, " in up.run("top", "--once", "--node", "n-3").stdout
    lifted = up.run("uncordon", "n-3", "--by", "ada")
    assert (lifted.returncode, "firmware (bob)" in lifted.stderr) == (0, True)
    assert up.json("uncordon", "n-3", "--of", "bob", "--by", "ada")["event"] == "NodeCordonLifted"
    [node] = [each for each in up.json("get", "nodes")["items"] if each["node"] == "n-3"]
    assert (node["cordon"], node["cordons"]) == ("", [])


async def test_a_gang_that_is_too_large_is_named_before_anything_is_done(tmp_path: Path) -> None:
    """If a drain would move a gang that fits nowhere else, it is refused before it cordons the
    node."""
    names = [f"w{number}" for number in range(UNIT_MAX + 1)]
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        host = Host(cpu_milli=64_000, memory_mib=64_000, pods=1_000)
        cards = [gpu(f"n1-g{index}", slots=250) for index in range(3)]
        await facts.write(node("n1", *cards, host=host))
        await facts.write(gang("default/big", min_available=2))
        await facts.write(*(member(name, group="default/big") for name in names))
        for number, name in enumerate(names):
            held = share(cards[number % 3].id, memory_mib=1, cores=0)
            await facts.hold(name, "n1", held, bound=False)
        gateway = bus.server.url_for("gateway")
        async with ServiceProcess("gateway", gateway, "--listen", "127.0.0.1:0") as process:
            await process.ready()
            url = str((await process.logged("answering"))["url"]).removesuffix("/api/v1/")
            drain = await asyncio.create_subprocess_exec(
                *APPORTION, "drain", "n1", "--reason", "x", "--gateway", url,
                "--nats", bus.server.url_for("operator"), stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, said = await drain.communicate()
    assert drain.returncode == 1
    assert f"gang default/big has {len(names)} pods, and at most {UNIT_MAX} can" in said.decode()
    assert not facts.of(NodeCordoned)


async def test_where_nobody_answers_no_room_is_waited_for(tmp_path: Path) -> None:
    """If the gateway is unreachable, drain does not wait for evictions, so it can still print its
    report."""
    refused = PodRefused(pod="p", namespace="default", name="p", reasons={}, nodes=0)
    awaited = Awaited([Submitted("default", "p", "p", 1)], lambda: None)
    awaited.decided["p"] = Decided(2, refused=refused)
    async with (
        running_bus(tmp_path / "nats") as bus,
        open_ledger(Reach(url=bus.server.url_for("operator"))) as ledger,
    ):
        nobody = Gateway("http://127.0.0.1:1")
        assert await wait_for_room(ledger, nobody, awaited, {"default/p": 9}, 60) == {}


async def test_a_node_of_kubernetes_is_one_whose_beginning_was_dropped(tmp_path: Path) -> None:
    """Draining a node of a Kubernetes cluster fails if the API server is down, and ends no pod.

    This also holds after the node's first events were trimmed from the ledger."""
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        observed = NodeObserved(
            node="n1", ready=True, cpu_milli=64_000, memory_mib=64_000, pods=100, version=7
        )
        said = await facts.write(observed)
        await facts.write(rack("n1", 1))
        await facts.submit("a")
        await facts.place("a", "n1")
        gateway = bus.server.url_for("gateway")
        async with ServiceProcess("gateway", gateway, "--listen", "127.0.0.1:0") as process:
            await process.ready()
            boot = (await bus.connect("bootstrap")).wire
            await call_api(boot, f"STREAM.PURGE.{STREAM}", {"seq": said + 1})
            url = str((await process.logged("answering"))["url"]).removesuffix("/api/v1/")
            drain = await asyncio.create_subprocess_exec(
                *APPORTION, "drain", "n1", "--reason", "x", "--gateway", url,
                "--kubeconfig", str(tmp_path / "none"),
                "--nats", bus.server.url_for("operator"), stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, words = await drain.communicate()
    assert (drain.returncode, "API server" in words.decode()) == (3, True), words
    assert not facts.of(PodGone)


def test_what_is_not_there_is_named(up: Standalone, tmp_path: Path) -> None:
    """Drain of an unknown node or device fails with an error that names it, and cordons nothing."""
    assert "no device or node" in up.run("drain", "nowhere", "--reason", "x").stderr
    assert up.run("drain", "n-1", "--reason", " ").returncode == 2
    assert not any(node["cordons"] for node in up.json("get", "nodes")["items"])
    assert tmp_path.is_dir()
