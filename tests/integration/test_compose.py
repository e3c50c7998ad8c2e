"""Tests of docker-compose.yml as users run it. They need root and podman.

If either is missing, the tests are skipped, except under `.ci/run`."""

import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hatch_build import MODULES, source_of
from tests.support.compose import IMAGE, Compose, build_image, sweep
from tests.support.containers import COMPOSE_FILE, alone, prepare, skip_unless_here
from tests.support.polling import wait_until
from tools import release
from tools.bill import bill

skip_unless_here()
pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(1500)]

PROJECT = "apportion-test"
SAMPLE_PODS = 26
AGENTS = ("agent-a", "agent-b", "agent-c")
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
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Provide the whole system once it is healthy, and remove it completely afterwards."""
    with alone():
        podman = prepare()
        sweep(podman, PROJECT)
        compose = Compose(podman, PROJECT, tmp_path_factory.mktemp("operator"))
        try:
            build_image(podman)
            compose.up()
            compose.wait_healthy()
            compose.take_keys()
            yield compose
        finally:
            sweep(podman, PROJECT)


def pods(system: Compose) -> dict[str, dict[str, Any]]:
    """Return every live pod by name."""
    return {pod["name"]: pod for pod in system.apportion("get", "pods")["items"]}


def refusal(pod: dict[str, Any]) -> dict[str, int]:
    """Return, for each reason, the number of nodes that are ruled out for a pending pod. If the pod
    was not refused, return an empty dictionary."""
    return dict(pod.get("reasons", {}))


def placed(system: Compose, *, prefix: str = "", at_least: int) -> dict[str, dict[str, Any]]:
    """Wait until at least `at_least` pods with this name prefix are placed with the shares they
    request, and return them."""

    def held() -> dict[str, dict[str, Any]]:
        chosen = {name: pod for name, pod in pods(system).items() if name.startswith(prefix)}
        waiting.clear()
        waiting.update({n: refusal(pod) for n, pod in chosen.items() if pod["phase"] not in HOLDS})
        return {} if waiting or len(chosen) < at_least else chosen

    waiting: dict[str, dict[str, int]] = {}
    try:
        return wait_until(held, f"{at_least} pods to be placed", interval_s=0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}; these wait: {waiting}") from None


def test_every_service_runs_with_least_rights(system: Compose) -> None:
    """Every service runs as non-root, with a read-only file system, without capabilities, and is
    reachable only locally."""
    names = system.containers()
    assert len(names) == 11, names
    for name in names:
        facts = system.facts(name)
        assert facts["HostConfig"]["ReadonlyRootfs"], name
        assert not facts["EffectiveCaps"], name
        assert facts["HostConfig"]["SecurityOpt"] == ["no-new-privileges"], name
        published = facts["HostConfig"]["PortBindings"] or {}
        hosts = {place["HostIp"] for places in published.values() for place in places or ()}
        assert hosts <= {"127.0.0.1"}, name
        if "_keys_" in name:
            assert facts["HostConfig"]["NetworkMode"] == "none", name
        elif "_nats_" not in name:
            assert facts["Config"]["User"] == "10001:10001", name


def test_each_sees_its_own_key_alone(system: Compose) -> None:
    """Each service has only its own key, and the ledger's key if the service appends. The compose
    file contains no password."""
    text = COMPOSE_FILE.read_text()
    assert "PASSWORD" not in text
    assert re.findall(r"nats://[^\s@]*:[^\s@]*@", text) == []
    seeds = {}
    for service in ("nats", "intake", "scheduler", "binder", "gateway", "watcher", *AGENTS):
        [name] = system.containers(service)
        files = system.execute(name, "ls", "/etc/apportion" if service == "nats" else "/keys")
        appends = ["ledger.key"] if service not in AGENTS else []
        assert files.split() == (["nats.conf"] if service == "nats" else [*appends, "nats.nk"])
        if service != "nats":
            seeds[service] = system.execute(name, "cat", "/keys/nats.nk")
    assert len(set(seeds.values())) == len(seeds)
    assert all(seed.startswith("SU") for seed in seeds.values())


def test_keys_are_made_once(system: Compose) -> None:
    """Restarting the service that creates the keys leaves existing keys unchanged."""
    [scheduler] = system.containers("scheduler")
    [keys] = system.containers("keys")
    before = system.execute(scheduler, "sha256sum", "/keys/nats.nk", "/keys/ledger.key")
    system.start(keys)
    assert system.execute(scheduler, "sha256sum", "/keys/nats.nk", "/keys/ledger.key") == before


def test_the_image_has_the_compiled_wheel_on_the_python_of_debian(system: Compose) -> None:
    """The image has Debian's Python, and every module is compiled to machine code or bytecode."""
    code = """if True:
        import importlib.util, json, sys
        from pathlib import Path
        from apportion.runtime.process.compilation import PACKAGE, SUFFIX, compiled, outdated
        sources = [Path(each) for each in PACKAGE.rglob("*.py")]
        made = [Path(importlib.util.cache_from_source(each)) for each in sources]
        print(json.dumps({
            "compiled": [str(each.relative_to(PACKAGE.parent)) for each in compiled()],
            "outdated": len(outdated()), "suffix": SUFFIX, "sources": len(sources),
            "without bytecode": sum(not each.is_file() for each in made),
            "python": str(Path(sys.executable).resolve()),
        }))
    """
    found = json.loads(system.python(code))
    listed = {f"{source_of(each).with_suffix('')}{found['suffix']}" for each in MODULES}
    assert set(found["compiled"]) == listed
    assert found["outdated"] == found["without bytecode"] == 0
    assert found["sources"] > len(listed)
    assert found["python"] == "/usr/bin/python3.11"


def test_a_release_knows_what_is_in_the_image(
    system: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bill of materials lists the image's Debian packages. The release records the digest of
    the image's manifest."""
    for name, value in system.podman.environment().items():
        monkeypatch.setenv(name, value)
    listed = {each["name"]: each for each in bill(IMAGE)["components"]}
    assert listed["python3.11-minimal"]["purl"].startswith("pkg:deb/debian/python3.11-minimal@3.11")
    archive = tmp_path / release.IMAGE
    system.podman.run("save", "--quiet", "--format=oci-archive", f"--output={archive}", IMAGE)
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile(f"blobs/sha256/{release.image_digest(archive)}")
        assert manifest is not None
        layers = json.loads(manifest.read())["layers"]
    [facts] = json.loads(system.podman.run("image", "inspect", IMAGE))
    assert len(layers) == len(facts["RootFS"]["Layers"])


def test_the_samples_are_placed(system: Compose) -> None:
    """The watcher submits all samples, each pod gets what it requests, and the gang is complete."""
    found = placed(system, at_least=SAMPLE_PODS)
    assert len([name for name in found if name.startswith("distributed-gpu-training")]) == 4


def test_the_command_line_runs_in_a_container(system: Compose) -> None:
    """The command from the head of the compose file runs the CLI in a container."""
    assert "hami-pod" in system.run("cli", "get", "pods")


def test_a_killed_scheduler_is_replaced_by_the_other(system: Compose) -> None:
    """If one of two schedulers is killed while pods arrive, the other one places the remaining
    pods, each once."""
    system.up(scheduler=2, binder=2)
    system.wait_healthy()
    first, _second = system.containers("scheduler")
    assert len(system.containers("binder")) == 2
    manifests = ["---".join(MORE.format(number=n) for n in range(i, i + 10)) for i in (0, 10, 20)]
    system.apportion("submit", "-f", "-", stdin=manifests[0])
    system.kill(first)
    for manifest in manifests[1:]:
        system.apportion("submit", "-f", "-", stdin=manifest)
    found = placed(system, prefix="more-", at_least=30)
    times = Counter(p["uid"] for p in system.apportion("get", "placements")["items"])
    assert {times[pod["uid"]] for pod in found.values()} == {1}


def test_everything_ends_when_told_and_down_leaves_nothing(system: Compose) -> None:
    """SIGTERM ends every service cleanly, the ledger's server last, and `down` leaves nothing."""
    running = [name for name in system.containers() if system.facts(name)["State"]["Running"]]
    assert len(running) >= 9, running
    for name in sorted(running, key=lambda name: "_nats_" in name):
        assert system.stop(name) == 0, f"{name}: {system.logs(name)}"
    system.down()
    assert system.containers() == []
