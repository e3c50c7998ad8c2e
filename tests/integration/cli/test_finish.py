"""Details of the CLI's output, against a real `apportion up` with twelve nodes."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.support.polling import wait_until
from tests.support.standalone import APPORTION, Standalone
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: SPACE}
spec:
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}}
"""
LONG_NAME = "distributed-training-worker-0"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Run `apportion up` with twelve nodes, and with pods in two namespaces."""
    folder = tmp_path_factory.mktemp("finish")
    options = ("--no-samples", "--nodes", "12", "--fleet", "2xT4")
    with Standalone(folder / "data of mine", *options) as running:
        running.up()
        for name, space in (("one", "default"), ("two", "default"), ("trainer", "team-a"),
                            (LONG_NAME, "team-a")):  # fmt: skip
            submit(running, name, space)
        submit(running, "twin", "team-a")
        submit(running, "twin", "team-b")
        yield running
    running.nothing_left()


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a price file with one price per GPU-hour for every model."""
    file = tmp_path_factory.mktemp("prices") / "prices.toml"
    file.write_text('currency = "EUR"\n[models]\n"*" = 0.5\n')
    return file


def submit(up: Standalone, name: str, space: str) -> None:
    """Submit one pod and wait for its decision."""
    text = POD.replace("NAME", name).replace("SPACE", space)
    up.json("submit", "-f", "-", "--wait", stdin=text.encode())


def settle(up: Standalone) -> None:
    """Wait until every pod is allocated, so that lists no longer change."""

    def settled() -> bool:
        return all(pod["phase"] == "allocated" for pod in up.json("get", "pods")["items"])

    wait_until(settled, "all pods to be allocated")


def test_names_are_in_the_order_in_which_people_count(up: Standalone) -> None:
    """Tables, API pages and `top` sort node-2 before node-10."""
    names = [f"node-{number}" for number in range(1, 13)]
    assert up.run("get", "nodes", "-o", "name").stdout.split() == names
    assert [node["node"] for node in up.json("get", "nodes")["items"]] == names
    devices = up.json("top")["items"]
    assert list(dict.fromkeys(device["node"] for device in devices)) == names


def test_lists_of_what_is_named(up: Standalone) -> None:
    """`get pods` with several names prints the pods that exist. For an unknown name it prints a
    suggestion and exits with 1."""
    found = up.json("get", "pods", "one", "team-a/trainer")["items"]
    assert [pod["name"] for pod in found] == ["one", "trainer"]
    done = up.run("get", "pods", "one", "trianer")
    assert done.returncode == 1
    assert "one" in done.stdout
    assert "trainer" in done.stderr
    assert "team-a/trainer" not in up.run("get", "pods", "trainer", "-n", "default").stdout


@pytest.mark.parametrize("form", [(), ("--json",), ("-o", "yaml")], ids=" ".join)
@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("devices", "node-1", "it is a node, try `apportion get devices --node node-1`"),
        ("pods", "node-1", "it is a node, try `apportion get pods --node node-1`"),
        ("nodes", "nod-1", "did you mean node-1"),
        ("pods", "nothing-like-it", "known: "),
        ("placements", "trianer", "did you mean trainer"),
        ("gangs", "nothing", "no gang 'nothing' at revision"),
        (
            "devices",
            "GPU-z",
            "'GPU-z' is too short: a device id needs at least four characters after GPU-",
        ),
    ],
)
def test_a_name_of_nothing_is_met_with_what_there_is(
    up: Standalone, kind: str, name: str, says: str, form: tuple[str, ...]
) -> None:
    """For an unknown name, `get` prints a suggestion on standard error, in every output format, and
    nothing on standard output."""
    done = up.run("get", kind, name, *form)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("why", "nobody"), ("who", "nobody"), ("history", "nobody"), ("diff", "--from", "99999"),
        ("plan", "--lose", "nobody"), ("plan", "-f", "/nonexistent"), ("tail", "--from", "99999"),
        ("cordon", "nobody", "--reason=x"), ("uncordon", "nobody"), ("resize", "nobody"),
        ("drain", "nobody", "--reason=x"), ("replay", "--from", "99999"), ("policy", "set"),
        ("report", "usage", "--from", "99999"), ("simulate", "fail", "nobody"),
        ("config", "apply", "/nonexistent"), ("ledger", "set-aside", "99999", "--reason=x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_errors_beside_json_are_text_on_standard_error(
    up: Standalone, words: tuple[str, ...]
) -> None:
    """A verb with `--json` that fails prints text on standard error, and no JSON on standard
    output."""
    done = up.run(*words, "--json")
    assert (done.returncode in (1, 2), done.stdout) == (True, ""), done.stderr
    assert "Error: " in done.stderr or done.stderr.startswith("rejected: /nonexistent: ")


def test_what_was_done_in_part_is_in_the_document(up: Standalone) -> None:
    """If a verb succeeds for some of the names, its JSON lists the successes and standard error
    lists the failures."""
    done = up.run("get", "pods", "one", "nobody", "--json")
    assert done.returncode == 1
    assert [each["name"] for each in json.loads(done.stdout)["items"]] == ["one"]
    assert "no pod 'nobody'" in done.stderr
    done = up.run("delete", "nobody", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["deleted"] == {}
    assert "default/nobody" in done.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_keys_are_whole_on_a_narrow_terminal(up: Standalone, columns: int, prices: Path) -> None:
    """On a narrow terminal no line is wider than the screen, and names and times are never cut."""
    day = datetime.now(UTC).date().isoformat()
    cost = ("report", "cost", "--by", "node", "--from", "-1h", "--prices", str(prices))
    for words, keys, named in (
        (("get", "pods"), ("NAMESPACE", "NAME", "PHASE", "NODE", "AGE"), LONG_NAME),
        (("get", "placements"), ("NAMESPACE", "NAME", "NODE", "PHASE"), LONG_NAME),
        (("get", "nodes"), ("NODE", "STATE", "DEVICES"), "node-12"),
        (("get", "devices"), ("NODE", "DEVICE", "MEMORY FREE", "STATE", "PODS"), "node-12"),
        (("who", "node-1", "--since", "1"), ("DEVICE", "POD", "FROM"), f"team-a/{LONG_NAME}"),
        (cost, ("NODE", "GPU-HOURS", "EUR"), "node-12"),
        (("plan", "--lose", "node-1"), ("DISPLACED POD", "OUTCOME", "NODE"), f"team-a/{LONG_NAME}"),
    ):
        done = up.run(*words, columns=columns)
        assert done.returncode == 0, done.stderr
        lines = [line.rstrip() for line in done.stdout.splitlines()]
        at = next(number for number, line in enumerate(lines) if keys[0] in line)
        head, rows = lines[at], [line for line in lines[at:] if not line.startswith("before: ")]
        assert max(map(len, rows)) <= columns, done.stdout
        assert "…" not in done.stdout
        assert all(re.search(rf"(^|  ){key}($|  )", head) for key in keys), head
        assert any(re.search(rf"(^|  ){named}($|  )", line) for line in lines), done.stdout
        if words[0] == "plan":
            assert (" FROM " in head) == (columns > 80), "which is the node that is lost, in each"
        if words[0] == "who" and datetime.now(UTC).date().isoformat() == day:
            assert day not in done.stdout


def test_a_pod_without_a_place_waits_in_every_verb(up: Standalone) -> None:
    """Every verb prints "pending" for an unplaced pod. If a node lacks an extended resource, the
    verb prints the resource's name, the requested amount and the free amount."""
    manifest = POD.replace("NAME", "fpga").replace("SPACE", "lab")
    manifest = manifest.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, example.com/fpga: 2")
    said = [up.run("submit", "-f", "-", "--wait", stdin=manifest.encode()).stdout]
    for words in (
        ("get", "pods"), ("get", "pods", "--phase", "pending"), ("top", "--once"),
        ("why", "lab/fpga"), ("history", "lab/fpga"), ("tail", "--from", "1", "--no-follow"),
        ("plan", "-f", "-"), ("plan", "--lose", "node-1"),
    ):  # fmt: skip
        said.append(up.run(*words, stdin=manifest.encode()).stdout)
        assert re.search(r"\bpending\b", said[-1]), (words, said[-1])
        assert not re.search(r"\b(refused|not now|waiting|waits)\b", said[-1]), (words, said[-1])
    assert "1 submitted, 1 pending" in said[0]
    for text in (*said[:3], *said[4:7]):
        assert re.search(r"example\.com/fpga .*\(12 nodes\)", text)
    assert "0 of 2" in said[0]
    assert "2 needed, 0 free" in said[1]
    up.json("delete", "lab/fpga")


def test_submit_waits_for_what_why_says(up: Standalone) -> None:
    """`submit --wait` reports at once that a pod can never fit, with the same reason as `why`."""
    manifest = POD.replace("NAME", "huge").replace("SPACE", "default").replace("1000", "900000")
    done = up.run("submit", "-f", "-", "--wait", stdin=manifest.encode())
    why = up.json("why", "huge")
    assert why["refused"]["never"]
    said = why["sentence"].partition(". ")[2].casefold()
    assert "empty fleet" in said
    assert f"pending: {said}" in " ".join(done.stdout.split()).casefold()
    up.json("delete", "huge")


def test_other_forms(up: Standalone) -> None:
    """`get` prints the same data as YAML and as JSON, adds the uid with `-o wide`, and refuses two
    formats at once."""
    settle(up)
    as_json = up.json("get", "pods", "one")
    assert yaml.safe_load(up.run("get", "pods", "one", "-o", "yaml").stdout) == as_json
    assert as_json["items"][0]["uid"] in up.run("get", "pods", "one", "-o", "wide").stdout
    assert up.run("get", "pods", "-o", "name").stdout.split()[0] == "default/one"
    assert up.run("get", "pods", "--json", "-o", "wide").returncode == 2
    assert " AGE " in up.run("get", "pods").stdout.splitlines()[0]


def test_a_list_that_is_watched_tells_what_changes(up: Standalone, tmp_path: Path) -> None:
    """`get pods -w` prints a new pod, and ends cleanly on Ctrl-C."""
    environment = {**os.environ, "APPORTION_DATA": str(up.data)}
    said = tmp_path / "said"
    with said.open("w") as out:
        watching = subprocess.Popen(
            [*APPORTION, "get", "pods", "-w", "-o", "name"], env=environment, stdout=out
        )
    try:
        wait_until(lambda: "team-b/twin" in said.read_text(), "the list")
        submit(up, "late", "default")
        wait_until(lambda: "default/late" in said.read_text(), "the one that came")
    finally:
        watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 0


def test_lists_have_the_names_that_people_try(up: Standalone) -> None:
    """`get` accepts the singular, the plural and kubectl's short name of each list."""
    settle(up)
    for aliases, what in (
        (("pod", "po"), "pods"), (("node", "no"), "nodes"), (("gang",), "gangs"),
        (("device", "gpu", "gpus", "npu", "npus"), "devices"), (("placement",), "placements"),
    ):  # fmt: skip
        items = up.json("get", what)["items"]
        assert all(up.json("get", alias)["items"] == items for alias in aliases)
    assert up.json("get", "pod", "one")["items"][0]["name"] == "one"
    wrong = up.run("get", "cards")
    assert wrong.returncode == 2
    assert "'cards'" in wrong.stderr


def test_up_says_how_to_call_it_from_a_second_terminal(up: Standalone, tmp_path: Path) -> None:
    """The commands that `up` prints work in a shell whose PATH does not contain `apportion`."""
    at = next(n for n, line in enumerate(up.lines) if line.startswith("In a second terminal"))
    lines = [line.strip() for line in up.lines[at + 1 :]]
    path = os.pathsep.join(
        each for each in os.get_exec_path() if not (Path(each) / "apportion").exists()
    )
    first = list(itertools.takewhile(lambda line: "apportion top" not in line, lines))
    listed = next(line for line in lines if line.endswith("apportion get pods"))
    done = subprocess.run(
        ["/bin/sh", "-c", "\n".join([*first, listed])], env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trainer" in done.stdout
    assert up.data is not None
    passwords = json.loads((up.data / "credentials.json").read_bytes())["passwords"]
    assert passwords["auditor"]
    assert not any(word in line for word in passwords.values() for line in up.lines)
    assert any("credentials.json" in line for line in lines)
    verbs = [line for line in lines[len(first) :] if "apportion " in line]
    named = f"APPORTION_DATA='{up.data}' apportion "
    assert [line.removeprefix(named) for line in verbs] == [
        "top", "get pods", "why POD", "tail --from 1",
    ]  # fmt: skip


def test_why_looks_in_all_namespaces(up: Standalone) -> None:
    """`why` finds a pod in any namespace, and lists the candidates if the name is ambiguous."""
    assert up.json("why", "trainer")["namespace"] == "team-a"
    several = up.run("why", "twin")
    assert several.returncode == 1
    assert "team-a/twin, team-b/twin" in several.stderr
    assert "team-a/trainer" in up.run("why", "trianer").stderr
    assert up.run("why", "trainer", "-n", "default").returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "trianer"),
        ("delete", "default/trainer"),
        ("why", "default/trainer"),
        ("history", "default/trainer"),
        ("resize", "trainer", "--memory", "1"),
    ],
    ids=" ".join,
)
def test_a_pod_that_is_not_there_is_met_with_what_is_near(
    up: Standalone, words: tuple[str, ...]
) -> None:
    """A verb for an unknown pod fails, and suggests a pod with a similar name or in another
    namespace."""
    done = up.run(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert " team-a/trainer?" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("who", "nod-1"),
        ("cordon", "nod-1", "--reason=x"),
        ("uncordon", "nod-1"),
        ("drain", "nod-1", "--reason=x"),
        ("simulate", "lose", "nod-1"),
    ],
    ids=" ".join,
)
def test_a_node_that_is_not_there_is_met_with_what_is_near(
    up: Standalone, words: tuple[str, ...]
) -> None:
    """Every verb that takes a node or a device suggests names similar to an unknown one."""
    done = up.run(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "node-1" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("why", ""), ("why", "team-a/"), ("delete", ""), ("history", ""), ("drain", "", "--reason=x")],
    ids=" ".join,
)
def test_an_empty_name_is_wrong_usage(up: Standalone, words: tuple[str, ...]) -> None:
    """Every verb refuses an empty name, such as from an unset shell variable, and exits with 2
    (wrong usage)."""
    done = up.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "empty" in done.stderr


@pytest.mark.parametrize("name", ["trainer", "team-a/trainer"])
def test_who_says_of_a_pod_which_verb_tells_of_it(up: Standalone, name: str) -> None:
    """`who` with a pod's name suggests `apportion why`."""
    done = up.run("who", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert "`apportion why`" in done.stderr
    assert "`apportion why`" not in up.run("who", "default/trainer").stderr


def test_history_looks_in_all_namespaces(up: Standalone) -> None:
    """`history` finds nodes, devices and the pods of all namespaces by name."""
    story = up.json("history", "trainer")
    assert story["kind"] == "pod"
    assert "team-a/trainer placed" in up.run("history", "trainer").stdout
    several = up.run("history", "twin")
    assert several.returncode == 1
    assert "team-a/twin, team-b/twin" in several.stderr
    near = up.run("history", "trianer")
    assert near.returncode == 1
    assert "'trianer'" in near.stderr
    assert "team-a/trainer" in near.stderr
    assert up.run("history", "trainer", "-n", "default").returncode == 1
    assert up.json("history", "node-1")["kind"] == "node"


def test_a_pod_that_has_ended_is_found_in_its_namespace(up: Standalone) -> None:
    """`why` and `history` find an ended pod by its name. If several pods had that name, they list
    all of them."""
    for space in ("team-c", "team-d"):
        submit(up, "over", space)
    submit(up, "last", "team-c")
    up.json("delete", "team-c/over", "team-d/over", "team-c/last")
    assert "team-c/last ended" in up.run("history", "last").stdout
    assert up.json("why", "last")["namespace"] == "team-c"
    for verb in ("history", "why"):
        several = up.run(verb, "over")
        assert several.returncode == 1
        assert "team-c/over, team-d/over" in several.stderr
        assert "NAMESPACE/over" in several.stderr


def test_keys_of_top(up: Standalone) -> None:
    """On a real terminal the keys of `top` sort, scroll, filter and quit."""
    with Terminal("top", data=up.data) as screen:
        screen.shows("by node")
        screen.press("s")
        screen.shows("by memory")
        screen.press("/")
        screen.shows("filter: _")
        screen.press("node-12")
        screen.press("\r")
        screen.shows("matching 'node-12'")
        screen.press("q")
        assert screen.ended() == 0


def completed(up: Standalone, words: str) -> list[str]:
    """Return the completions that bash would offer for this unfinished command line."""
    environment = {
        **os.environ,
        "APPORTION_DATA": str(up.data),
        "_APPORTION_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        APPORTION, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    offered = (line.partition(",")[2] for line in done.stdout.splitlines())
    return [name for name in offered if name]


def test_the_tab_key_knows_names(up: Standalone) -> None:
    """The Tab key completes verbs and the names of existing pods, nodes and devices. Without a
    gateway it completes no names."""
    assert "why" in completed(up, "apportion wh")
    assert completed(up, "apportion why tr") == []
    assert completed(up, "apportion why team-a/tr") == ["team-a/trainer"]
    nodes = ["node-1", "node-10", "node-11", "node-12"]
    listed = "get nodes"
    for words in (listed, "plan --lose", "replay --policy price --lose", "cordon", "uncordon",
                  "drain", "who", "history", "top --node", "simulate lose"):  # fmt: skip
        assert completed(up, f"apportion {words} node-1") == nodes, words
    [card, *_] = [each["device"] for each in up.json("get", "devices")["items"]]
    for words in ("plan --lose", "replay --lose", "drain", "history"):
        assert completed(up, f"apportion {words} {card[:-1]}")[0].startswith(card[:-1]), words
    for words in ("delete", "resize", "history"):
        assert completed(up, f"apportion {words} team-a/tr") == ["team-a/trainer"], words
    before, up.data = up.data, None
    try:
        assert completed(up, f"apportion {listed} node-1") == []
    finally:
        up.data = before
    script = up.run("completion", "bash").stdout
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n"], input=script, text=True, check=False).returncode == 0


SLIPS = """
apiVersion: v1
kind: Pod
metadata: {name: slipped, annotations: {nvidia.com/use-gputyp: T4}}
spec:
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpu-mem: 1000}}}
"""


def test_slips_of_the_pen_are_told_of(up: Standalone, tmp_path: Path) -> None:
    """For a misspelt annotation or resource, `check`, `plan` and `submit` suggest the correct key.
    For a memory request in Gi, `check` suggests the number of MiB."""
    path = tmp_path / "pod.yaml"
    path.write_text(SLIPS)
    beside = [up.run(verb, "-f", str(path)).stderr for verb in ("plan", "submit")]
    for said in (up.run("check", "-f", str(path)).stdout, *beside):
        assert " nvidia.com/use-gputype?" in said
        assert " nvidia.com/gpumem?" in said
    path.write_text(SLIPS.replace("gpu-mem: 1000", "gpumem: 4Gi"))
    assert "write 4096" in up.run("check", "-f", str(path)).stdout


QUEUED = """
apiVersion: v1
kind: Pod
metadata: {name: queued, annotations: {scheduling.volcano.sh/queue-name: trian}}
spec:
  containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
QUEUE = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: train}
spec: {capability: {nvidia.com/gpu: 100}}
"""


def test_a_queue_that_nobody_has_declared_is_told_of(up: Standalone, tmp_path: Path) -> None:
    """If any queue is declared, `plan` and `submit` warn of a pod in an undeclared queue."""
    path, queue = tmp_path / "pod.yaml", tmp_path / "queue.yaml"
    path.write_text(QUEUED)
    queue.write_text(QUEUE)
    field = 'metadata.annotations["scheduling.volcano.sh/queue-name"]'
    said = (
        f"{path}, line 4: {field}: queue trian is not declared, so no limit applies; declared "
        "queues: train; did you mean train?"
    )
    assert up.run("submit", "-f", str(path), "--dry-run").stderr == ""
    up.json("submit", "-f", str(queue))
    assert up.run("plan", "-f", str(path)).stderr == f"warning: {said}\n"
    assert up.run("submit", "-f", str(path), "--dry-run").stderr == f"warning: {said}\n"
    assert up.json("submit", "-f", str(path), "--dry-run")["warnings"] == [said]


def test_a_file_that_is_not_there_is_refused_in_one_form(up: Standalone, tmp_path: Path) -> None:
    """Every verb that takes manifests refuses a missing file with the same message and exit
    code."""
    path = tmp_path / "none.yaml"
    for verb in ("plan", "submit", "delete"):
        done = up.run(verb, "-f", str(path))
        said = "cannot read it (No such file or directory); check the name and its permissions"
        assert (done.returncode, done.stderr) == (1, f"rejected: {path}: {said}\n")


def test_all_errors_of_a_configuration(up: Standalone, tmp_path: Path) -> None:
    """The CLI lists every error in a configuration with its line."""
    path = tmp_path / "config.yaml"
    path.write_text("policies: {}\nnvidia:\n  deviceSplitCount: many\n  whatever: 1\n")
    done = up.run("config", "check", str(path))
    assert done.returncode == 1
    for line, key in ((1, "policies"), (3, "nvidia.deviceSplitCount"), (4, "nvidia.whatever")):
        assert f"line {line}: {key}" in done.stderr


def test_a_deleted_sample_stays_deleted(tmp_path: Path) -> None:
    """If a user deletes a sample pod, `up` does not submit it again when it restarts on the same
    data folder. The other samples keep running."""
    options = ("--nodes", "4", "--fleet", "8xH100-80GB")
    with Standalone(tmp_path / "data", *options) as first:
        first.up()
        before = first.run("get", "pods", "-o", "name").stdout.split()
        assert "default/hami-pod" in before
        assert first.run("delete", "hami-pod").returncode == 0
    first.nothing_left()
    with Standalone(tmp_path / "data", *options) as again:
        again.up()
        after = again.run("get", "pods", "-o", "name").stdout.split()
        assert sorted(after) == sorted(set(before) - {"default/hami-pod"})
    again.nothing_left()
