"""`plan` predicts what a real `apportion up` then does, and changes nothing."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import wait_until
from tests.support.standalone import Standalone
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow
FLEET = "node,devices\nbig-1,4xH100-80GB\nbig-2,4xH100-80GB\nsmall-1,2xT4\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "COUNT", nvidia.com/gpumem: "MEMORY"}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Run `apportion up` with two nodes of four large GPUs each, and one node of two small GPUs."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(folder / "fleet.csv"))
    with Standalone(folder / "data", *options) as running:
        yield running.up()
    running.nothing_left()


def pod(name: str, memory: int = 1000, count: int = 1) -> str:
    return POD.replace("NAME", name).replace("MEMORY", str(memory)).replace("COUNT", str(count))


def newest(up: Standalone) -> int:
    """Return the newest revision of the ledger."""
    revision: int = up.json("get", "nodes")["revision"]
    return revision


def places(rows: list[dict[str, Any]]) -> dict[str, tuple[str, list[str]]]:
    """Return the node and devices of each placed pod, by pod name."""
    return {
        row["name"]: (row["node"], [held["share"]["device"] for held in row["placed"]["shares"]])
        for row in rows
        if row["placed"]
    }


def test_what_was_planned_then_happens(up: Standalone, tmp_path: Path) -> None:
    """`plan` appends no event. When the same pods are then submitted, they get the nodes and
    devices that `plan` predicted."""
    file = tmp_path / "pods.yaml"
    sizes = [(70_000, 3), (20_000, 1), (90_000, 1), (40_000, 2), (14_000, 2), (80_000, 4)]
    file.write_text("---".join(pod(f"p{at}", *size) for at, size in enumerate(sizes)))
    before = newest(up)
    planned = up.json("plan", "-f", str(file), code=6)
    assert newest(up) == before, "a plan appends nothing"
    assert planned["revision"] == before
    outcomes = {row["name"]: row["outcome"] for row in planned["pods"]}
    assert outcomes["p2"] == "never", "no card has 90,000 MiB"
    report = up.json("submit", "-f", str(file), "--wait", code=1)
    happened = up.json("get", "pods")["items"]
    assert places(planned["pods"]) == {
        row["name"]: (row["node"], [share["device"] for share in row["shares"]])
        for row in happened
        if row["node"]
    }
    waits = {f"default/{name}" for name, outcome in outcomes.items() if outcome != "fits"}
    assert set(report["refused"]) == waits
    again = up.json("plan", "-f", str(file), code=6)
    assert {row["name"]: row["outcome"] for row in again["pods"]} == {
        name: "unchanged" if outcome == "fits" else outcome for name, outcome in outcomes.items()
    }, "whoever waits is decided anew"
    said = up.run("plan", "-f", "-", stdin=pod("p2", 90_000).encode())
    assert said.returncode == 6
    assert re.search("default/p2, .* revision", said.stdout)
    assert "would not fit" in said.stdout


def test_a_lost_node_and_more_nodes(up: Standalone) -> None:
    """`plan --lose` exits with 6 if the lost node's pods fit nowhere else. If nodes are added in
    the same plan, all pods fit."""
    placed = [row for row in up.json("get", "pods")["items"] if row["node"] == "big-1"]
    assert placed
    answer = up.json("plan", "--lose", "big-1", "--lose", "big-2", code=6)
    assert {row["outcome"] for row in answer["moved"]} <= {"never", "fits"}
    helped = up.json("plan", "--lose", "big-1", "--add", "2x4xH100-80GB")
    assert {(row["name"], row["was"]) for row in helped["moved"]} == {
        (row["name"], "big-1") for row in placed
    }
    assert {row["outcome"] for row in helped["moved"]} == {"fits"}
    lost, added = helped["changes"]
    assert (lost["node"], added["value"]) == ("big-1", "2x4xH100-80GB")
    said = up.run("plan", "--lose", "big-1", "--add", "2x4xH100-80GB").stdout
    assert ", ".join(each["words"] for each in helped["changes"]) in said


def test_a_plan_for_the_past(up: Standalone, tmp_path: Path) -> None:
    """A `plan` for an earlier revision finds room for a pod that no longer fits."""
    file = tmp_path / "large.yaml"
    file.write_text(pod("large", 80_000, 4))
    assert up.json("plan", "-f", str(file), code=5)["outcome"] == "not-now"
    before = up.json("plan", "-f", str(file), "--at", "3")
    assert (before["revision"], before["outcome"]) == (3, "fits")
    assert up.run("plan", "-f", str(file), "--at", "999999").returncode == 1


def test_what_is_wrong_is_named(up: Standalone, tmp_path: Path) -> None:
    """For an unknown node or model, an oversized input or an invalid document, `plan` names the
    problem and exits with the matching code."""
    done = up.run("plan", "--lose", "big-9")
    assert done.returncode == 1
    assert "'big-9'" in done.stderr
    assert "big-2, big-1?" in done.stderr
    done = up.run("plan", "--add", "2xTuring")
    assert done.returncode == 2
    assert "model 'Turing'" in done.stderr
    assert up.run("plan").returncode == 2
    done = up.run("plan", "-f", "-", stdin=b"#" * (1 << 20))
    assert done.returncode == 2
    assert re.search(r"has \d+ bytes, more than 1048576; send fewer", done.stderr)
    file = tmp_path / "two.yaml"
    file.write_text(pod("fine") + "---\nkind: Pod\n")
    done = up.run("plan", "-f", str(file))
    assert done.returncode == 1
    assert f"{file}, document 2" in done.stderr
    assert "default/fine fits on" in done.stdout
    file.write_text("kind: Pod\n")
    done = up.run("plan", "-f", str(file))
    assert (done.returncode, done.stdout) == (1, ""), "of what cannot be used nothing is planned"
    assert str(file) in done.stderr


def _post(up: Standalone, body: bytes, **headers: str) -> tuple[int, bytes]:
    address = json.loads((up.data / "connection.json").read_text())["gateway"]  # type: ignore[operator]
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    try:
        headers = {"Content-Type": "application/json", **headers}
        connection.request("POST", "/api/v1/plan", body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_over_http(up: Standalone) -> None:
    """The gateway answers a plan request with JSON. It refuses an oversized or invalid request, and
    names the field and the fix."""
    status, body = _post(up, json.dumps({"manifest": pod("http")}).encode())
    assert status == 200
    assert json.loads(body)["pods"][0]["outcome"] == "fits"
    for sent, code, field in (
        (b"{", 400, "body"),
        (b'{"policies": 1}', 400, "body"),
        (b"{}", 400, "manifest"),
        (b'{"lose": ["n9"]}', 404, "lose"),
        (json.dumps({"lose": [str(n) for n in range(2_000)]}).encode(), 400, "lose"),
        (b" " * (4 << 20), 413, "body"),
    ):
        status, body = _post(up, sent)
        error = json.loads(body)
        assert (status, error["field"]) == (code, field)
        assert error["fix"]
    lines = _post(up, b'{"lose": ["n9"]}', Accept="application/x-ndjson")[1].splitlines()
    assert json.loads(lines[-1])["status"] == 404


def test_a_page_of_another_site_gets_no_plan(up: Standalone) -> None:
    """Even without a login the gateway refuses a plan posted by another site's page."""
    body = json.dumps({"manifest": pod("foreign")}).encode()
    for headers, code, field in (
        ({"Content-Type": "text/plain"}, 415, "Content-Type"),
        ({"Origin": "https://elsewhere.example"}, 403, "Origin"),
    ):
        status, answer = _post(up, body, **headers)
        assert (status, json.loads(answer)["field"]) == (code, field)


def test_who_hangs_up_ends_the_plan(up: Standalone) -> None:
    """The gateway computes a plan in a forked process and keeps answering other requests. When the
    client disconnects, the gateway ends that process."""
    many = "---".join(pod(f"many-{n}", 1000 + n) for n in range(2_000))
    file = up.data / "many.yaml"  # type: ignore[operator]
    file.write_text(many)
    with Terminal("plan", "-f", str(file), data=up.data) as verb:
        wait_until(lambda: _forks(up), "the gateway to fork", interval_s=0.02)
        up.json("submit", "-f", "-", "--wait", stdin=pod("meanwhile").encode())
        verb.interrupted()
    wait_until(lambda: not _forks(up), "the fork to end")
    assert up.json("plan", "-f", "-", stdin=pod("after").encode())["outcome"] == "fits"


def _forks(up: Standalone) -> list[str]:
    """Return the ids of the gateway's child processes, except the one that reads past states."""
    pid = up.processes()["gateway"]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if b"past_process" not in _command_line(child)]


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
