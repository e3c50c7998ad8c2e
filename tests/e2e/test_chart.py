"""What the chart says: taken by a real API server, refused where a setting makes no sense."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.server import ROLES, find_binary
from apportion.runtime.ledger.port import LedgerError
from tests import kustomize
from tests.support.control_plane import ControlPlane, find_binaries, free_port
from tests.support.helm import CHART, helm, rendered
from tests.support.nats import draft
from tests.support.polling import until

SPACE = "apportion"
KINDS = "all,serviceaccounts,roles,rolebindings,configmaps,poddisruptionbudgets,pvc"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A cluster that never heard of us."""
    found, reason = find_binaries()
    if found is None:
        pytest.skip(reason)
    running = ControlPlane(found, tmp_path / "plane", whole=True)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def documents(text: str) -> dict[tuple[str, str], Any]:
    """What was rendered, by kind and name."""
    found = (each for each in yaml.safe_load_all(text) if each)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_it_is_installed_and_upgraded_and_leaves_the_ledger(plane: ControlPlane) -> None:
    """With nothing said; passwords are random, outlive upgrades, and the release itself."""

    def passwords() -> dict[str, str]:
        said = plane.kubectl("get", "secret", "nats-passwords", "-n", SPACE, "-o", "json")
        data: dict[str, str] = json.loads(said)["data"]
        return data

    where = ("--namespace", SPACE)
    chart = ("apportion", str(CHART), *where)
    notes = helm("install", *chart, "--create-namespace", kubeconfig=plane.kubeconfig)
    assert "Apportion" in notes
    first = passwords()
    assert len(set(first.values())) == len(ROLES) + 1
    more = "scheduler.replicas=3,agent.simulate=8xH100-80GB,monitoring.dashboards.enabled=true"
    notes = helm("upgrade", *chart, "--set", more, kubeconfig=plane.kubeconfig)
    assert "pretend to have 8xH100-80GB" in notes
    plane.kubectl("get", "daemonset/agent-simulated", "configmap/apportion-dashboards", "-n", SPACE)
    assert passwords() == first
    notes = helm("upgrade", *chart, "--set", "shadow=true", kubeconfig=plane.kubeconfig)
    assert "apportion shadow" in notes
    assert "deployment/binder" not in plane.kubectl("get", "deployments", "-n", SPACE, "-o", "name")
    helm("uninstall", "apportion", *where, kubeconfig=plane.kubeconfig)
    assert passwords() == first
    left = plane.kubectl("get", KINDS, "-n", SPACE, "-l", "app", "-o", "name")
    assert not left
    left = plane.kubectl("get", "clusterroles,mutatingwebhookconfigurations", "-o", "name")
    assert "apportion" not in left


def test_every_setting_has_its_rule() -> None:
    """What is in values.yaml is in the schema and the other way round, so a typo is refused."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(said: Any, rule: Any, where: str) -> None:
        if not isinstance(said, dict) or "properties" not in rule:
            return
        assert said.keys() == rule["properties"].keys() - {"global"}, where
        assert rule["additionalProperties"] is False, where
        for key, value in said.items():
            check(value, rule["properties"][key], f"{where}.{key}")

    check(values, schema, "values")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("nats.replicas=2", "nats/replicas"),
        ("nats.enabled=false", "nats/url"),
        ("nats.url=nats://me:secret@there:4222", "nats/url"),
        ("agent.metricsAs={dcgm}", "agent/metricsAs"),
        ("schedular.replicas=2", "schedular"),
        ("watcher.health=0", "watcher/health"),
        ("agent.simulate=many", "agent/simulate"),
        ("agent.noCdi=true,dra.enabled=true", "agent.noCdi and dra.enabled"),
        ("monitoring.rule.enabled=true", "monitoring"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, named: str) -> None:
    """By its name, before anything is sent to a cluster."""
    words = ("template", "apportion", str(CHART), "--set", setting)
    assert named in helm(*words, ok=False)


def test_the_extender_is_one_setting() -> None:
    """A service of its own, which a flood may stop alone; with certificates, if there are some."""
    assert ("Deployment", "extender") not in documents(rendered())
    found = documents(rendered("--set", "extender.enabled=true"))
    assert found["Service", "extender"]["spec"]["selector"] == {"app": "extender"}
    (container,) = found["Deployment", "extender"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["extender", "--listen", "0.0.0.0:3456"]
    words = "extender.enabled=true,extender.certificates=extender-tls"
    pod = documents(rendered("--set", words))["Deployment", "extender"]["spec"]["template"]["spec"]
    assert "--tls-client-ca=/etc/apportion/tls/ca.crt" in pod["containers"][0]["args"]
    assert {"name": "tls", "secret": {"secretName": "extender-tls"}} in pod["volumes"]


def test_the_agent_may_what_it_needs_and_no_more() -> None:
    """Cutting cards is a right of its own, and asked for by itself."""

    def rights(*words: str) -> Any:
        pod = documents(rendered(*words))["DaemonSet", "agent"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        return container["securityContext"]["capabilities"]

    assert rights() == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    assert rights("--set", "agent.mig=true")["add"] == ["SYS_PTRACE", "SYS_ADMIN"]


def test_an_agent_without_cdi_is_one_setting() -> None:
    """And off unless it is said."""

    def words(*settings: str) -> Any:
        pod = documents(rendered(*settings))["DaemonSet", "agent"]["spec"]["template"]["spec"]
        return pod["containers"][0]["args"]

    assert "--no-cdi" not in words()
    assert "--no-cdi" in words("--set", "agent.noCdi=true")


def test_nodes_show_memory_and_cores_unless_it_is_said() -> None:
    """The binder's right to a node's status comes and goes with the setting."""
    role = ("ClusterRole", "apportion-allocatable")
    assert documents(rendered())[role]["rules"][0]["resources"] == ["nodes/status"]
    found = documents(rendered("--set", "binder.allocatable=false"))
    assert role not in found
    (container,) = found["Deployment", "binder"]["spec"]["template"]["spec"]["containers"]
    assert "--no-allocatable" in container["args"]


def test_dra_is_one_setting() -> None:
    """Class, rights, sockets and options come with it, and without it there is none of them."""
    roles = {("ClusterRole", f"apportion-{name}-dra") for name in ("watcher", "binder")}
    added = {*roles, ("DeviceClass", "gpu.apportion.dev")}
    assert not added & documents(rendered()).keys()
    found = documents(rendered("--set", "dra.enabled=true"))
    assert added <= found.keys()
    running = [found["Deployment", name] for name in ("watcher", "binder", "admission")]
    running.append(found["DaemonSet", "agent"])
    containers = [each["spec"]["template"]["spec"]["containers"][0] for each in running]
    assert all("--dra" in each["args"] for each in containers)
    mounts = {each["mountPath"] for each in containers[-1]["volumeMounts"]}
    assert "/var/lib/kubelet/plugins_registry" in mounts
    rules = [rule for role in roles for rule in found[role]["rules"]]
    assert {group for rule in rules for group in rule["apiGroups"]} == {"resource.k8s.io"}


def test_nodes_without_devices_may_pretend_to_have_some() -> None:
    """Where the label is not, and nowhere else: what has cards tells of these."""
    assert ("DaemonSet", "agent-simulated") not in documents(rendered())
    more = (
        "agent.simulate=8xH100-80GB+2xT4,agent.library.image=hami:1,agent.runtimeClassName=nvidia"
    )
    found = documents(rendered("--set", more))
    real, pretended = (
        found["DaemonSet", name]["spec"]["template"]["spec"]
        for name in ("agent", "agent-simulated")
    )
    assert real["nodeSelector"] == {"gpu": "on"}
    assert not any("simulate" in each for each in real["containers"][0]["args"])
    assert "--simulate=8xH100-80GB+2xT4" in pretended["containers"][0]["args"]
    assert "--kubelet=/var/lib/kubelet" in pretended["containers"][0]["args"]
    assert not pretended.keys() & {"nodeSelector", "initContainers", "runtimeClassName"}
    (term,) = pretended["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "gpu", "operator": "NotIn", "values": ["on"]}]
    words = ("template", "apportion", str(CHART), "--set", "agent.simulate=1xT4")
    assert "agent.nodeSelector" in helm(*words, "--set", "agent.nodeSelector=null", ok=False)


def test_a_shadow_may_bind_nothing() -> None:
    """Neither service nor right to do so is there, nor a device plugin, nor a webhook."""
    every = "shadow=true,dra.enabled=true,extender.enabled=true"
    found = documents(rendered("--set", every))
    names = {name for kind, name in found if kind != "ServiceAccount"}
    assert not names & {"binder", "admission", "extender", "apportion", "apportion-allocatable"}
    rights = [
        (resource, verb)
        for (kind, _), each in found.items()
        if kind in {"Role", "ClusterRole"}
        for rule in each["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert {verb for _, verb in rights} == {"get", "list", "watch"}
    assert ("Deployment", "binder") not in found
    assert {("Deployment", name) for name in ("watcher", "scheduler", "gateway")} <= found.keys()
    (watching,) = found["Deployment", "watcher"]["spec"]["template"]["spec"]["containers"]
    assert watching["args"][-1] == "--scheduler-name=apportion"
    pod = found["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["agent", "--node=$(NODE_NAME)"]
    assert not container["volumeMounts"]
    assert not pod["volumes"]


def test_monitoring_is_three_settings() -> None:
    """Each brings one object; they carry the labels by which they are found."""
    made = {
        "dashboards": ("ConfigMap", "apportion-dashboards"),
        "rules": ("PrometheusRule", "apportion"),
        "scrape": ("PodMonitor", "apportion"),
    }
    assert not set(made.values()) & documents(rendered()).keys()
    for name, key in made.items():
        labels = f"monitoring.{name}.labels.release=stack"
        found = documents(rendered("--set", f"monitoring.{name}.enabled=true,{labels}"))
        assert found.keys() & set(made.values()) == {key}
        assert found[key]["metadata"]["labels"]["release"] == "stack"
    found = documents(
        rendered("--set", "monitoring.rules.enabled=true,monitoring.dashboards.enabled=true")
    )
    plain = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert found[made["rules"]]["spec"] == plain
    boards = found[made["dashboards"]]
    assert boards["metadata"]["labels"] == {"grafana_dashboard": "1"}
    for path in (CHART / "files" / "dashboards").iterdir():
        assert json.loads(boards["data"][path.name]) == json.loads(path.read_text())


def test_a_library_of_an_image_is_put_where_containers_find_it() -> None:
    """HAMi-core's comes from its own image, and from no tree of ours."""
    words = ("--set", "agent.library.image=hami:1,agent.state=/srv/apportion")
    pod = documents(rendered(*words))["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (copied,) = pod["initContainers"]
    assert "/srv/apportion/libvgpu.so" in copied["command"][-1]
    assert "--library=/srv/apportion/libvgpu.so" in pod["containers"][0]["args"]


def test_what_kustomize_applies_is_rendered_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`make generate` mends the rest."""
    assert kustomize.differing() == [], capsys.readouterr().err


# ---------------------------------------------------------------- three servers of the ledger


class Server(NamedTuple):
    """One of them: where clients find it, and its process."""

    port: int
    process: asyncio.subprocess.Process

    def url(self, role: str) -> str:
        """With which a role connects."""
        return f"nats://{role}:p{role}@127.0.0.1:{self.port}"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[Server]]:
    """Three by the chart's configuration, each with what its pod would have as environment."""
    said = documents(rendered())["ConfigMap", "nats-configuration"]["data"]["apportion.conf"]
    routes = [free_port() for _ in range(3)]
    shared = {f"APPORTION_{role.upper()}_PASSWORD": f"p{role}" for role in ROLES}
    shared |= {"NATS_HOST": "127.0.0.1", "NATS_MAX_STORE": "1GB"}
    shared["APPORTION_ROUTES_PASSWORD"] = "proutes"
    for number, route in enumerate(routes):
        shared[f"NATS_ROUTE_{number}"] = f"nats://routes:proutes@127.0.0.1:{route}"
    started = []
    try:
        for number, route in enumerate(routes):
            path = tmp_path / f"nats-{number}.conf"
            path.write_text(said.replace("0.0.0.0:6222", f"127.0.0.1:{route}"))
            port = free_port()
            own = {"NATS_NAME": f"nats-{number}", "NATS_PORT": str(port)}
            own |= {"NATS_MONITOR_PORT": str(free_port())}
            own |= {"NATS_STORE_DIR": str(tmp_path / f"data-{number}")}
            command = (str(find_binary()), "-c", str(path))
            process = await asyncio.create_subprocess_exec(*command, env=os.environ | shared | own)
            started.append(Server(port, process))
        yield started
    finally:
        for server in started:
            if server.process.returncode is None:
                server.process.kill()
                await server.process.wait()


async def test_the_ledger_outlives_one_of_three_servers(servers: list[Server]) -> None:
    """By the chart's own configuration: routes, passwords, and a stream of three copies."""

    async def made() -> bool:
        words = ("ledger", "create", "--replicas=3", "--nats", servers[0].url("bootstrap"))
        job = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apportion.cli.main", *words
        )
        return await job.wait() == 0

    await until(made, "the job to make the stream", timeout_s=60, interval_s=0.5)
    first = await connect(servers[0].url("watcher"), name="test")
    await first.append([draft()])
    await first.close()
    servers[0].process.kill()
    await servers[0].process.wait()
    second = await connect(servers[1].url("watcher"), name="test")

    async def appended() -> bool:
        with contextlib.suppress(LedgerError):
            await second.append([draft(key="after")])
            return True
        return False

    await until(appended, "the other two to take an event", timeout_s=40, interval_s=0.5)
    assert await second.last_revision() == 2
    await second.close()
