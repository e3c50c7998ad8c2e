"""`replay` simulates the events of a real ledger again, on the recorded fleet or on another one."""

import json
import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from apportion.runtime.files.safe_yaml import parse
from tests.integration.cli.test_plan import pod
from tests.support.documented import blocks, text_of
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow
FLEET = "node,devices\nbig-1,1xH100-80GB\n"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Provide a fleet of one GPU. One pod uses it for a while, and a second pod waits until the
    first ends."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(folder / "fleet.csv"))
    with Standalone(folder / "data", *options) as running:
        running.up()
        running.json("submit", "-f", "-", "--wait", stdin=pod("first", 80_000).encode())
        running.json("submit", "-f", "-", "--wait", stdin=pod("second", 80_000).encode(), code=1)
        running.json("delete", "first")
        wait_until(lambda: _node(running, "second"), "the second to have its place")
        yield running
    running.nothing_left()


def _node(up: Standalone, name: str) -> str:
    [found] = [row for row in up.json("get", "pods")["items"] if row["name"] == name]
    return str(found["node"])


def _waits(up: Standalone) -> tuple[float, float]:
    """Return two totals of the two pods' waiting times, in seconds.

    The first is as recorded. The second is what is expected if the scheduler placed each pod
    instantly."""
    lines = up.run("tail", "--from", "1", "--no-follow", "--json").stdout.splitlines()
    events = [json.loads(line)["event"] for line in lines]

    def at_s(kind: str) -> list[float]:
        times = [each["time"] for each in events if each["type"] == f"apportion.dev/{kind}"]
        return [datetime.fromisoformat(time).timestamp() for time in times]

    (came, second_came), (had, second_had) = at_s("PodSubmitted"), at_s("PodPlaced")
    (gone,) = at_s("PodGone")
    return had - came + second_had - second_came, came + (gone - had) - second_came


def test_as_it_was(up: Standalone) -> None:
    """A replay without changes gives the recorded waiting time and adds nothing to the ledger."""
    before = up.json("get", "nodes")["revision"]
    answer = up.json("replay")
    assert up.json("get", "nodes")["revision"] == before
    happened, replayed = answer["happened"], answer["replayed"]
    assert answer["changes"] == []
    for course in (happened, replayed):
        assert (course["arrived"], course["placed"], course["unplaced"]) == (2, 2, 0)
        assert course["devices_peak"] == 1
    waited_s, wait_replayed_s = _waits(up)
    assert replayed["gpu_hours_waited"] > 0
    assert replayed["gpu_hours_waited"] / happened["gpu_hours_waited"] == pytest.approx(
        wait_replayed_s / waited_s, rel=0.05
    )
    assert answer["span"]["to_revision"] == before


def test_another_fleet_saves_the_waiting(up: Standalone, tmp_path: Path) -> None:
    """With a second GPU, added with --add or as part of another --fleet, no pod waits."""
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("node,devices\nnew-1,2xH100-80GB\n")
    for words in (("--add", "1xH100-80GB"), ("--fleet", str(fleet))):
        answer = up.json("replay", *words)
        assert answer["replayed"]["gpu_hours_waited"] < answer["happened"]["gpu_hours_waited"] / 2
        assert answer["gpu_hours_waited_saved"] > 0
        assert answer["gpus_saved"] == -1


def test_out_of_the_archive(up: Standalone, tmp_path: Path) -> None:
    """`replay` reads an archive file without a server, and refuses a truncated archive."""
    archive = tmp_path / "all.jsonl"
    assert up.run("ledger", "archive", str(archive)).returncode == 0
    told = up.json("replay", "--archive", str(archive))
    assert (told["happened"]["arrived"], told["replayed"]["placed"]) == (2, 2)
    archive.write_text(archive.read_text()[:-100])
    assert up.run("replay", "--archive", str(archive)).returncode == 1


def test_table_and_chart(up: Standalone, tmp_path: Path) -> None:
    """`replay` prints a readable table, and writes a chart that loads nothing from another host."""
    page, picture = tmp_path / "day.html", tmp_path / "day.svg"
    said = up.run("replay", "--policy", "spread", "--chart", str(page)).stdout
    assert "GPU-hours pending" in said
    assert "policy spread" in said
    up.run("replay", "--chart", str(picture))
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")  # noqa: S314 - our own
    for text in (page.read_text(), picture.read_text()):
        assert "ACTUAL" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


CLOSED = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: default}
status: {state: Closed}
"""
GATES = ("--gate", "queue/default:pending-at-end<=0", "--gate", "namespace/default:wait-max<=1d")


def test_other_queues_and_gates(up: Standalone, tmp_path: Path) -> None:
    """With a closed queue `replay` places no pod. It exits with 7 if --gate limits pending pods."""
    queues = tmp_path / "queues.yaml"
    queues.write_text(CLOSED)
    now = up.json("replay", *GATES)
    assert [gate["verdict"] for gate in now["gates"]] == ["kept", "kept"]
    closed = up.json("replay", "-f", str(queues), *GATES, code=7)
    assert [(gate["happened"], gate["verdict"]) for gate in closed["gates"]] == [
        (0, "exceeded"), (closed["teams"][-1]["happened"]["wait_max_s"], "kept"),
    ]  # fmt: skip
    assert closed["replayed"]["unplaced"] >= 1
    assert [(each["kind"], each["replayed"]["unplaced"]) for each in closed["teams"]] == [
        ("queue", closed["replayed"]["unplaced"]), ("namespace", closed["replayed"]["unplaced"]),
    ]  # fmt: skip
    said = up.run("replay", "-f", str(queues), *GATES)
    assert said.returncode == 7
    assert "queue default" in said.stderr
    assert "exceeded" in said.stdout


def test_manifests_with_doubts_and_gates_without_pods(up: Standalone, tmp_path: Path) -> None:
    """`replay` warns about probable mistakes in manifests and about HyperNodes without effect. It
    exits with 7 if --gate names a queue without pods."""
    setup = tmp_path / "setup.yaml"
    setup.write_text(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: idle}\n"
        "spec: {capability: {nvidia.com/gpuu: 0}}\n---\n"
        "apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata: {name: a}\n"
        "spec: {tier: 1, members: [{type: Node, selector: {exactMatch: {name: big-1}}}]}\n"
    )
    done = up.run("replay", "-f", str(setup), "--gate", "queue/idle:wait-max<=1h", "--json")
    assert done.returncode == 7
    assert [gate["verdict"] for gate in json.loads(done.stdout)["gates"]] == ["no-pods"]
    for said in ("line 4", 'spec.capability["nvidia.com/gpuu"]', "HyperNodes have no effect"):
        assert said in done.stderr
    setup.write_text("apiVersion: kueue.x-k8s.io/v1beta1\nkind: Topology\nmetadata: {name: a}\n")
    assert up.run("replay", "-f", str(setup)).returncode == 1


def test_the_step_for_ci_of_the_guide(up: Standalone, tmp_path: Path) -> None:
    """The guide's CI step runs without a server. It fails if a manifest is invalid, if a limit of
    --gate is exceeded, or if the queue of a gate has no pods."""
    queues, step = blocks(text_of("docs/tasks/replay.md"), "yaml")
    script = msgspec.convert(next(parse(step)).content, list[dict[str, str]])[0]["run"]
    assert up.run("ledger", "archive", str(tmp_path / "ledger.jsonl")).returncode == 0
    program = f'apportion() {{ {shlex.quote(sys.executable)} -m apportion.cli.main "$@"; }}'

    def code(queues: str, script: str) -> int:
        (tmp_path / "queues.yaml").write_text(queues)
        done = subprocess.run(
            ["/bin/bash", "-ec", f"{program}\n{script}"], cwd=tmp_path, check=False,
            env={**os.environ, "APPORTION_DATA": str(tmp_path / "none")}, timeout=60,
        )  # fmt: skip
        return done.returncode

    assert code(queues, script) == 7
    ours = script.replace("queue/ml", "queue/default").replace("queue/web", "namespace/default")
    assert code(queues, ours) == 0
    assert code(queues.replace("deserved", "weight"), ours) == 1
    assert code(CLOSED, script.replace("queue/ml:wait-p95<=1h", "default:pending-at-end<=0")) == 2
    assert code(queues + "---" + CLOSED, ours.replace("wait-p95<=1h", "pending-at-end<=0")) == 7


def test_which_additional_node_would_have_saved_waiting(up: Standalone, tmp_path: Path) -> None:
    """`report capacity` tries each node type of the fleet, of the price file and of --node. One
    more H100 would have avoided the second pod's wait; a T4 would not."""
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[models]\n"NVIDIA Tesla T4" = 0.2\n"*" = 2\n')
    answer = up.json("report", "capacity", "--prices", str(prices))
    best, other = answer["rows"]
    assert ("H100" in best["node"], best["in_fleet"]) == (True, True)
    assert 0 < best["saved_gpu_hours"] <= answer["waited_gpu_hours"]
    assert best["cost"] > 0
    assert best["saved_per_unit"] > 0
    assert ("T4" in other["node"], other["saved_gpu_hours"]) == (True, 0)
    [named] = up.json("report", "capacity", "--node", "1xH100-80GB", "--from", "1")["rows"]
    assert (named["saved_gpu_hours"] > 0, named["cost"]) == (True, None)
    for words, code in (
        (("--node", "8xH1000"), 2), (("--count", "0"), 2),
        (("--prices", str(tmp_path)), 2), (("--from", "noon"), 2),
    ):  # fmt: skip
        assert up.run("report", "capacity", *words).returncode == code, words
    replayed = up.json("replay", "--prices", str(prices))
    assert replayed["currency"] == "EUR"
    assert all(team["happened"]["cost"] > 0 for team in replayed["teams"])
    prices.write_text('currency = "EUR"\n[models]\n"NVIDIA Tesla T4" = 0.2\n')
    assert up.run("replay", "--prices", str(prices)).returncode == 1
    prices.write_text("currency = 1")
    assert up.run("report", "capacity", "--prices", str(prices)).returncode == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "noon"), "--from: 'noon' is not a time"),
        (("--from", "999999"), "--from is revision 999999, but the ledger has 1 to"),
        (("--from", "-1m", "--to", "-2m"), "--to is not after --from"),
        (("--lose", "big-9"), "no node or device 'big-9'"),
        (("--chart", "day.pdf"), "must end with .html or .svg"),
        (("--policy", "best"), "'best' is not one of"),
        (("--gate", "default:wait-p95<30m"), "is not a gate; write TEAM:MEASURE<=BOUND"),
        (("--gate", "absent:wait-p95<=30m"), "no queue or namespace 'absent'"),
        (("--gate", "default:wait-p95<=30m"), "'default' is a queue and a namespace; write queue/"),
    ],
)
def test_what_makes_no_sense_is_refused(up: Standalone, words: tuple[str, ...], says: str) -> None:
    """`replay` refuses options that make no sense, with exit code 2 and an error that names the
    problem."""
    done = up.run("replay", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
