"""`apportion up` starts all services, places the samples, and leaves nothing behind."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.polling import WAIT_S, wait_until
from tests.support.ports import free_port
from tests.support.standalone import APPORTION, Standalone
from tests.support.tokens import people

pytestmark = pytest.mark.slow
SMALL = ("--no-samples", "--fleet", "1xT4")
ANY = ("--nats-port", "0", "--port", "0")
"""Any free ports: what `up` itself finds."""
FROM_MONITOR = ("durability", "disk")


@pytest.mark.executes
def test_samples_find_places() -> None:
    """Every sample pod is placed and allocated on the samples' fleet. With `--ephemeral`, `up`
    removes its data folder at the end."""
    with Standalone(None, *ANY, "--ephemeral", "--exit-after-samples") as up:
        assert up.ended(timeout_s=150) == 0, up.output
        head = next(at for at, line in enumerate(up.lines) if line.startswith("POD "))
        rows = up.lines[head + 1 : head + 1 + 26]
        assert all(row.split()[1] == "allocated" for row in rows), up.output
        assert re.search(r"first pod placed \d+\.\d s after start", up.output)
        kept = up.said("data in").split("data in ")[1]
        assert not Path(kept).exists()
        up.nothing_left()


def test_samples_that_fit_nowhere_are_of_another_fleet() -> None:
    """If samples can never fit on the chosen fleet, `up` prints how many and suggests
    `--no-samples`."""
    with Standalone(None, "--ephemeral", "--exit-after-samples", "--fleet", "1xT4") as up:
        assert up.ended(timeout_s=150) == 1, up.output
        told = re.search(r"(\d+) of 26 samples can never fit on 1 x 1xT4: (.*)", up.output)
        assert told, up.output
        assert 0 < int(told[1]) < 26
        assert "--no-samples" in told[2]


def test_a_model_without_a_price_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` warns once about models without a price, and names the fix. If the price file is
    complete, it prints no warning."""
    prices = tmp_path / "prices.toml"
    monkeypatch.setenv("APPORTION_PRICES", str(prices))
    for model, told in (("H100", 1), ("T4", 0)):
        prices.write_text(f'currency = "EUR"\n[models]\n"*{model}*" = 3.5\n')
        with Standalone(tmp_path / model, *SMALL) as up:
            up.up()
            found = [line for line in up.lines if "cannot report costs" in line]
            assert len(found) == told, up.output
        for line in found:
            assert f"{prices}: [models]" in line
            assert "'NVIDIA Tesla T4'" in line


def test_a_login_takes_a_token_for_up_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a login configured, `up` needs a token for itself. Without one it starts nothing, and
    names the environment variable for the token's file."""
    monkeypatch.setenv("APPORTION_TOKENS", str(people(tmp_path)))
    with Standalone(tmp_path / "none", *SMALL) as up:
        assert up.ended() == 2, up.output
        assert "set APPORTION_TOKEN=FILE" in up.output
        assert not (tmp_path / "none").exists()
    token = tmp_path / "olga's token"
    token.write_text("olga\n")
    monkeypatch.setenv("APPORTION_TOKEN", str(token))
    with Standalone(tmp_path / "data", "--fleet", "2xT4") as up:
        up.up()
        lines = [line.strip() for line in up.lines]
        [activate] = [line for line in lines if line.startswith(". ")]
        monkeypatch.delenv("APPORTION_TOKEN")
        told = json.loads(up.run("doctor", "--json").stdout)["checks"]
        [gateway] = [each for each in told if each["id"] == "gateway"]
        assert gateway["state"] == "warning", "it answers, and does not let everybody in"
        assert gateway["words"].startswith("reachable, but ")
        for what in ("apportion get pods", "curl "):
            [command] = [line for line in lines if what in line]
            done = subprocess.run(
                ["/bin/bash", "-c", f"{activate}; {command}"],
                check=False,
                capture_output=True,
                text=True,
            )
            assert "hami" in done.stdout, done.stderr


@pytest.mark.executes
def test_no_argument_no_log_and_no_output_shows_a_secret(tmp_path: Path) -> None:
    """Process arguments, logs and output never contain a password, a seed or a key."""
    data = tmp_path / "data"
    with Standalone(data, *SMALL) as up:
        up.up()
        secrets = [path.read_text().strip() for path in data.rglob("*.nk")]
        secrets.append((data / "ledger.key").read_text().strip())
        secrets += json.loads((data / "credentials.json").read_text())["passwords"].values()
        said = [Path(f"/proc/{pid}/cmdline").read_text() for pid in up.left()]
        said += [path.read_text() for path in data.rglob("*.log")]
        said.append(up.output)
        assert "auditor:PASSWORD@" in up.output
        assert len(secrets) > 10
        assert len(said) > 8
        for secret in secrets:
            assert not [text for text in said if secret in text]


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.executes), signal.SIGTERM, signal.SIGHUP],
)
def test_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    """On a signal `up` exits with 0, and leaves no process and no connection file."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.up()
        assert len(up.left()) == 9  # sentinel, server, fork server and six services
        up.signal(number)
        assert up.ended() == 0, up.output
        assert "\nstopped" in up.output
        up.nothing_left()
    assert not (tmp_path / "data/connection.json").exists()


def test_signal_while_starting(tmp_path: Path) -> None:
    """Ctrl-C during the start leaves no process and no connection file."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.said("ledger at")
        up.signal(signal.SIGINT)
        assert up.ended() == 0, up.output
        up.nothing_left()


@pytest.mark.executes
def test_sigkill_leaves_nothing(tmp_path: Path) -> None:
    """If `up` itself is killed, the sentinel process ends all services, and the data folder can be
    used again."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.up()
        up.signal(signal.SIGKILL)
        up.ended()
        up.nothing_left()
    with Standalone(tmp_path / "data", *SMALL) as again:
        again.up()


def test_sigkill_of_sentinel_and_then_of_up(tmp_path: Path) -> None:
    """The sentinel ends all services if `up` is killed. If the sentinel is killed first, its
    replacement does the same."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.up()
        [sentinel] = up.left_of("sentinel.py")
        os.kill(sentinel, signal.SIGKILL)
        wait_until(lambda: set(up.left_of("sentinel.py")) - {sentinel}, "another sentinel")
        up.signal(signal.SIGKILL)
        up.ended()
        up.nothing_left()


@pytest.mark.executes
def test_sigkill_of_the_fork_server(tmp_path: Path) -> None:
    """If the fork server is killed, its services die too, and `up` restarts them from a new fork
    server."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.up()
        before = up.processes()
        [fork_server] = [
            pid for pid in up.left_of("apportion.cli.up.fork_server") if _is_parent(pid)
        ]
        os.kill(fork_server, signal.SIGKILL)
        for name in ("agent", "scheduler", "binder", "watcher", "gateway"):
            up.said(f"the {name} was killed by signal 9")
            up.started_again(name, before[name])
        wait_until(lambda: up.run("get", "nodes").returncode == 0, "the gateway to answer again")
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output
        up.nothing_left()


def _is_parent(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())


def test_ledger_outlives_a_run(tmp_path: Path) -> None:
    """A second run of `up` on a data folder shows the placements of the first run, and does not
    submit the samples again."""
    with Standalone(tmp_path / "data") as first:
        first.up()
        pods = {pod["name"]: pod["uid"] for pod in first.json("get", "pods")["items"]}
        used = wait_until(lambda: _used(first), "the simulated use", timeout_s=2 * WAIT_S)
        assert 0 < used["used_gpu_hours"] < used["reported_gpu_hours"]
        assert used["cost"] > 0
        assert first.json("report", "idle", "--at-least", "20s")["found"] > 0
        assert first.json("report", "idle")["found"] == 0
    with Standalone(tmp_path / "data") as second:
        second.up()
        again = {pod["name"]: pod["uid"] for pod in second.json("get", "pods")["items"]}
        assert again == pods
        assert len(pods) == 26


def _used(up: Standalone) -> dict[str, float]:
    """Return the totals of the usage report, or an empty dictionary until every busy node has
    reported."""
    answer = up.json("report", "usage", "--by", "node")
    nodes = [row for row in answer["rows"] if row["allocated_gpu_hours"]]
    return dict(answer["total"]) if all(row["reported_gpu_hours"] for row in nodes) else {}


def test_second_up_on_the_same_folder(tmp_path: Path) -> None:
    """A second `up` on the same folder fails with an error that names the folder and a fix. The
    first `up` continues."""
    with Standalone(tmp_path / "data", *SMALL) as first:
        first.up()
        second = Standalone(tmp_path / "data", *SMALL)
        second.start()  # no `with`, which ends whatever holds the folder: the first
        assert second.ended() == 3
        assert str(tmp_path / "data") in second.output
        assert "--data" in second.output
        assert first.json("get", "nodes")["items"]


@pytest.mark.parametrize("option", ["--port", "--nats-port"])
def test_port_that_is_taken(tmp_path: Path, option: str) -> None:
    """If a port is in use, `up` exits and leaves no process. The error names the address and the
    option that sets the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with Standalone(tmp_path / "data", *SMALL, option, port) as up:
            assert up.ended() == 3
            assert f"127.0.0.1:{port}" in up.output
            assert f"free port with {option}" in up.output
            up.nothing_left()


def test_second_up_with_the_same_ports(tmp_path: Path) -> None:
    """A second `up` on the same folder and port fails because of the folder, not because of the
    port."""
    with Standalone(tmp_path / "data", *SMALL) as first:
        first.up()
        port = json.loads((tmp_path / "data" / "connection.json").read_text())["gateway"]
        second = Standalone(tmp_path / "data", *SMALL, "--port", port.rpartition(":")[2])
        second.start()  # no `with`, which ends whatever holds the folder: the first
        assert second.ended() == 3
        assert "in use by another instance" in second.output
        assert "cannot listen" not in second.output


def test_doctor_sees_a_server_that_was_started_again(tmp_path: Path) -> None:
    """After the ledger's server restarts, doctor still reports the ledger's durability and disk as
    before."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.up()
        before = _seen_by_doctor(up)
        assert "durability ok" in before
        up.started_again("nats-server", up.kill_service("nats-server"))
        # A gateway repeats its cached answer for a short time; a restarted one has none.
        up.started_again("gateway", up.kill_service("gateway"))
        wait_until(lambda: _seen_by_doctor(up) == before, "doctor to see the server's disk again")


def _seen_by_doctor(up: Standalone) -> str:
    """Return what `doctor` reports on durability and the disk."""
    said = up.run("doctor", "--json").stdout
    checks = json.loads(said)["checks"] if said else []  # during the restart nothing answers
    states = [f"{each['id']} {each['state']}" for each in checks if each["id"] in FROM_MONITOR]
    return "; ".join(sorted(states))


def test_other_fleet_on_the_same_ledger(tmp_path: Path) -> None:
    """If the ledger in the data folder has a different fleet than `--fleet`, `up` refuses to start.
    The error names both fleets and a fix."""
    with Standalone(tmp_path / "data", *SMALL) as up:
        up.up()
    with Standalone(tmp_path / "data", "--no-samples", "--fleet", "2xT4") as up:
        assert up.ended() == 3
        assert "1xT4" in up.output
        assert "2xT4" in up.output
        assert "--ephemeral" in up.output
        assert [line.partition(":")[0] for line in up.lines] == ["Error"], "it comes alone"
        up.nothing_left()


def test_a_folder_goes_on_with_its_fleet(tmp_path: Path) -> None:
    """A restarted `up` keeps its fleet even if the fleet's file is gone, and adds no samples."""
    fleet = tmp_path / "mine.yaml"
    fleet.write_text("nodes:\n- {node: rack-7, devices: 1xT4}\n")
    with Standalone(tmp_path / "data", "--no-samples", "--fleet", str(fleet)) as up:
        up.up()
    fleet.unlink()
    with Standalone(tmp_path / "data") as up:
        up.up()
        assert up.json("get", "pods")["items"] == []
        assert f"its fleet: {fleet}" in up.output
        assert [(node["node"], node["ready"]) for node in up.json("get", "nodes")["items"]] == [
            ("rack-7", True)
        ]


@pytest.mark.parametrize("ports", ["the same", "others"])
def test_who_watches_waits_for_an_up_that_begins_anew(tmp_path: Path, ports: str) -> None:
    """`tail` and `get -w` survive a restart of `up`, and report when the outage begins and ends.

    Afterwards they continue with later events, even if the new `up` uses other ports."""
    same = (str(free_port()), str(free_port())) if ports == "the same" else ("0", "0")
    options = (*SMALL, "--nats-port", same[0], "--port", same[1])
    verbs = {"tail": ("tail", "--from", "1"), "get": ("get", "nodes", "-w")}
    with contextlib.ExitStack() as stack:
        watching = {
            name: stack.enter_context((tmp_path / name).open("w+", encoding="utf-8"))
            for name in verbs
        }

        def said(name: str, *parts: str) -> None:
            seen = tmp_path / name
            wait_until(
                lambda: all(part in seen.read_text() for part in parts),
                f"{name} to say {parts}",
            )  # fmt: skip

        with Standalone(tmp_path / "data", *options) as up:
            up.up()
            for name, words in verbs.items():
                process = subprocess.Popen(
                    [*APPORTION, *words], stdout=watching[name], stderr=subprocess.STDOUT,
                    env={**os.environ, "APPORTION_DATA": str(up.data), "PYTHONUNBUFFERED": "1"},
                )  # fmt: skip
                stack.callback(process.wait)
                stack.callback(process.kill)
            said("get", "node-1")
            said("tail", "NodeReported")
        said("get", "the gateway at http://127.0.0.1:", "is `apportion up`", "retrying")
        said("tail", "not connected to nats://127.0.0.1:", "is `apportion up`", "retrying")
        with Standalone(tmp_path / "data", *options) as up:
            up.up()
            said("get", "gateway reconnected")
            said("tail", "ledger reconnected")
            assert up.run("cordon", "node-1", "--reason", "seen again").returncode == 0
            said("get", "seen again")
            said("tail", "seen again")
        events = [line.split()[0] for line in (tmp_path / "tail").read_text().splitlines()]
        told = [int(each) for each in events if each.isdecimal()]
        assert told == list(range(1, len(told) + 1)), "each event once"


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ("8xH1000-80GB", ("unknown model 'H1000-80GB'",)),
        ("many", ("'many' is not valid",)),
        ("4xA100-40GB:vnpu", ("has no mode 'vnpu'",)),
        ("no/fleet.yaml", ("no such file: no/fleet.yaml",)),
        ("FILE", ("nodes[0]: node 'a': devices: unknown model",
                  "nodes[1]: node 'b': unknown field 'gpus'", "nodes[3]: duplicate node 'c'",
                  'nodes[4]: node: "D_1" is not a DNS name')),
    ],
)  # fmt: skip
def test_fleet_that_makes_no_sense(tmp_path: Path, fleet: str, said: tuple[str, ...]) -> None:
    """`up` reports all errors in a fleet at once, and starts nothing."""
    if fleet == "FILE":
        fleet = str(tmp_path / "fleet.yaml")
        Path(fleet).write_text(
            "nodes:\n- {node: a, devices: 1xT5}\n- {node: b, gpus: 1xT4}\n"
            "- {node: c, devices: 1xT4}\n- {node: c, devices: 1xT4}\n- {node: D_1}\n"
        )
    with Standalone(tmp_path / "data", "--no-samples", "--fleet", fleet) as up:
        assert up.ended() == 2
        assert [part for part in said if part not in up.output] == []
        assert not (tmp_path / "data").exists()
        up.nothing_left()


def test_the_ledger_has_the_size_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option or an environment variable sets the ledger's size. By default an existing ledger
    keeps its size.

    `up` refuses a size that is larger than the disk."""

    def size(*options: str) -> int:
        with Standalone(tmp_path / "data", *SMALL, *options) as up:
            up.up()
            return int(up.json("ledger", "check")["max_bytes"])

    assert size("--max-bytes", "50000000") == 50_000_000
    assert size() == 50_000_000
    monkeypatch.setenv("APPORTION_MAX_BYTES", "60000000")
    assert size() == 60_000_000
    for data in ("data", "new"):
        monkeypatch.setenv("APPORTION_MAX_BYTES", str(1 << 50))
        with Standalone(tmp_path / data, *SMALL) as up:
            assert up.ended(timeout_s=60) == 3, up.output
            said = next(line for line in up.lines if "APPORTION_MAX_BYTES" in line)
        assert "--max-bytes" in said
        assert str(1 << 50) in said
