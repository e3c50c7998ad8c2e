"""docker-compose.yml as people run it: built, started, used, scaled, hurt and taken down.

Every step goes through the published ports or a container, on an image built by the Dockerfile. It
needs root and podman; `.ci/run` insists on it.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.compose import Compose, sweep
from tests.support.containers import REQUIRED, missing, prepare
from tests.support.polling import wait_until

REASON = missing()
pytestmark = [
    pytest.mark.containers,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        REASON is not None and REQUIRED not in os.environ, reason=f"containers: {REASON}"
    ),
]

PROJECT = "apportion-test"
HOLDS = {"placed", "bound", "allocated"}
MORE = """
apiVersion: v1
kind: Pod
metadata: {{ name: more-{number} }}
spec:
  schedulerName: apportion
  containers:
    - name: main
      image: x
      resources: {{ limits: {{ nvidia.com/gpu: 1, nvidia.com/gpumem: 2000 }} }}
"""


@pytest.fixture(scope="module")
def system() -> Iterator[Compose]:
    """The whole system, healthy; whatever happens, nothing of it is left behind."""
    assert REASON is None, f"{REQUIRED} is set, but {REASON}"
    podman = prepare()
    sweep(podman, PROJECT)
    compose = Compose(podman, PROJECT)
    try:
        compose.build()
        compose.up()
        compose.wait_healthy()
        yield compose
    finally:
        sweep(podman, PROJECT)


def pods(system: Compose) -> dict[str, dict[str, Any]]:
    """Every live pod by name."""
    return {pod["name"]: pod for pod in system.apportion("get", "pods")["items"]}


def settled(system: Compose) -> dict[str, dict[str, Any]]:
    """Every live pod, once none waits for a decision."""

    def decided() -> dict[str, dict[str, Any]]:
        found = pods(system)
        undecided = any(p["phase"] not in HOLDS | {"refused"} for p in found.values())
        return {} if undecided else found

    return wait_until(decided, "every pod to be decided", timeout_s=60, interval_s=0.5)


def test_every_service_runs_with_least_rights(system: Compose) -> None:
    """Not root, read-only, no capabilities, and reachable from this machine only."""
    names = system.containers()
    assert len(names) == 9, names
    for name in names:
        facts = system.facts(name)
        assert facts["HostConfig"]["ReadonlyRootfs"], name
        assert not facts["EffectiveCaps"], name
        assert facts["HostConfig"]["SecurityOpt"] == ["no-new-privileges"], name
        published = facts["HostConfig"]["PortBindings"] or {}
        hosts = {place["HostIp"] for places in published.values() for place in places}
        assert hosts <= {"127.0.0.1"}, name
        if "nats" not in name:
            assert facts["Config"]["User"] == "10001:10001", name


def test_the_samples_are_placed(system: Compose) -> None:
    """The watcher submits them all, and each holds what it asked for."""
    wait_until(lambda: len(pods(system)) >= 20, "the samples to arrive", timeout_s=60)
    found = settled(system)
    refused = {name: pod["reasons"] for name, pod in found.items() if pod["phase"] == "refused"}
    assert not refused
    gang = [pod for name, pod in found.items() if name.startswith("distributed-gpu-training")]
    assert len(gang) == 4


def test_the_command_line_runs_in_a_container(system: Compose) -> None:
    """What the head of the compose file tells people to type."""
    assert "hami-pod" in system.run("cli", "get", "pods")


def test_a_killed_scheduler_is_replaced_by_the_other(system: Compose) -> None:
    """Two schedulers, one killed while pods come in: all are placed, each once."""
    system.up(scheduler=2, binder=2)
    system.wait_healthy()
    first, _second = system.containers("scheduler")
    assert len(system.containers("binder")) == 2
    before = pods(system)
    count = 30
    manifests = ["---".join(MORE.format(number=n) for n in range(i, i + 10)) for i in (0, 10, 20)]
    system.apportion("submit", "-f", "-", stdin=manifests[0])
    system.kill(first)
    for manifest in manifests[1:]:
        system.apportion("submit", "-f", "-", stdin=manifest)
    wait_until(
        lambda: len(pods(system)) == len(before) + count, "the new pods to arrive", timeout_s=30
    )
    found = settled(system)
    assert {pod["phase"] for name, pod in found.items() if name.startswith("more-")} <= HOLDS
    placed = Counter(p["uid"] for p in system.apportion("get", "placements")["items"])
    assert len(placed) == len([p for p in found.values() if p["phase"] in HOLDS])
    assert max(placed.values()) == 1


def test_down_leaves_nothing(system: Compose) -> None:
    """Every container ends by itself when told, and none is left."""
    system.down()
    assert system.containers() == []
