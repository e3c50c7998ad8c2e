"""Run containers with podman and podman-compose, separate from the machine's own containers.

Tests build and start the files that users run. No registry is used, so local images replace the
images that these files pin by digest. Nothing outside the cache folder is changed.

    python -m tests.support.containers        prepare the base images, with progress"""

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "apportion/containers"
RUN = Path("/run/apportion-containers")
BASE = "localhost/apportion-base:bookworm"
NATS = "localhost/apportion-nats:wheel"
"""Local images that replace those of the Dockerfile and the compose file."""
TOOLS = ("podman", "runc", "debootstrap", "iptables")
INSTALL = "apt-get install podman runc netavark aardvark-dns iptables debootstrap"
REQUIRED = "APPORTION_REQUIRE_CONTAINERS"

CONTAINERS_CONF = f"""
[containers]
default_ulimits = ["nofile=4096:8192", "nproc=4096:8192"]
[engine]
runtime = "runc"
tmp_dir = "{RUN}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{CACHE}/networks"
"""
STORAGE_CONF = f"""
[storage]
driver = "overlay"
graphroot = "{CACHE}/storage"
runroot = "{RUN}/storage"
"""
REGISTRIES_CONF = 'unqualified-search-registries = ["localhost"]\n'
NATS_FROM_WHEEL = """
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends busybox-static
RUN ln -s /bin/busybox /usr/local/bin/wget
COPY nats-server /usr/local/bin/nats-server
LABEL apportion.key={key}
CMD ["nats-server"]
"""
FRESH_MACHINE = """
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-pip make
RUN useradd --create-home newcomer
USER newcomer
"""


def missing() -> str | None:
    """Return the reason why containers cannot run here, as one sentence; None if they can."""
    if os.geteuid() != 0:
        return "containers are run as root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"no {', '.join(absent)} ({INSTALL})" if absent else None


@dataclasses.dataclass(frozen=True)
class Podman:
    """A podman with its own storage, networks and settings."""

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment in which podman and podman-compose use our settings."""
        return {
            **os.environ,
            "CONTAINERS_CONF": str(CACHE / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(CACHE / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(CACHE / "registries.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "APPORTION_NATS_IMAGE": NATS,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **(extra or {}),
        }

    def configure(self) -> None:
        """Write podman's settings, and create the folders that they name."""
        for folder in (CACHE, RUN):
            folder.mkdir(parents=True, exist_ok=True)
        (CACHE / "containers.conf").write_text(CONTAINERS_CONF)
        (CACHE / "storage.conf").write_text(STORAGE_CONF)
        (CACHE / "registries.conf").write_text(REGISTRIES_CONF)

    def run(self, *words: str, timeout_s: float = 120) -> str:
        """Run `podman words…` and return its standard output. Raises AssertionError if it fails."""
        return checked(["podman", *words], env=self.environment(), timeout_s=timeout_s)

    def key_of(self, image: str) -> str | None:
        """Return the cache key with which `image` was built, or None if there is no such image."""
        try:
            [facts] = json.loads(self.run("image", "inspect", image))
        except AssertionError:
            return None
        labels: dict[str, str] = facts.get("Labels") or {}
        return labels.get("apportion.key")


def skip_unless_here() -> None:
    """Skip the calling module if containers cannot run here. Fail instead if they are required."""
    reason = missing()
    if reason is not None and REQUIRED not in os.environ:
        pytest.skip(f"containers: {reason}", allow_module_level=True)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Lock the cache folder of images and containers until the block ends.

    Without the lock, concurrent test runs would remove each other's containers."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another run of these tests")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def checked(command: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> str:
    """Run a command that must succeed, and return its standard output.

    A failure shows the last lines of its output. On timeout, its child processes are killed as
    well, because podman-compose starts podman."""
    with subprocess.Popen(
        command,
        env=env, cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            for how in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, how)
                    process.communicate(timeout=20)
            raise
    if process.returncode:
        said = "\n".join((out + err).splitlines()[-40:])
        raise AssertionError(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
    return out


def tell(what: str) -> None:
    """Print progress to the terminal, even under pytest, because the first run is slow."""
    print(f"containers: {what}", file=sys.__stderr__, flush=True)


def prepare() -> Podman:
    """Build the base images and wheels for the current lock files, and return podman.

    The first call takes minutes."""
    reason = missing()
    assert reason is None, f"containers must be run here ({REQUIRED}), but {reason}"
    podman = Podman()
    podman.configure()
    _prepare_base(podman)
    _prepare_nats(podman)
    prepare_wheels()
    return podman


def fresh_machine() -> tuple[Podman, str]:
    """Return podman and an image that has only the README's requirements and an unprivileged
    user."""
    podman = prepare()
    name = "localhost/apportion-fresh-machine"
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        recipe = FRESH_MACHINE.format(base=BASE)
        (Path(folder) / "Dockerfile").write_text(recipe)
        podman.run("build", "--pull=never", "--tag", name, folder, timeout_s=600)
    return podman, name


def _prepare_base(podman: Podman) -> None:
    name = BASE
    key = hashlib.sha256(b"minbase bookworm 1").hexdigest()[:12]
    if podman.key_of(name) == key:
        return
    tell(f"making {name} with debootstrap (about a minute, once)")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        tree, archive = Path(folder) / "tree", Path(folder) / "tree.tar"
        environment = {**os.environ, "LC_ALL": "C"}
        checked(
            ["debootstrap", "--variant=minbase", "bookworm", str(tree)],
            env=environment, timeout_s=900,
        )  # fmt: skip
        shutil.rmtree(tree / "var/cache/apt/archives")
        checked(["tar", "-C", str(tree), "-cf", str(archive), "."], env=environment, timeout_s=300)
        podman.run("import", "--change", f"LABEL apportion.key={key}", str(archive), name)


def _prepare_nats(podman: Podman) -> None:
    server = Path(sys.executable).parent / "nats-server"
    name = NATS
    binary = server.resolve().read_bytes()
    key = hashlib.sha256(binary + NATS_FROM_WHEEL.encode()).hexdigest()[:12]
    if podman.key_of(name) == key:
        return
    tell(f"making {name} from the server of the wheel")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        recipe = NATS_FROM_WHEEL.format(base=BASE, key=key)
        (Path(folder) / "Dockerfile").write_text(recipe)
        (Path(folder) / "nats-server").write_bytes(binary)
        (Path(folder) / "nats-server").chmod(0o755)
        podman.run("build", "--pull=never", "--tag", name, folder, timeout_s=600)


def prepare_wheels() -> Path:
    """Fetch the image's wheels with this machine's pip configuration, and return their folder."""
    locks = [ROOT / "requirements/build.txt", ROOT / "requirements/runtime.txt"]
    key = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    folder = CACHE / f"wheels-{key}"
    if folder.is_dir():
        return folder
    tell("fetching the wheels of the image")
    with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
        wheels = Path(fresh) / "wheels"
        checked(
            [
                *pip(), "download", "--quiet", "--require-hashes",
                "--only-binary=:all:", "--implementation=cp", "--python-version=3.11",
                "--dest", str(wheels), *(word for lock in locks for word in ("-r", str(lock))),
            ],
            env=os.environ, timeout_s=600,
        )  # fmt: skip
        wheels.rename(folder)
    return folder


def pip() -> list[str]:
    """Return the command of the pip that created this environment.

    The environment itself may have no pip."""
    own = importlib.util.find_spec("pip") is not None
    python = sys.executable if own else str(Path(sys.base_prefix) / "bin/python3")
    return [python, "-m", "pip", "--disable-pip-version-check"]


if __name__ == "__main__":
    if reason := missing():
        sys.exit(f"containers: {reason}")
    with alone():
        prepare()
    tell("ready")
