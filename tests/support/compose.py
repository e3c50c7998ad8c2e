"""Build and run docker-compose.yml under podman, and use the command line against it."""

import functools
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.support.containers import (
    BASE,
    CACHE,
    COMPOSE_FILE,
    ROOT,
    Podman,
    checked,
    prepare_wheels,
    tell,
)
from tests.support.polling import wait_until
from tests.support.ports import free_port

IMAGES_KEPT = "6h"  # layers of the previous build speed up the next one
IMAGE = "localhost/apportion:local"
APPORTION = ROOT / ".venv/bin/apportion"


class Compose:
    """A Compose project with a name and ports of its own, started from docker-compose.yml."""

    def __init__(self, podman: Podman, project: str, keys: Path) -> None:
        self.podman = podman
        self._project = project
        self._keys = keys
        nats, gateway = free_port(), free_port()
        self._environment = podman.environment(
            {
                "APPORTION_NATS_PORT": str(nats),
                "APPORTION_GATEWAY_PORT": str(gateway),
                "APPORTION_NATS_URL": f"nats://operator@127.0.0.1:{nats}",
                "APPORTION_GATEWAY": f"http://127.0.0.1:{gateway}",
                "APPORTION_NATS_KEY": str(keys / "nats.nk"),
                "APPORTION_LEDGER_KEY": str(keys / "ledger.key"),
            }
        )

    def up(self, **scale: int) -> None:
        """Start all services of the compose file, with `scale` containers of each named service."""
        # podman-compose accepts one --scale at a time, docker compose several.
        for words in [["--scale", f"{name}={n}"] for name, n in scale.items()] or [[]]:
            self._compose("up", "--detach", "--no-build", *words, timeout_s=300)

    def down(self) -> None:
        """Stop the project, and remove its containers, network and volume."""
        self._compose("down", "--volumes", "--remove-orphans", "--timeout=25", timeout_s=300)

    def run(self, service: str, *words: str) -> str:
        """Return the standard output of `docker compose run --rm SERVICE WORDS`."""
        # docker compose enables the profile of a named service; podman-compose must be told.
        return self._compose("--profile=cli", "run", "--rm", "-T", service, *words, timeout_s=120)

    def take_keys(self) -> None:
        """Copy the operator's keys out of a container, as the compose file's header describes."""
        self._keys.mkdir(mode=0o700, exist_ok=True)
        for name in ("nats.nk", "ledger.key"):
            words = ("--rm", "-T", "--entrypoint=cat", "cli", f"/keys/{name}")
            (self._keys / name).write_text(
                self._compose("--profile=cli", "run", *words, timeout_s=120)
            )

    def python(self, code: str) -> str:
        """Return what this Python code prints in a container of the image, without network or
        volumes."""
        words = ("--rm", "--network=none", "--read-only", "--entrypoint=python", IMAGE, "-c", code)
        return self.podman.run("run", *words)

    def containers(self, service: str = "") -> list[str]:
        """Return the container names of one service, or of all services, including ended
        containers."""
        chosen = [f"label=com.docker.compose.project={self._project}"]
        chosen += [f"label=com.docker.compose.service={service}"] if service else []
        filters = [word for label in chosen for word in ("--filter", label)]
        return sorted(self.podman.run("ps", "--all", *filters, "--format={{.Names}}").split())

    def facts(self, container: str) -> dict[str, Any]:
        """Return the output of `podman inspect` for a container."""
        [found] = json.loads(self.podman.run("inspect", container))
        return dict(found)

    def healthy(self, container: str) -> bool:
        """Return True if the container passes the health check of the compose file."""
        try:
            self.podman.run("healthcheck", "run", container)
        except AssertionError:
            return False
        return True

    def wait_healthy(self) -> None:
        """Wait until every container with a health check is healthy."""
        for name in self.containers():
            check = self.facts(name)["Config"].get("Healthcheck", {}).get("Test", ["NONE"])
            if check == ["NONE"]:
                continue
            passes = functools.partial(self.healthy, name)
            try:
                wait_until(passes, f"{name} to be healthy", timeout_s=300, interval_s=0.5)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.logs(name)}") from None

    def logs(self, container: str) -> str:
        """Return the last log lines of a container."""
        command = ["podman", "logs", "--tail=30", container]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def execute(self, container: str, *words: str) -> str:
        """Return the standard output of a command in a running container."""
        return self.podman.run("exec", container, *words)

    def start(self, container: str) -> None:
        """Start an ended container again, and wait until it exits successfully."""
        self.podman.run("start", "--attach", container)

    def kill(self, container: str) -> None:
        """Kill the container with SIGKILL. podman may then restart it."""
        os.kill(int(self.facts(container)["State"]["Pid"]), signal.SIGKILL)

    def stop(self, container: str) -> int:
        """Stop the container with SIGTERM, or with SIGKILL after the grace period. Return its exit
        code."""
        grace_s = self.facts(container)["Config"]["StopTimeout"]
        self.podman.run("stop", f"--time={grace_s}", container)
        return int(self.facts(container)["State"]["ExitCode"])

    def apportion(self, *words: str, stdin: str = "", ends_with: int = 0) -> Any:
        """Run the local command line against the published ports, and return its JSON answer."""
        done = subprocess.run(
            [APPORTION, *words, "--json"],
            env=self._environment, input=stdin, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        said = f"apportion {' '.join(words)} ended with {done.returncode}: {done.stderr}"
        assert done.returncode == ends_with, said
        return json.loads(done.stdout)

    def _compose(self, *words: str, timeout_s: float) -> str:
        command = ["podman-compose", "--project-name", self._project, "--file", str(COMPOSE_FILE)]
        return checked([*command, *words], env=self._environment, timeout_s=timeout_s)


@functools.cache
def build_image(podman: Podman) -> None:
    """Build the product's image with wheels from the cache, once for all tests.

    The modules are compiled without optimization, which is faster.
    `tests/integration/test_wheel.py` tests the optimized build that ships."""
    tell("building the image of docker-compose.yml")
    wheels = f"--volume={prepare_wheels()}:/wheels:ro"
    offline = "--build-arg=PIP_NO_INDEX=1 --build-arg=PIP_FIND_LINKS=/wheels"
    base = f"--build-arg=BASE={BASE}"
    command = ["podman-compose", "--project-name", "apportion-build", "--file", str(COMPOSE_FILE)]
    compiled = CACHE / "compiled"
    compiled.mkdir(exist_ok=True)
    quick = f"--volume={compiled}:/compiled --build-arg=APPORTION_COMPILED=/compiled"
    quick += " --build-arg=APPORTION_OPTIMIZATION=-O0"
    arguments = f"--podman-build-args=--pull=never {wheels} {offline} {base} {quick}"
    environment = podman.environment()
    checked([*command, arguments, "build", "ledger"], env=environment, timeout_s=900)


def sweep(podman: Podman, project: str) -> None:
    """Remove the containers and volumes that an interrupted test run or `down` left behind."""
    label = f"label=com.docker.compose.project={project}"
    left = podman.run("ps", "--all", "--quiet", "--filter", label).split()
    if left:
        podman.run("rm", "--force", "--depend", "--time=0", *left)
    podman.run("pod", "rm", "--force", "--ignore", f"pod_{project}")
    for kind in ("network", "volume"):
        for name in podman.run(kind, "ls", "--quiet", "--filter", label).split():
            podman.run(kind, "rm", "--force", name)
    # External: an interrupted build leaves containers that use its images.
    podman.run("image", "prune", "--force", "--external", f"--filter=until={IMAGES_KEPT}")
