"""CLI verbs against a real `apportion up`, as a user runs them in a second terminal."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apportion.core.ledger.invariants import violations
from tests.support.polling import wait_until
from tests.support.standalone import Standalone
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow
FLEET = "node,devices\nbig-1,4xH100-80GB\nmig-1,2xA100-40GB:mig\nnpu-1,1xAscend310P\nsmall-1,2xT4\n"
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
JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: NAME}
spec:
  minAvailable: COUNT
  tasks:
  - name: worker
    replicas: COUNT
    template:
      spec:
        containers:
        - {name: main, image: x, resources: {limits: {nvidia.com/gpu: "1"}}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Run `apportion up` for all tests of this module: a small fleet with every kind of device,
    without sample pods."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(folder / "fleet.csv"))
    with Standalone(folder / "data", *options) as running:
        yield running.up()
    running.nothing_left()


def pod(name: str, memory: int | str = 1000, count: int | str = 1) -> bytes:
    text = POD.replace("NAME", name).replace("MEMORY", str(memory)).replace("COUNT", str(count))
    return text.encode()


def submit(up: Standalone, *documents: bytes, code: int = 0) -> Any:
    """Submit these manifests on standard input, wait until each pod is placed or refused, and
    return `submit`'s JSON report."""
    return up.json("submit", "-f", "-", "--wait", code=code, stdin=b"---".join(documents))


def test_life_of_a_pod(up: Standalone) -> None:
    """A pod is submitted, placed, allocated, explained by `why`, deleted, and gone."""
    report = submit(up, pod("alive"))
    [told] = report["submitted"]
    assert list(report["placed"]) == ["default/alive"]
    wait_until(lambda: _phase(up, "alive") == "allocated", "the pod to be allocated")
    why = up.json("why", "alive")
    assert [step["phase"] for step in why["history"]] == [
        "submitted", "placed", "bound", "allocated",
    ]  # fmt: skip
    assert why["history"][0]["revision"] == told["revision"]
    assert why["placed"]["node"] in why["sentence"]
    said = up.run("why", "default/alive").stdout
    assert why["sentence"] in said
    deleted = up.json("delete", "alive")["deleted"]
    revision = str(deleted["default/alive"])
    ended = up.run("why", "alive", "--at-least", revision)
    assert (ended.returncode, f"ended at revision {revision}" in ended.stdout) == (0, True)


def _phase(up: Standalone, name: str) -> str:
    pods = {pod["name"]: pod["phase"] for pod in up.json("get", "pods")["items"]}
    return str(pods.get(name, ""))


def test_pod_that_fits_nowhere(up: Standalone) -> None:
    """For a pod that fits nowhere, `submit` exits with 1. It prints what each node lacks, and which
    change would help."""
    report = submit(up, pod("huge", 200_000), code=1)
    assert list(report["refused"]) == ["default/huge"]
    why = up.json("why", "huge")
    causes = {cause["code"]: cause["nodes"] for cause in why["refused"]["causes"]}
    assert sum(causes.values()) == why["refused"]["nodes"] == 4
    nearest = why["refused"]["nearest"][0]
    assert (nearest["node"], nearest["missing"]) == ("big-1", "118,441 MiB")
    said = up.run("why", "huge").stdout
    assert "118,441 MiB" in said
    assert re.search(r"^NODES +CAUSE +FIX$", said, re.MULTILINE), said
    for cause in why["refused"]["causes"]:
        assert cause["unblocked_by"]
        assert cause["unblocked_by"] in said
    assert _names(up, "--phase", "pending") == ["huge"]
    up.json("delete", "huge")


def _names(up: Standalone, *filters: str) -> list[str]:
    return [pod["name"] for pod in up.json("get", "pods", *filters)["items"]]


def test_bad_document_is_named_and_the_others_go_on(up: Standalone) -> None:
    """`submit` places the valid documents of its input. For an invalid document it prints the
    document's number, the field, the value and a fix on standard error."""
    done = up.run(
        "submit", "-f", "-", "--wait",
        stdin=b"---".join([pod("good-1"), pod("bad", count="many"), pod("good-2")]),
    )  # fmt: skip
    assert done.returncode == 1
    for part in ("standard input", "document 2", "nvidia.com/gpu", '"many"', "write"):
        assert part in done.stderr
    assert "2 submitted, 2 placed, 1 document" in done.stdout
    up.json("delete", "good-1", "good-2")


@pytest.mark.parametrize(
    ("case", "part"),
    [
        (b"x: " + b"y" * (10 << 20), "larger than"),
        (
            b"a: &a [x]\n"
            + b"".join(b"%c: &%c [%s]\n" % (c, c, b", ".join([b"*%c" % (c - 1)] * 9))
                       for c in range(ord("b"), ord("j"))),
            "document 1",
        ),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"", "the file is empty"),
        (b"apiVersion: v1\nkind: Banana\nmetadata: {name: x}\n", "Banana"),
    ],
    ids=["10-MB", "YAML-bomb", "not-text", "empty", "unknown-kind"],
)  # fmt: skip
def test_hostile_manifests(up: Standalone, case: bytes, part: str) -> None:
    """`submit` refuses a hostile manifest with a clear error and exit code 1, and submits
    nothing."""
    before = _said_of_pods(up)
    done = up.run("submit", "-f", "-", stdin=case)
    assert done.returncode == 1, done.stderr
    assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert _said_of_pods(up) == before


def _said_of_pods(up: Standalone) -> str:
    """Return all workload events of the ledger as JSON lines."""
    told = up.run("tail", "--from", "1", "--subject", "workload.>", "--no-follow", "--json")
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_pod_of_50_000_containers(up: Standalone) -> None:
    """`submit` refuses a pod with 50,000 containers and names the field. It still accepts the other
    pod in the same file."""
    container = "  - {name: c%d, image: x}\n"
    huge = "apiVersion: v1\nkind: Pod\nmetadata: {name: many}\nspec:\n  containers:\n" + "".join(
        container % number for number in range(50_000)
    )
    done = up.run("submit", "-f", "-", "--wait", stdin=b"---\n".join([huge.encode(), pod("ok")]))
    assert done.returncode == 1
    assert "spec.containers" in done.stderr
    assert "default/ok" in done.stdout
    up.json("delete", "ok")


def test_submitting_again_changes_nothing(up: Standalone) -> None:
    """Submitting a live pod again changes nothing and appends no event."""
    submit(up, pod("once"))
    wait_until(lambda: _phase(up, "once") == "allocated", "the pod to be allocated")
    before = up.json("get", "pods")
    report = submit(up, pod("once"))
    assert (report["submitted"], report["unchanged"]) == ([], ["default/once"])
    assert up.json("get", "pods") == before
    up.json("delete", "once")


def test_gang_is_placed_whole_or_not_at_all(up: Standalone) -> None:
    """The scheduler places all pods of a gang that needs four GPUs. For a gang that needs 40 GPUs,
    more than the fleet has, it places no pod."""
    fits = JOB.replace("NAME", "fits").replace("COUNT", "4").encode()
    report = up.json("submit", "-f", "-", "--wait", stdin=fits)
    assert len(report["placed"]) == 4
    large = JOB.replace("NAME", "large").replace("COUNT", "40").encode()
    report = up.json("submit", "-f", "-", "--wait", code=1, stdin=large)
    assert not report["placed"]
    assert len(report["refused"]) == 40
    assert "needs to place 40 pods together" in up.run("why", "large-worker-0").stdout
    gangs = {gang["group"]: gang for gang in up.json("get", "gangs")["items"]}
    assert gangs["default/large"]["phases"] == {"pending": 40}
    done = up.run("delete", *(f"large-worker-{n}" for n in range(40)),
                  *(f"fits-worker-{n}" for n in range(4)))  # fmt: skip
    assert done.returncode == 0


def test_cordon_and_uncordon(up: Standalone) -> None:
    """Cordoned nodes and devices take no new pods, `why` names the cordon, and `uncordon` lifts the
    cordon."""
    for node in ("big-1", "mig-1", "small-1"):
        up.json("cordon", node, "--reason", "moving house")
    report = submit(up, pod("homeless"), code=1)
    assert "node is cordoned" in report["refused"]["default/homeless"]
    assert "moving house" in up.run("get", "nodes").stdout
    said = up.run("why", "homeless").stdout
    assert re.search(r"apportion uncordon (big|mig|small)-1", said)
    up.json("uncordon", "small-1")
    wait_until(lambda: _phase(up, "homeless") == "allocated", "the pod to be placed after all")
    assert "not cordoned" in up.run("uncordon", "small-1").stderr
    [device] = [d for d in up.json("get", "devices", "--node", "small-1")["items"] if d["holders"]]
    told = up.json("cordon", device["device"][:8], "--reason", "fan", "--by", "ann")
    assert (told["event"], told["target"], told["by"]) == (
        "DeviceCordoned", device["device"], "ann",
    )  # fmt: skip
    up.json("uncordon", device["device"], "--of", "ann")
    card = up.json("get", "devices", "--node", "big-1")["items"][0]["device"]
    up.json("cordon", card, "--reason", "fan", "--by", "ann")
    wait_until(lambda: _cordoned(up, "big-1") == [card], "the card's own cordon")
    for node in ("big-1", "mig-1"):
        lifted = up.run("uncordon", node)
        assert lifted.returncode == 0
        assert ("has its own cordon: fan (ann)" in lifted.stderr) == (node == "big-1")
    up.json("uncordon", card, "--all")
    up.json("delete", "homeless")


def _cordoned(up: Standalone, node: str) -> list[str]:
    """Return the devices of the node that have a cordon of their own."""
    devices = up.json("get", "devices", "--node", node)["items"]
    return [each["device"] for each in devices if each["cordons"]]


def test_a_pod_that_runs_is_resized_where_it_is(up: Standalone) -> None:
    """`resize` changes a running pod's memory and cores on the same device. It refuses more memory
    than the device has."""
    submit(up, pod("grows"))
    wait_until(lambda: _phase(up, "grows") == "allocated", "the pod to be allocated")
    before = up.json("why", "grows")["placed"]["shares"]
    said = up.json("resize", "grows", "--memory", "3000", "--cores", "20", "--by", "ann")
    assert said["asked"] < said["revision"]
    assert said["cores_from_next_process"]
    assert not up.json("resize", "grows", "--memory", "3000")["cores_from_next_process"]
    at_least = ("--at-least", str(said["revision"]))
    (held,) = up.json("why", "grows", *at_least)["placed"]["shares"]
    (was,) = before
    assert (held["share"]["memory_mib"], held["share"]["cores"]) == (3000, 20)
    assert held["share"]["device"] == was["share"]["device"]
    shown = up.run("resize", "default/grows", "--memory", "2500").stdout
    assert "2,500 MiB" in shown
    refused = up.run("resize", "grows", "--memory", "500000")
    assert refused.returncode == 1
    assert "500,000" in refused.stdout + refused.stderr
    assert up.json("why", "grows")["placed"]["shares"][0]["share"]["memory_mib"] == 2500
    assert up.run("resize", "grows").returncode == 2
    up.json("delete", "grows")


def test_device_that_fails_and_recovers(up: Standalone) -> None:
    """`simulate fail` and `simulate recover` make the agent change a device's health, and the
    ledger records each change."""
    [device] = [d["device"] for d in up.json("get", "devices", "--node", "npu-1")["items"]]
    up.json("simulate", "fail", device, "--reason", "XID 79")
    wait_until(
        lambda: not up.json("get", "devices", "--node", "npu-1")["items"][0]["healthy"],
        "the device to be unhealthy",
    )
    assert "XID 79" in up.run("top", "--once").stdout
    up.json("simulate", "recover", device)
    wait_until(
        lambda: up.json("get", "devices", "--node", "npu-1")["items"][0]["healthy"],
        "the device to be healthy",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("why", "nobody"),
        ("delete", "nobody"),
        ("cordon", "nothing", "--reason", "x"),
        ("resize", "nobody", "--memory", "1"),
        ("simulate", "fail", "GPU-nothing"),
        ("get", "devices", "--node", "nowhere"),
    ],
)
def test_not_found_is_exit_code_1(up: Standalone, words: tuple[str, ...]) -> None:
    """A verb that does not find its object exits with 1 and names the missing object."""
    done = up.run(*words)
    assert done.returncode == 1, done.stderr
    assert re.search("nobody|nothing|nowhere", done.stderr)
    assert "Traceback" not in done.stderr


def test_delete_says_that_a_name_is_of_a_node_or_a_device(up: Standalone) -> None:
    """If `delete` gets the name of a node or device, it suggests `drain`. A name with a namespace
    always means a pod."""
    device = up.json("get", "devices", "--node", "npu-1")["items"][0]["device"][:10]
    said = {
        name: up.run("delete", name).stderr for name in ("npu-1", device, "default/npu-1", "nosuch")
    }
    for target in ("npu-1", device):
        assert f"`apportion drain {target}" in said[target]
    assert "drain" not in said["default/npu-1"] + said["nosuch"]


@pytest.mark.parametrize(
    "words",
    [
        ("submit",),
        ("submit", "-f", "x", "--trace", "y"),
        ("delete",),
        ("cordon", "big-1"),
        ("cordon", "big-1", "--reason", " "),
        ("policy", "set"),
        ("resize", "nobody"),
        ("resize", "nobody", "--cores", "101"),
        ("get", "pods", "--phase", "running"),
        ("get", "pods", "--gateway", "localhost"),
        ("tail", "--subject", "a b"),
        ("tail", "--subject", "foo"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_exit_code_2(up: Standalone, words: tuple[str, ...]) -> None:
    """Wrong usage exits with 2 and changes nothing."""
    done = up.run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("get", "pods", "--gateway", "http://127.0.0.1:1"),
        ("top", "--once", "--gateway", "http://127.0.0.1:1"),
        ("tail", "--nats", "nats://auditor:wrong@127.0.0.1:1"),
        ("ledger", "check", "--nats", "nats://operator:wrong@127.0.0.1:PORT"),
        ("get", "pods", "--data", "/nonexistent"),
        ("tail", "--data", "/nonexistent"),
    ],
)
def test_unreachable_is_exit_code_3(up: Standalone, words: tuple[str, ...]) -> None:
    """A verb that cannot reach a service exits with 3, names the address and never prints a
    password."""
    assert up.data is not None
    port = str(json.loads((up.data / "credentials.json").read_text())["port"])
    done = up.run(*(word.replace("PORT", port) for word in words))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "wrong@" not in done.stderr
    assert "Traceback" not in done.stderr


def test_tail(up: Standalone) -> None:
    """`tail` prints events as sentences or as JSON. Its options choose the first revision, the
    subjects and the number of events."""
    submit(up, pod("told"))
    words = up.run("tail", "--from", "1", "--no-follow").stdout
    assert re.search(r"PodSubmitted +default/told .*1,000 MiB", words)
    assert re.search(r"PodPlaced +default/told ", words)
    lines = up.run("tail", "--from", "1", "--limit", "3", "--json").stdout.splitlines()
    assert [json.loads(line)["revision"] for line in lines] == [1, 2, 3]
    placed = up.run("tail", "--from", "1", "--subject", "placement.>", "--no-follow", "--json")
    subjects = {json.loads(line)["subject"] for line in placed.stdout.splitlines()}
    assert subjects
    assert all(subject.startswith("apportion.v1.placement.") for subject in subjects)
    up.json("delete", "told")
    ended = up.run("tail", "--from", "1", "--subject", "workload.>", "--no-follow", "--json")
    newest = json.loads(ended.stdout.splitlines()[-1])["revision"]
    alone = up.run("tail", "--from", str(newest), "--limit", "1")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert "default/told ended: deleted by" in alone.stdout


def test_tail_ends_where_it_is_told_to(up: Standalone) -> None:
    """`tail --to` stops at the given revision or time while the ledger grows. It refuses an end
    before the start or beyond the newest event."""
    told = up.run("tail", "--from", "2", "--to", "4", "--json").stdout.splitlines()
    assert [json.loads(line)["revision"] for line in told] == [2, 3, 4]
    all_of_it = up.run("tail", "--from", "-1h", "--to", "now")
    assert all_of_it.stdout.startswith(up.run("tail", "--from", "1", "--to", "4").stdout)
    assert re.findall(r"Z: revision ([\d,]+)", all_of_it.stderr)[0] == "1,"
    for words, says in (
        (("--to", "4"), "--to requires --from"),
        (("--from", "4", "--to", "2"), "--to 2 is before --from 4"),
        (("--from", "4", "--to", "3"), "--to 3 is before --from 4"),
        (("--from", "-1h", "--to", "-2h"), "--to -2h is before --from -1h"),
        (("--from", "2020-01-01T00:00", "--to", "2020-01-02T00:00"), "is before the first event"),
        (("--from", "4", "--to", "99999"), "--to: revision 99999 is beyond the end of the ledger"),
        (("--from", "4", "--to", "soon"), "--to: 'soon' is not a time"),
    ):
        done = up.run("tail", *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout
        assert says in done.stderr


def test_tail_begins_no_later_than_the_next_event(up: Standalone) -> None:
    """`tail --from` accepts the revision right after the newest event, and refuses any later
    revision."""
    end = up.json("get", "nodes")["revision"]
    done = up.run("tail", "--from", str(end + 1_000), "--no-follow")
    assert done.returncode == 2, done.stderr
    assert re.search(rf"revision {end + 1_000} is beyond the end of the ledger, \d+;", done.stderr)
    done = up.run("tail", "--from", str(end + 1), "--no-follow")
    assert done.returncode == 0, done.stderr


def test_policy(up: Standalone) -> None:
    """A policy change applies at once. Settings that the change does not name keep their values."""
    up.json("policy", "set", "--nodes", "spread", "--reason", "test")
    changed = up.json("policy", "set", "--devices", "spread")
    assert changed["policy"]["node_policy"] == "spread"
    wait_until(lambda: up.json("policy", "get")["device_policy"] == "spread", "the policy")
    up.json("policy", "set", "--nodes", "binpack", "--devices", "binpack")


def test_top_shows_who_is_where(up: Standalone) -> None:
    """`top` shows every device with its usage bar and its pods. Without a terminal it prints one
    screen and exits."""
    submit(up, pod("seen", 42_000))
    said = up.run("top").stdout
    assert said.count("H100 80GB") == 4
    assert re.search(r"█+░+ 41/80 ", said)
    assert " seen" in said
    up.json("delete", "seen")


def test_top_is_live(up: Standalone) -> None:
    """On a terminal `top` fills the screen, shows a new pod without a key press, and exits with 0
    on Ctrl-C."""
    with Terminal("top", data=up.data) as screen:
        screen.shows("A100-SXM4-40GB")
        submit(up, pod("arrives"))
        screen.shows("arrives")
        assert screen.interrupted() == 0
    up.json("delete", "arrives")


def test_ledger_check(up: Standalone) -> None:
    """`ledger check` accepts the ledger's stream. `ledger create` succeeds if the stream exists
    with the same settings, and fails if a setting differs."""
    assert up.json("ledger", "check")["ok"]
    assert up.json("ledger", "create")["ok"]
    assert up.run("ledger", "create", "--replicas", "3").returncode == 1


def test_trace(up: Standalone, tmp_path: Path) -> None:
    """`submit --trace --limit N` submits one pod for each of the first N rows of the trace file. It
    waits until every pod is placed or refused."""
    rows = "".join(f"t-{n:03},1000,1024,1,{100 + n % 5 * 100},\n" for n in range(60))
    file = tmp_path / "pods.csv"
    file.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + rows)
    done = up.run("submit", "--trace", str(file), "--limit", "50", "--wait", "--json")
    report = json.loads(done.stdout)
    assert len(report["submitted"]) == 50
    assert len(report["placed"]) + len(report["refused"]) == 50
    assert report["placed"]
    up.json("delete", "-n", "trace", *(pod["name"] for pod in report["submitted"]))


def test_ledger_folds_without_a_contradiction(up: Standalone) -> None:
    """After all tests above, the state folded from the ledger violates no invariant.

    The only events that the fold may refuse are those about pods that had already been deleted."""
    state = up.folded().state
    assert violations(state) == []
    assert [event for event in state.refused_events if "is not live" not in event.reason] == []
    assert not state.pods
