"""`apportion run`: the commands of several users share the GPUs of one machine.

These tests use real processes with the fake driver, and enforce limits with HAMi-core if a build of
it is configured."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from apportion.cli.client.connection import read_connection
from apportion.cli.client.gateway_client import Gateway
from apportion.core.answers.reads import PodAnswer
from apportion.runtime.jetstream.server.embedded import load_credentials
from tests.support.commands import Command
from tests.support.nvidia.build import built
from tests.support.nvidia.driver import FakeDriver
from tests.support.polling import wait_until
from tests.support.standalone import APPORTION, Standalone

pytestmark = pytest.mark.slow
HOST = socket.gethostname()
LIBRARY = os.environ.get("APPORTION_LIBVGPU", "") or str(built() / "libstandin.so")
LOCAL = ("--gpus", "local")
NOBODY = ("--reuid", "65534", "--regid", "65534", "--clear-groups")
READS = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
"""For where this very Python is closed to others; what it writes is not helped by it."""
AS_NOBODY = ("setpriv", *NOBODY, *READS)


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """Provide a monkeypatch whose changes to the environment last for the whole module."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def driver(
    patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FakeDriver]:
    """Provide a fake driver with two GPUs, visible to every process that these tests start."""
    made = FakeDriver(tmp_path_factory.mktemp("driver"), "2xT4")
    made.costs(context_mib=100)
    for name, value in made.environment.items():
        patched.setenv(name, value)
    yield made
    made.close()


@pytest.fixture(scope="module")
def up(driver: FakeDriver) -> Iterator[Standalone]:
    """Run `apportion up` for the fake driver's GPUs, with a data folder that other users may
    traverse."""
    assert driver.ids
    with tempfile.TemporaryDirectory(prefix="workstation") as name:
        folder = Path(name)
        folder.chmod(0o755)
        library = shutil.copy(LIBRARY, folder / "libvgpu.so")
        with Standalone(folder / "data", *LOCAL, "--library", str(library)) as started:
            yield started.up()


def pods(up: Standalone) -> list[PodAnswer]:
    """Return the live pods."""
    assert up.data is not None
    with closing(Gateway(read_connection(up.data).gateway)) as gateway:
        return gateway.items("pods", PodAnswer)[1]


def ended(up: Standalone) -> None:
    """Wait until the ledger has recorded the end of every pod."""
    wait_until(lambda: not pods(up), "every pod's end in the ledger")


def reasons(up: Standalone) -> list[str]:
    """Return the recorded reason for each pod's end, the newest last."""
    lines = up.run("tail", "--from", "1", "--no-follow").stdout.splitlines()
    return [line.partition(" ended: ")[2] for line in lines if " ended: " in line]


def test_each_command_sees_its_share_and_gets_no_more(up: Standalone, driver: FakeDriver) -> None:
    """Two commands on one GPU each see only their share, and cannot allocate beyond it."""
    probe = str(driver.probe)
    with (
        Command(up, "--memory", "4000", "--cores", "30", "--", probe, "info", "alloc:3000",
                "alloc:1500", "alloc:500", "hold") as one,
        Command(up, "--memory", "2000", "--", probe, "info", "alloc:1500", "hold") as other,
    ):  # fmt: skip
        one.said("holding")
        other.said("holding")
        assert "total_mib=4000" in one.said("info")
        assert "total_mib=2000" in other.said("info")
        assert one.said("alloc:1500") == "alloc:1500 CUDA_ERROR_OUT_OF_MEMORY"
        assert one.said("alloc:500") == "alloc:500 CUDA_SUCCESS"
        assert other.said("alloc:1500") == "alloc:1500 CUDA_SUCCESS"
        held = {pod.shares[0].memory_mib: pod.shares[0].device for pod in pods(up)}
        assert set(held) == {4000, 2000}
        one.close()
        other.close()
        assert one.ended() == 1  # of the probe: how much was refused
        assert other.ended() == 0
    ended(up)


def test_a_second_process_shares_the_command_s_share(up: Standalone, driver: FakeDriver) -> None:
    """Child processes count against their command's share.

    A child that clears its environment has no limit, because on the host the limits are only
    environment variables."""
    probe = driver.probe
    state = driver.environment["APPORTION_FAKE_NVIDIA"]
    free = f"env -i APPORTION_FAKE_NVIDIA={state} LD_LIBRARY_PATH={built()} {probe} info"
    script = f"exec 3<&0; for each in 1 2; do {probe} alloc:1200 hold <&3 & done; {free}; wait"
    with Command(up, "--memory", "2000", "--", "bash", "-c", script) as command:
        command.said("total_mib=15360")
        wait_until(lambda: command.lines.count("holding") == 2, "both children")
        took = sorted(line for line in command.lines if line.startswith("alloc"))
        assert took == ["alloc:1200 CUDA_ERROR_OUT_OF_MEMORY", "alloc:1200 CUDA_SUCCESS"]
        command.close()
        assert command.ended() == 0
    ended(up)


def test_a_card_that_is_not_the_first_has_its_own_limit(up: Standalone, driver: FakeDriver) -> None:
    """A command on the second GPU gets that GPU's memory limit, although CUDA shows the GPU as
    device 0 inside the command."""
    probe = str(driver.probe)
    with (
        Command(up, "--memory", "15000", "--cores", "50", "--", probe, "hold") as first,
        Command(up, "--memory", "3000", "--cores", "50", "--", probe, "info", "alloc:3500",
                "hold") as second,
    ):  # fmt: skip
        first.said("holding")
        second.said("holding")
        assert "total_mib=3000" in second.said("info")
        assert second.said("alloc:3500") == "alloc:3500 CUDA_ERROR_OUT_OF_MEMORY"
        cards = {pod.shares[0].device for pod in pods(up)}
        assert cards == set(driver.ids)
        told = [line for line in first.lines + second.lines if "not its cores" in line]
        assert len(told) == 1
        first.close()
        second.close()
    ended(up)


def test_it_waits_for_room_and_says_why(up: Standalone, driver: FakeDriver) -> None:
    """If no device has enough room, `run` waits and prints the reason. Once another command ends,
    `run` starts the waiting command, and returns that command's exit code."""
    with Command(up, "--memory", "15000", "--count", "2", "--", str(driver.probe), "hold") as first:
        first.said("holding")
        with Command(up, "--memory", "8000", "--", "sh", "-c", "echo here; exit 7") as second:
            second.said("is pending: no node fits: not enough free memory on the device")
            first.close()
            assert second.ended() == 7
            assert second.said("was allocated GPU-").endswith("8,000 MiB")
            assert second.lines[-1] == "here"
    ended(up)


def test_it_says_what_why_says(up: Standalone, driver: FakeDriver) -> None:
    """While `run` waits for a device, it prints the same reason as `why`."""
    with Command(up, "--memory", "1000", "--", str(driver.probe), "hold") as first:
        first.said("holding")
        with Command(up, "--count", "2", "--", "true") as second:
            told = second.said("is pending: ").partition(" is pending: ")[2]
            [waiting] = [pod for pod in pods(up) if not pod.node]
            why = up.json("why", f"{waiting.namespace}/{waiting.name}")
            assert told.casefold() == why["sentence"].partition(". ")[2].casefold()
            first.close()
            assert second.ended() == 0
    ended(up)


def test_the_wait_can_be_limited(up: Standalone, driver: FakeDriver) -> None:
    """When `run --timeout` expires, `run` stops waiting and prints why the pod was not placed. The
    ledger records that reason."""
    with Command(up, "--memory", "15000", "--count", "2", "--", str(driver.probe), "hold") as first:
        first.said("holding")
        done = up.run("run", "--memory", "8000", "--timeout", "12", "--", "true")
        assert done.returncode == 1
        assert "within 12 s: no node fits" in done.stderr
        told = "did not start: not placed within 12 s"
        wait_until(lambda: any(told in each for each in reasons(up)), "the reason")
        first.close()
    ended(up)


def test_everything_is_stopped_and_started_again(driver: FakeDriver, tmp_path: Path) -> None:
    """A running command survives a restart of `up`. The new `up` recognises it, and the command's
    guardian process reconnects."""
    data = tmp_path / "data"
    with Standalone(data, *LOCAL, "--library", LIBRARY) as up:
        up.up()
        with Command(up, "--memory", "1000", "--", str(driver.probe), "hold") as command:
            command.said("holding")
            up.signal(signal.SIGKILL)
            up.ended()
            up.nothing_left()
            with Standalone(data, *LOCAL, "--library", LIBRARY) as again:
                again.up()
                (pod,) = pods(again)
                assert pod.uid in (data / "state/runs.json").read_text()
                command.close()
                assert command.ended() == 0
                ended(again)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_signal_ends_the_wait(up: Standalone, driver: FakeDriver, name: str) -> None:
    """If a signal arrives while `run` waits for a device, the signal ends `run`, and the pending
    pod is deleted."""
    number = signal.Signals[name]
    with Command(up, "--memory", "15000", "--count", "2", "--", str(driver.probe), "hold") as first:
        first.said("holding")
        with Command(up, "--memory", "8000", "--", "true") as second:
            second.said("is pending: no node fits")
            second.process.send_signal(number)
            assert second.ended() == -number
            wait_until(lambda: len(pods(up)) == 1, "the waiting pod to be gone")
        first.close()
    ended(up)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_signal_reaches_the_command_itself(up: Standalone, name: str) -> None:
    """A signal reaches the command itself, and the command's end is recorded in the ledger."""
    number = signal.Signals[name]
    script = "import signal, sys; print('runs', flush=True); sys.stdin.read()"
    if name == "SIGTERM":
        script = (
            f"import signal, sys; signal.signal({int(number)}, lambda *_: sys.exit(5));" + script
        )
    with Command(up, "--memory", "1000", "--", sys.executable, "-c", script) as command:
        command.said("runs")
        command.process.send_signal(number)
        code = command.ended()
        if name == "SIGTERM":
            assert code == 5
        else:
            assert code in {-number, 1}  # Python ends a SIGINT by itself
        ended(up)


def test_the_command_does_not_inherit_what_python_ignores(up: Standalone) -> None:
    """A command ends when it writes to a closed pipe, because it does not inherit Python's ignored
    signals."""
    script = "yes | head -1; grep SigIgn /proc/self/status"
    done = up.run("run", "--memory", "1000", "--", "sh", "-c", script)
    first, ignored = done.stdout.splitlines()
    assert first == "y"
    mask = int(ignored.split()[1], 16)
    assert not mask & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    ended(up)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root and setpriv")
def test_another_user_has_a_share_too(up: Standalone, driver: FakeDriver) -> None:
    """`run` works for another Unix user who has copies of the operator's keys.

    If that user cannot open the data folder, `run` fails and names the `chmod` that helps."""
    assert up.data is not None
    driver.path.chmod(0o666)
    keys = load_credentials(up.data).environment_for("operator")
    for variable in ("APPORTION_NATS_KEY", "APPORTION_LEDGER_KEY"):
        copy = up.data / f"{variable}.copy"
        copy.write_bytes(Path(keys[variable]).read_bytes())
        copy.chmod(0o644)
        keys[variable] = str(copy)
    where = {
        **keys,
        "APPORTION_GATEWAY": read_connection(up.data).gateway,
        "USER": "nobody", "LOGNAME": "nobody", "HOME": "/",
    }  # fmt: skip
    words = ["run", "--memory", "2000", "--", str(driver.probe), "info", "alloc:1500", "alloc:400"]

    def done() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AS_NOBODY, *APPORTION, *words], env={**os.environ, **where}, cwd="/",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    said = done()
    assert said.returncode == 0, said.stderr
    assert "total_mib=2000" in said.stdout
    assert "alloc:1500 CUDA_SUCCESS" in said.stdout
    (up.data / "state").chmod(0o700)
    said = done()
    (up.data / "state").chmod(0o755)
    assert said.returncode == 1
    assert f"chmod o+x {up.data / 'state'}" in said.stderr
    ended(up)


def test_what_it_left_running_keeps_the_share(up: Standalone, driver: FakeDriver) -> None:
    """A daemon that a command leaves running keeps the command's share, which is freed once the
    daemon ends."""
    script = f"setsid {driver.probe} alloc:500 hold <&3 & echo left"
    with Command(up, "--memory", "1000", "--", "bash", "-c", f"exec 3<&0; {script}") as command:
        command.said("holding")
        assert command.process.wait(30) == 0
        assert len(pods(up)) == 1
        command.close()
        ended(up)


def test_everything_is_killed_and_the_next_command_says_so(
    up: Standalone, driver: FakeDriver
) -> None:
    """If a command, its guardian and the agent are killed, the next command can use the freed
    share."""
    wanted = ("--memory", "15000", "--count", "2", "--", str(driver.probe), "hold")
    with Command(up, *wanted) as first:
        first.said("holding")
        before = up.kill_service("agent")
        first.kill_everything()
        first.ended()
        up.ready_again("agent", before)
        assert len(pods(up)) == 1
        with Command(up, "--memory", "9000", "--", "echo", "in its place") as second:
            second.said("in its place")
            assert second.ended() == 0
        assert any("was killed" in reason for reason in reasons(up))
    ended(up)


def test_a_command_ends_while_its_agent_is_away(up: Standalone, driver: FakeDriver) -> None:
    """If a command ends while its agent is down, its end is recorded as soon as the agent
    returns."""
    with Command(up, "--memory", "1000", "--", str(driver.probe), "hold") as command:
        command.said("holding")
        before = up.kill_service("agent")
        command.process.kill()
        command.ended()
        ended(up)
        up.ready_again("agent", before)


def test_an_agent_that_restarts_knows_what_runs(up: Standalone, driver: FakeDriver) -> None:
    """A restarted agent recognises the running pod and applies a resize to it."""
    with Command(up, "--memory", "1000", "--", str(driver.probe), "alloc:500", "hold") as command:
        command.said("holding")
        before = up.kill_service("agent")
        up.ready_again("agent", before)
        (pod,) = pods(up)
        state = up.data / "state" if up.data else Path()
        assert pod.uid in (state / "runs.json").read_text()
        region = state / "shares" / f"{pod.uid}_run" / "share.cache"

        def limit() -> int:
            return int.from_bytes(region.read_bytes()[1600:1608], "little") >> 20

        assert limit() == 1000
        name = f"{pod.namespace}/{pod.name}"
        wait_until(
            lambda: up.run("resize", name, "--memory", "1300", "--timeout", "10").returncode == 0,
            "the scheduler to resize it",
        )  # fmt: skip
        wait_until(lambda: limit() == 1300, "the region's new limit")
        command.close()
    ended(up)


def test_who_deletes_the_pod_ends_the_command(up: Standalone, driver: FakeDriver) -> None:
    """Deleting the pod ends its command with SIGTERM, as a kubelet would do."""
    with Command(up, "--memory", "1000", "--", str(driver.probe), "hold") as command:
        command.said("holding")
        (pod,) = pods(up)
        assert up.run("delete", f"{pod.namespace}/{pod.name}").returncode == 0
        assert command.ended() == -signal.SIGTERM


def test_json_is_told_on_stderr(up: Standalone) -> None:
    """With `--json`, `run` prints one JSON line on stderr. Only the command's own output goes to
    stdout."""
    done = up.run("run", "--json", "--memory", "1000", "--cores", "20", "--", "echo", "out")
    assert done.stdout == "out\n"
    (told,) = map(json.loads, done.stderr.splitlines())
    assert told["node"] == HOST
    assert told["environment"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert told["environment"]["LD_PRELOAD"].endswith("/libvgpu.so")
    assert told["shares"][0]["cores"] == 20
    assert told["notes"] == []
    ended(up)


def test_what_cannot_be_is_refused(up: Standalone) -> None:
    """`run` refuses an impossible request before it submits a pod, and the error names a fix."""
    for words, code, told in (
        (("--memory", "99999", "--", "true"), 1, "--memory 99999: the largest GPU of"),
        (("--node", "elsewhere", "--", "true"), 1, "up --gpus local"),
        (("--gpu", "1", "--", "true"), 2, "No such option"),
        ((), 2, "COMMAND"),
        (("--", "sudo", "true"), 2, "sudo apportion run"),
    ):
        done = up.run("run", *words)
        assert done.returncode == code, done.stderr
        assert told in done.stderr
    assert pods(up) == []


def test_a_command_that_is_not_there_ends_as_in_a_shell(up: Standalone, tmp_path: Path) -> None:
    """A missing or non-executable command exits with the same code as in a shell."""
    done = up.run("run", "--memory", "1000", "--", "no-such-command")
    assert (done.returncode, done.stderr.splitlines()[-1][:17]) == (127, "no-such-command: ")
    plain = tmp_path / "plain"
    plain.write_text("")
    assert up.run("run", "--memory", "1000", "--", str(plain)).returncode == 126
    ended(up)


def test_a_card_in_mig_mode_is_cut_for_the_command(
    driver: FakeDriver, patched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a GPU in MIG mode a command sees only its MIG instance, and needs no HAMi-core."""
    cut = FakeDriver(tmp_path, "1xA100-40GB:mig")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cut.environment.items():
            patch.setenv(name, value)
        with Standalone(tmp_path / "data", *LOCAL) as up:
            up.up()
            assert "libvgpu.so with --library" in up.output
            with Command(up, "--memory", "9000", "--", str(cut.probe), "info", "hold") as command:
                command.said("holding")
                assert "devices=1" in command.said("info")
                assert 9000 <= int(command.said("info").split("total_mib=")[1].split()[0]) < 20000
                assert not any("note:" in line for line in command.lines)
                command.close()
                assert command.ended() == 0
            ended(up)
    cut.close()


def test_who_has_no_library_is_told(
    driver: FakeDriver, patched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without HAMi-core a command runs with a warning that its share is not enforced."""
    with Standalone(tmp_path / "data", *LOCAL) as up:
        up.up()
        done = up.run("run", "--memory", "1000", "--", str(driver.probe), "info")
        assert "share is not enforced" in done.stderr
        assert "total_mib=15360" in done.stdout
        ended(up)


def test_without_an_agent_that_starts_commands(tmp_path: Path) -> None:
    """`run` on a simulated fleet exits with 3, because simulated agents start no commands."""
    with Standalone(tmp_path / "data", "--no-samples", "--fleet", "1xT4") as up:
        up.up()
        (node,) = (each["node"] for each in up.json("get", "nodes")["items"])
        done = up.run("run", "--node", node, "--", "true")
        assert done.returncode == 3
        assert f"no agent on {node} starts commands" in done.stderr
        assert "--gpus local" in done.stderr
        assert pods(up) == []


def test_up_says_how_to_run_from_another_terminal(up: Standalone) -> None:
    """`up` prints a `run` command for another terminal, which contains this fleet's data folder."""
    named = f"  APPORTION_DATA={up.data} apportion run --memory 4000 --cores 30 -- python train.py"
    assert named in up.lines


def test_a_machine_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without an NVIDIA driver, `up --gpus local` names what is missing, and leaves no
    files or processes."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver of NVIDIA")
    with Standalone(tmp_path / "data", *LOCAL) as up:
        assert up.ended() == 3
        assert "NVIDIA driver" in up.output
        assert "nvidia-smi" in up.output
        up.nothing_left()
