"""A real API server accepts what the Helm chart renders, and the chart refuses invalid settings."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest
import yaml

from apportion.callout.main import issuer
from apportion.core.identity import roles as identities
from apportion.runtime.jetstream.client import connect
from apportion.runtime.jetstream.server.embedded import ROLES, find_binary
from apportion.runtime.ledger.port import DuplicateRefused, LedgerError
from apportion.runtime.process.reach import LEDGER_KEY_BYTES_MIN
from tests.support import generated
from tests.support.authority import Authority
from tests.support.control_plane import ControlPlane, find_binaries
from tests.support.helm import CHART, documents, helm, pod_templates, rendered
from tests.support.nats import draft
from tests.support.polling import until
from tests.support.ports import free_port
from tools import kustomize

SPACE = "apportion"
KINDS = "all,serviceaccounts,roles,rolebindings,configmaps,poddisruptionbudgets,pvc"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Provide a cluster on which Apportion was never installed."""
    found, reason = find_binaries()
    if found is None:
        pytest.skip(reason)
    running = ControlPlane(found, tmp_path / "plane", whole=True)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_it_is_installed_and_upgraded_and_leaves_the_ledger(plane: ControlPlane) -> None:
    """The chart can be installed and upgraded with its default values.

    Its random passwords survive an upgrade and an uninstall."""

    def of_secret(name: str) -> dict[str, str]:
        said = plane.kubectl("get", "secret", name, "-n", SPACE, "-o", "json")
        data: dict[str, str] = json.loads(said)["data"]
        return data

    def passwords() -> dict[str, str]:
        return of_secret("nats-passwords")

    where = ("--namespace", SPACE)
    chart = ("apportion", str(CHART), *where)
    notes = helm("install", *chart, "--create-namespace", kubeconfig=plane.kubeconfig)
    assert "Apportion" in notes
    first, certificate = passwords(), of_secret("nats-tls")
    assert len(set(first.values())) == len(ROLES) + 4  # routes, callout, what it signs by, ledger
    more = "scheduler.replicas=3,agent.simulate=8xH100-80GB,monitoring.dashboards.enabled=true"
    more += ",receipts.enabled=true"
    notes = helm("upgrade", *chart, "--set", more, kubeconfig=plane.kubeconfig)
    assert "8xH100-80GB" in notes
    made = ("daemonset/agent-simulated", "configmap/apportion-dashboards", "cronjob/receipts")
    plane.kubectl("get", *made, "-n", SPACE)
    assert passwords() == first
    assert of_secret("nats-tls") == certificate
    helm("upgrade", *chart, "--set", "callout.enabled=false", kubeconfig=plane.kubeconfig)
    assert passwords() == first
    notes = helm("upgrade", *chart, "--set", "shadow=true", kubeconfig=plane.kubeconfig)
    assert "apportion shadow" in notes
    assert "deployment/binder" not in plane.kubectl("get", "deployments", "-n", SPACE, "-o", "name")
    helm("uninstall", "apportion", *where, kubeconfig=plane.kubeconfig)
    assert passwords() == first
    left = plane.kubectl("get", KINDS, "-n", SPACE, "-l", "app", "-o", "name")
    assert not left
    plane.kubectl("get", "pvc/receipts", "-n", SPACE)
    left = plane.kubectl("get", "clusterroles,mutatingwebhookconfigurations", "-o", "name")
    assert "apportion" not in left


def test_helm_test_asks_the_doctor(plane: ControlPlane) -> None:
    """`helm test` runs the doctor as a viewer, through the gateway, and reaches nothing else.

    The API server accepts its pod, and `extraObjects`."""
    about = {"name": "{{ .Release.Name }}-more"}
    more = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": about}]
    found = documents(rendered("--set-json", f"extraObjects={json.dumps(more)}"))
    pod = found["Pod", "test"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (doctor,) = pod["spec"]["containers"]
    assert doctor["args"] == ["doctor"]
    assert {each["name"] for each in doctor["env"]} == {"APPORTION_GATEWAY", "APPORTION_TOKEN"}
    (rule,) = found["NetworkPolicy", "test"]["spec"]["egress"]
    assert rule["ports"] == [{"port": 8470}]
    assert found["ClusterRoleBinding", "apportion-test"]["roleRef"]["name"] == "apportion-viewer"
    plane.kubectl("create", "namespace", SPACE)
    for key in (("ServiceAccount", "test"), ("Pod", "test"), ("ConfigMap", f"{SPACE}-more")):
        plane.kubectl("apply", "-n", SPACE, "-f", "-", stdin=yaml.safe_dump(found[key]))


@pytest.mark.parametrize("settings", ["shadow=false", "shadow=true"])
def test_every_pod_template_is_valid(settings: str) -> None:
    """Every pod template declares the volumes that it mounts.

    No template has an annotation that the chart's policies reserve for the binder."""
    with_all = f"{settings},agent.library.image=x,extender.enabled=true,receipts.enabled=true"
    with_all += ",defrag.enabled=true" if settings == "shadow=false" else ""
    found = documents(rendered("--set", with_all))
    own = {name: each["spec"].get("volumeClaimTemplates", ()) for (kind, name), each in
           found.items() if kind == "StatefulSet"}  # fmt: skip
    for name, template in pod_templates(found).items():
        notes = template.get("metadata", {}).get("annotations", {})
        assert not [key for key in notes if key.startswith("apportion.dev/")], name
        pod = template["spec"]
        claims = {claim["metadata"]["name"] for claim in own.get(name, ())}
        volumes = {volume["name"] for volume in pod.get("volumes", ())} | claims
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
            assert mounted <= volumes, name


def test_what_is_ended_when_it_hangs_has_time_to_start() -> None:
    """Every container with a liveness probe has at least two minutes to start."""
    found = documents(rendered("--set", "extender.enabled=true"))
    seconds = {}
    for (_, name), each in found.items():
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            if "livenessProbe" in container:
                probe = container["startupProbe"]
                assert probe["httpGet"] == container["livenessProbe"]["httpGet"]
                seconds[name] = probe["periodSeconds"] * probe["failureThreshold"]
    services = {"agent", "binder", "gateway", "intake", "scheduler", "watcher", "extender"}
    assert services <= seconds.keys()
    assert min(seconds.values()) >= 120


def test_the_agent_is_told_which_xids_count() -> None:
    """The chart passes each configured XID (an NVIDIA error code) to the agent as a separate
    option."""
    words = ("--set", "agent.ignoreXids={48,9999}", "--set", "agent.criticalXids={63}")
    said = helm("template", "apportion", str(CHART), *words)
    found = [line.strip() for line in said.splitlines() if "-xid=" in line]
    assert found == ["- --ignore-xid=48", "- --ignore-xid=9999", "- --critical-xid=63"]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("nats.replicas=2", "nats/replicas"),
        ("nats.enabled=false", "nats/url"),
        ("nats.url=nats://me:secret@there:4222", "nats/url"),
        ("agent.metricsAs={dcgm}", "agent/metricsAs"),
        ("agent.ignoreXids={0}", "agent/ignoreXids"),
        ("agent.criticalXids={ecc}", "agent/criticalXids"),
        ("schedular.replicas=2", "schedular"),
        ("watcher.health=0", "watcher/health"),
        ("agent.simulate=many", "agent/simulate"),
        ("agent.noCdi=true,dra.enabled=true", "agent.noCdi and dra.enabled"),
        ("monitoring.rule.enabled=true", "monitoring"),
        ("receipts.schedule=hourly", "receipts/schedule"),
        ("receipts.keySecret=", "receipts/keySecret"),
        ("defrag.schedule=nightly", "defrag/schedule"),
        ("defrag.schedule=@nightly", "defrag/schedule"),
        ("defrag.schedule=0 3 * * {}", "defrag/schedule"),
        ("defrag.budget=0", "defrag/budget"),
        ("defrag.maxLost=-1", "defrag/maxLost"),
        ("defrag.enabled=true,shadow=true", "defrag.enabled"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, named: str) -> None:
    """The chart refuses an invalid setting and names it, before anything is sent to a cluster."""
    words = ("template", "apportion", str(CHART), "--set", setting)
    assert named in helm(*words, ok=False)


@pytest.mark.parametrize(
    "setting", ["callout.enabled=false", "nats.enabled=false,nats.url=nats://x"]
)
def test_without_a_callout_all_have_passwords(setting: str) -> None:
    """Services get passwords if the authentication callout is disabled or the NATS server is
    external."""
    found = documents(rendered("--set", setting))
    assert not {("Deployment", "callout"), ("ClusterRole", "apportion-callout")} & found.keys()
    env = found["Deployment", "scheduler"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert "PASSWORD" in {each["name"] for each in env}


def test_by_tokens_nobody_has_a_password_but_who_stays_outside() -> None:
    """With the authentication callout, services log in to NATS with a ServiceAccount token.

    Only the callout itself has a password."""
    found = documents(rendered())
    for (kind, name), each in found.items():
        if kind not in {"Deployment", "DaemonSet"}:
            continue
        pod = each["spec"]["template"]["spec"]
        names = {variable["name"] for variable in pod["containers"][0]["env"]}
        tokens = [volume["projected"] for volume in pod["volumes"] if "projected" in volume]
        if name == "callout":
            assert "PASSWORD" in names
            assert not tokens
            continue
        assert not any("PASSWORD" in variable for variable in names), name
        ((source,),) = (token["sources"] for token in tokens)
        assert source["serviceAccountToken"]["audience"] == "apportion-nats"
    role = found["ClusterRole", "apportion-callout"]
    assert role["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    ]
    asked = {
        name
        for (kind, name), each in found.items()
        if kind in {"Role", "ClusterRole"} and "tokenreviews" in str(each["rules"])
    }
    assert asked == {"apportion-callout", "apportion-gateway"}  # the callers of TokenReview


@pytest.mark.parametrize("settings", ["callout.enabled=true", "callout.enabled=false"])
def test_who_appends_has_the_ledgers_key_and_nobody_else(settings: str) -> None:
    """Exactly the services that append events mount the ledger's key.

    An environment variable names the key's file."""
    appending = {role.name for role in identities.ROLES if role.appends}
    having = set()
    settings += ",extender.enabled=true,defrag.enabled=true,receipts.enabled=true"
    found = documents(rendered("--set", settings))
    for (kind, name), each in found.items():
        if kind not in {"Deployment", "DaemonSet", "Job", "CronJob"}:
            continue
        spec = each["spec"]
        pod = spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"]
        [container] = pod["containers"]
        named = [e["value"] for e in container["env"] if e["name"] == "APPORTION_LEDGER_KEY"]
        mounted = {each["name"]: each["mountPath"] for each in container.get("volumeMounts", ())}
        for volume in pod.get("volumes", ()):
            items = volume.get("secret", {}).get("items", ())
            for item in (item for item in items if item["key"] == "APPORTION_LEDGER_KEY"):
                assert volume["secret"]["secretName"] == "nats-passwords", name
                assert named == [f"{mounted[volume['name']]}/{item['path']}"], name
                having.add(name)
        assert bool(named) == (name in having), name
    assert having == appending - {"operator"}  # the operator is outside the cluster
    key = base64.b64decode(found["Secret", "nats-passwords"]["data"]["APPORTION_LEDGER_KEY"])
    assert len(key) >= LEDGER_KEY_BYTES_MIN


@pytest.mark.parametrize("callout", ["true", "false"])
@pytest.mark.parametrize("replicas", ["1", "3"])
def test_the_ledgers_server_has_the_passwords_of_its_configuration(
    callout: str, replicas: str
) -> None:
    """The NATS server's container gets every password that its configuration uses, and no
    others."""
    options = ("--set", f"callout.enabled={callout},nats.replicas={replicas}")
    found = documents(rendered(*options))
    said = found["ConfigMap", "nats-configuration"]["data"]["apportion.conf"]
    [container] = found["StatefulSet", "nats"]["spec"]["template"]["spec"]["containers"]
    assert "envFrom" not in container
    named = set(re.findall(r"\$(APPORTION_\w+)", said))
    given = {each["name"]: each.get("valueFrom", {}) for each in container["env"]}
    kept = {
        name: source["secretKeyRef"] for name, source in given.items() if "secretKeyRef" in source
    }
    assert kept == {name: {"name": "nats-passwords", "key": name} for name in named}
    assert "APPORTION_BOOTSTRAP_PASSWORD" in kept


def test_the_gateway_is_over_https_where_it_has_a_certificate() -> None:
    """If `gateway.certificates` names a Secret in cert-manager's format, the gateway serves
    HTTPS."""
    pod = documents(rendered("--set", "gateway.certificates=mine"))["Deployment", "gateway"]
    template = pod["spec"]["template"]["spec"]
    assert "--tls-cert=/etc/apportion/tls/tls.crt" in template["containers"][0]["args"]
    assert {"name": "tls", "secret": {"secretName": "mine"}} in template["volumes"]
    plain = documents(rendered())["Deployment", "gateway"]["spec"]["template"]["spec"]
    assert not any("tls" in each for each in plain["containers"][0]["args"])


def test_the_gateway_is_told_where_browsers_reach_it() -> None:
    """The chart passes `gateway.publicUrl` to the gateway.

    It refuses an invalid URL, and any URL if `gateway.login` is `open`."""
    named = "gateway.publicUrl=https://apportion.example.com"
    pod = documents(rendered("--set", named))["Deployment", "gateway"]["spec"]["template"]["spec"]
    assert "--public-url=https://apportion.example.com" in pod["containers"][0]["args"]
    plain = documents(rendered())["Deployment", "gateway"]["spec"]["template"]["spec"]
    assert not any("public" in each for each in plain["containers"][0]["args"])
    chart = ("template", "apportion", str(CHART), "--namespace", "apportion")
    assert "publicUrl" in helm(*chart, "--set", "gateway.publicUrl=apportion", ok=False)
    said = helm(*chart, "--set", named, "--set", "gateway.login=open", ok=False)
    assert "gateway.publicUrl" in said


def test_the_ledger_is_encrypted_unless_it_is_said() -> None:
    """By default, the chart encrypts client connections and the routes between NATS servers.

    The certificate comes from the chart, from cert-manager, or from an existing Secret."""
    found = documents(rendered())
    said = found["ConfigMap", "nats-configuration"]["data"]["apportion.conf"]
    assert said.count("tls {") == 2
    assert set(found["Secret", "nats-tls"]["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    env = found["Deployment", "scheduler"]["spec"]["template"]["spec"]["containers"][0]["env"]
    told = {each["name"]: each.get("value", "") for each in env}
    assert told["APPORTION_NATS_URL"].startswith("tls://")
    assert told["APPORTION_NATS_CA"] == "/etc/apportion/nats/ca.crt"
    found = documents(rendered("--set", "nats.tls.issuer.name=internal"))
    assert found["Certificate", "nats-tls"]["spec"]["issuerRef"] == {"name": "internal"}
    assert ("Secret", "nats-tls") not in found
    assert (
        not {("Secret", "nats-tls"), ("Secret", "mine")}
        & documents(rendered("--set", "nats.tls.secret=mine")).keys()
    )
    plain = documents(rendered("--set", "nats.tls.enabled=false"))
    assert "tls {" not in plain["ConfigMap", "nats-configuration"]["data"]["apportion.conf"]
    assert "tls://" not in str(plain["Deployment", "scheduler"])


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ("nats.replicas=3", "3200000000"),
        ("nats.maxStore=100GB", "40000000000"),
        ("nats.maxBytes=5000000000", "5000000000"),
        ("nats.maxBytes=-1", "-1"),
        ("nats.enabled=false,callout.enabled=false,nats.url=tls://ledger:4222", ""),
    ],
)
def test_a_new_ledger_has_a_limit(options: str, most: str) -> None:
    """The chart limits the size of a new ledger, so that agents cannot fill the disk.

    It sets no limit on an external NATS server."""
    found = documents(rendered("--set", options))
    job = next(each for (kind, name), each in found.items() if name.startswith("ledger-"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    limits = [each for each in container["args"] if each.startswith("--max-bytes")]
    assert limits == ([f"--max-bytes={most}"] if most else [])


@pytest.mark.parametrize(
    ("options", "soft"),
    [
        ("nats.replicas=3", [round(0.85 * (4 << 30))]),
        ("nats.resources.limits.memory=1500M", [1_275_000_000]),
        ("nats.resources.limits=null", []),
    ],
)
def test_the_ledgers_server_frees_memory_below_its_limit(options: str, soft: list[int]) -> None:
    """The NATS server collects garbage before it reaches its memory limit, so it is not
    OOM-killed."""
    pod = documents(rendered("--set", options))["StatefulSet", "nats"]["spec"]["template"]["spec"]
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert [int(variables[name]) for name in ("GOMEMLIMIT",) if name in variables] == soft


def test_the_extender_is_one_setting() -> None:
    """`extender.enabled` adds the extender as a separate Deployment, with or without certificates.

    Because the extender is separate, a flood of requests to it stops no other service."""
    assert ("Deployment", "extender") not in documents(rendered())
    found = documents(rendered("--set", "extender.enabled=true"))
    selector = found["Service", "extender"]["spec"]["selector"]
    assert selector == {"app": "extender", "app.kubernetes.io/instance": SPACE}
    (container,) = found["Deployment", "extender"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["extender", "--listen", "0.0.0.0:3456"]
    words = "extender.enabled=true,extender.certificates=extender-tls"
    pod = documents(rendered("--set", words))["Deployment", "extender"]["spec"]["template"]["spec"]
    assert "--tls-client-ca=/etc/apportion/tls/ca.crt" in pod["containers"][0]["args"]
    assert {"name": "tls", "secret": {"secretName": "extender-tls"}} in pod["volumes"]


def test_the_webhook_is_trusted_by_a_certificate_that_no_service_may_change(tmp_path: Path) -> None:
    """The chart creates the webhook's certificate and CA bundle.

    The admission service itself has no right to change them."""
    found = documents(rendered())
    data = found["Secret", "admission-tls"]["data"]
    webhooks = found["MutatingWebhookConfiguration", "apportion"]["webhooks"]
    (bundle,) = {each["clientConfig"]["caBundle"] for each in webhooks}
    assert bundle == data["ca.crt"]
    for name in ("ca.crt", "tls.crt"):
        (tmp_path / name).write_bytes(base64.b64decode(data[name]))
    host = ("-verify_hostname", "admission.apportion.svc")
    checked = ("openssl", "verify", *host, "-CAfile", "ca.crt", "tls.crt")
    subprocess.run(checked, cwd=tmp_path, check=True, capture_output=True)
    assert ("ClusterRole", "apportion-admission") not in found
    assert ("Role", "admission") not in found
    pod = found["Deployment", "admission"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--tls-key=/etc/apportion/tls/tls.key" in container["args"]
    assert "APPORTION_KUBERNETES" not in {each["name"] for each in container["env"]}


def test_cert_manager_may_make_the_webhooks_certificate() -> None:
    """cert-manager can issue the webhook's certificate and inject the CA bundle.

    The issuer is one that the settings name, or one that the chart creates."""
    words = "admission.certificates.from=cert-manager"
    own = documents(rendered("--set", words))
    assert own["Issuer", "admission"]["spec"] == {"selfSigned": {}}
    issuer = {"kind": "Issuer", "name": "admission"}
    assert own["Certificate", "admission"]["spec"]["issuerRef"] == issuer
    issued = f"{words},admission.certificates.issuer.name=internal"
    found = documents(rendered("--set", issued))
    assert found["Certificate", "admission"]["spec"]["secretName"] == "admission-tls"
    configuration = found["MutatingWebhookConfiguration", "apportion"]
    notes = configuration["metadata"]["annotations"]
    assert notes == {"cert-manager.io/inject-ca-from": "apportion/admission"}
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]
    assert ("Issuer", "admission") not in found


def test_the_network_is_one_setting() -> None:
    """`network.policies=false` removes all network policies.

    `network.controlPlane` sets the control plane's addresses in them."""
    assert ("NetworkPolicy", "default-deny") in documents(rendered())
    assert ("NetworkPolicy", "default-deny") not in documents(
        rendered("--set", "network.policies=false")
    )
    found = documents(rendered("--set", "network.controlPlane={192.0.2.0/28}"))
    first, *_ = found["NetworkPolicy", "admission"]["spec"]["ingress"]
    assert first["from"] == [{"ipBlock": {"cidr": "192.0.2.0/28"}}]


def test_the_agent_may_what_it_needs_and_no_more() -> None:
    """By default the agent has only one capability, SYS_PTRACE.

    The settings for MIG, MPS and driver limits add SYS_ADMIN."""

    def container(*words: str) -> Any:
        pod = documents(rendered(*words))["DaemonSet", "agent"]["spec"]["template"]["spec"]
        (only,) = pod["containers"]
        return only

    def rights(*words: str) -> Any:
        return container(*words)["securityContext"]

    assert rights()["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    for setting in ("mig", "mps", "driverLimits"):
        words = ("--set", f"agent.{setting}=true")
        assert rights(*words)["capabilities"]["add"] == ["SYS_PTRACE", "SYS_ADMIN"]
        profile = {"type": "Unconfined"} if setting == "mps" else None
        assert rights(*words).get("appArmorProfile") == profile
        assert ("--mps" in container(*words)["args"]) == (setting == "mps")
    assert rights("--set", "agent.seLinuxType=spc_t")["seLinuxOptions"] == {"type": "spc_t"}


def test_an_agent_without_cdi_is_one_setting() -> None:
    """The agent uses CDI by default; `agent.noCdi` disables it."""

    def words(*settings: str) -> Any:
        pod = documents(rendered(*settings))["DaemonSet", "agent"]["spec"]["template"]["spec"]
        return pod["containers"][0]["args"]

    assert "--no-cdi" not in words()
    assert "--no-cdi" in words("--set", "agent.noCdi=true")


def test_nodes_show_memory_and_cores_unless_it_is_said() -> None:
    """By default the binder may write a node's status; with `binder.allocatable=false` it may
    not."""
    role = ("ClusterRole", "apportion-allocatable")
    assert documents(rendered())[role]["rules"][0]["resources"] == ["nodes/status"]
    found = documents(rendered("--set", "binder.allocatable=false"))
    assert role not in found
    (container,) = found["Deployment", "binder"]["spec"]["template"]["spec"]["containers"]
    assert "--no-allocatable" in container["args"]


def test_dra_is_one_setting() -> None:
    """`dra.enabled` adds the DeviceClass, rights, sockets and options for DRA.

    If DRA is not enabled, the chart renders nothing of this."""
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


def test_requests_for_nodes_are_one_setting() -> None:
    """`binder.provisioning.enabled` adds an option of the binder, and a role with few rights.

    Without it, or in shadow mode, the chart renders nothing of this."""
    role = ("ClusterRole", "apportion-provisioning")
    enabled = "binder.provisioning.enabled=true"
    for settings in ("shadow=false", f"shadow=true,{enabled}"):
        assert role not in documents(rendered("--set", settings))
    found = documents(rendered("--set", f"{enabled},binder.provisioning.class=a.example.com"))
    rules = {rule["resources"][0]: set(rule["verbs"]) for rule in found[role]["rules"]}
    assert rules == {
        "provisioningrequests": {"create", "list", "delete"},
        "podtemplates": {"create", "delete"},
    }
    (container,) = found["Deployment", "binder"]["spec"]["template"]["spec"]["containers"]
    assert "--provisioning-class=a.example.com" in container["args"]


def test_nodes_without_devices_may_pretend_to_have_some() -> None:
    """With `agent.simulate`, nodes without the GPU label run an agent with simulated devices.

    Nodes with the label still run the real agent."""
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
    """In shadow mode, the chart installs no binder, webhook, extender or device plugin.

    No service has the right to bind pods."""
    every = "shadow=true,dra.enabled=true,extender.enabled=true"
    found = documents(rendered("--set", every))
    inert = {"ServiceAccount", "NetworkPolicy"}
    names = {name for kind, name in found if kind not in inert}
    assert not names & {"binder", "admission", "extender", "apportion", "apportion-allocatable"}
    rights = [
        (resource, verb)
        for (kind, _), each in found.items()
        if kind in {"Role", "ClusterRole"}
        for rule in each["rules"]
        if rule["apiGroups"] != ["apportion.dev"]  # which only the gateway asks about
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    # `services/proxy` is for users of `kubectl apportion`: no service has that role
    creates = ("tokenreviews", "subjectaccessreviews", "services/proxy")
    reviews = {(name, "create") for name in creates}
    assert {verb for _, verb in set(rights) - reviews} == {"get", "list", "watch"}
    assert ("Deployment", "binder") not in found
    assert {("Deployment", name) for name in ("watcher", "scheduler", "gateway")} <= found.keys()
    (watching,) = found["Deployment", "watcher"]["spec"]["template"]["spec"]["containers"]
    assert watching["args"][-1] == "--scheduler-name=apportion"
    pod = found["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["agent", "--node=$(NODE_NAME)"]
    assert [each["name"] for each in container["volumeMounts"]] == [
        "nats-token",
        "nats-ca",
        "metrics-token",
    ]
    assert [each["name"] for each in pod["volumes"]] == ["nats-token", "nats-ca", "metrics-token"]


def test_monitoring_is_three_settings() -> None:
    """The settings for dashboards, alert rules and scraping each add one object.

    The object has the configured labels, by which Grafana or Prometheus selects it."""
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
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    for path in (CHART / "files" / "dashboards").iterdir():
        assert json.loads(boards["data"][path.name]) == json.loads(path.read_text())


def test_a_library_of_an_image_is_put_where_containers_find_it() -> None:
    """An init container copies HAMi-core's library from its image to a folder of the node.

    The agent mounts the library from there into containers."""
    words = ("--set", "agent.library.image=hami:1,agent.state=/srv/apportion")
    pod = documents(rendered(*words))["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (copied,) = pod["initContainers"]
    assert "/srv/apportion/libvgpu.so" in copied["command"][-1]
    assert "--library=/srv/apportion/libvgpu.so" in pod["containers"][0]["args"]


def test_what_kustomize_applies_is_rendered_from_it() -> None:
    """The manifests in deploy/kubernetes are exactly those that the chart renders."""
    generated.assert_none(kustomize.differing())


# ---------------------------------------------------------------- three servers of the ledger


class Server(NamedTuple):
    """A running NATS server of the ledger."""

    port: int
    process: asyncio.subprocess.Process

    def url(self, role: str) -> str:
        return f"tls://{role}:p{role}@127.0.0.1:{self.port}"


class Servers:
    """A cluster of three NATS servers, with the chart's configuration, certificate and
    environment."""

    def __init__(self, folder: Path, *words: str) -> None:
        found = documents(rendered(*words))
        self._folder = folder
        self._said: str = found["ConfigMap", "nats-configuration"]["data"]["apportion.conf"]
        for name, text in found.get(("Secret", "nats-tls"), {"data": {}})["data"].items():
            (folder / name).write_bytes(base64.b64decode(text))
        (folder / "issuer").mkdir()
        (folder / "issuer" / "issuer.conf").write_text(f"issuer: {issuer('x' * 40).public}\n")
        self.ca = folder / "ca.crt"
        self._routes = [free_port() for _ in range(3)]
        self.started: list[Server] = []

    async def __aenter__(self) -> Self:
        for number in range(3):
            await self.start(number)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self.started:
            if server.process.returncode is None:
                server.process.kill()
                await server.process.wait()

    @property
    def routes_tls(self) -> str:
        """Return the part of the configuration that encrypts the routes between servers."""
        cluster = self._said.index("cluster {")
        return self._said[self._said.index("tls {", cluster) : self._said.index("routes: [")]

    async def start(self, number: int, route: int = 0, change: tuple[str, str] = ("", "")) -> None:
        """Start server `number`.

        `change` is an (old, new) pair of texts to replace in the chart's configuration."""
        shared = {f"APPORTION_{role.upper()}_PASSWORD": f"p{role}" for role in ROLES}
        shared |= {"NATS_HOST": "127.0.0.1", "NATS_MAX_STORE": "1GB"}
        shared |= {
            f"APPORTION_{name}_PASSWORD": f"p{name.lower()}" for name in ("ROUTES", "CALLOUT")
        }
        for at, port in enumerate(self._routes):
            shared[f"NATS_ROUTE_{at}"] = f"nats://routes:proutes@127.0.0.1:{port}"
        listen = f"127.0.0.1:{route or self._routes[number]}"
        said = self._said.replace(*change) if change[0] else self._said
        said = said.replace("0.0.0.0:6222", listen).replace("/etc/nats-tls", str(self._folder))
        path = self._folder / f"nats-{number}.conf"
        path.write_text(said)
        port = free_port()
        own = {"NATS_NAME": f"nats-{number}", "NATS_PORT": str(port)}
        own |= {"NATS_MONITOR": f'"127.0.0.1:{free_port()}"'}
        own |= {"NATS_STORE_DIR": str(self._folder / f"data-{number}")}
        with self.log(number).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                find_binary(), "-c", path, env=os.environ | shared | own, stdout=log, stderr=log
            )
        self.started.append(Server(port, process))

    def log(self, number: int) -> Path:
        return self._folder / f"nats-{number}.log"


@pytest.fixture
async def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    """Provide three running servers. Clients of this test trust the chart's CA."""
    made = Servers(tmp_path)
    monkeypatch.setenv("APPORTION_NATS_CA", str(made.ca))
    async with made:
        yield made


async def _make_stream(server: Server) -> None:
    async def made() -> bool:
        words = ("ledger", "create", "--replicas=3", "--nats", server.url("bootstrap"))
        job = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apportion.cli.main", *words
        )
        return await job.wait() == 0

    await until(made, "the job to make the stream", interval_s=0.5)


async def test_the_ledger_outlives_one_of_three_servers(servers: Servers) -> None:
    """A ledger with three servers and the chart's configuration survives the loss of one server."""
    one, two, _ = servers.started
    await _make_stream(one)
    first = await connect(one.url("operator"), name="test")
    await first.append([draft()])
    await first.close()
    one.process.kill()
    await one.process.wait()
    second = await connect(two.url("operator"), name="test")

    async def appended() -> bool:
        try:
            await second.append([draft(key="after")])
        except DuplicateRefused:
            return True  # stored earlier, by a leader whose answer was lost
        except LedgerError:
            return False
        return True

    await until(appended, "the other two to take an event", interval_s=0.5)
    assert await second.last_revision() == 2
    await second.close()


@pytest.mark.parametrize("shows", ["nothing", "its own CA's"])
async def test_a_server_that_is_none_of_ours_joins_no_cluster(
    servers: Servers, tmp_path: Path, shows: str
) -> None:
    """A NATS server without our certificate cannot join the cluster, even with the routes'
    password."""
    ours, theirs = servers.routes_tls, ""
    if shows != "nothing":
        folder = tmp_path / "theirs"
        folder.mkdir()
        Authority(folder).issue("tls", "127.0.0.1")
        theirs = ours.replace("/etc/nats-tls", str(folder))
    await _make_stream(servers.started[0])
    await servers.start(3, free_port(), (ours, theirs))

    async def refused() -> bool:
        texts = [servers.log(number).read_text() for number in range(3)]
        return any("TLS route handshake error" in text for text in texts)

    await until(refused, "a server to refuse the route")
    there = await connect(servers.started[1].url("operator"), name="test")
    await there.append([draft()])
    await there.close()
    assert not any("Remote: nats-3" in servers.log(at).read_text() for at in range(3))


async def test_without_tls_who_knows_the_password_joins_the_cluster(tmp_path: Path) -> None:
    """Without TLS, a NATS server that knows the routes' password can join the cluster.

    With TLS, that password alone is not enough."""
    async with Servers(tmp_path, "--set", "nats.tls.enabled=false") as servers:
        await servers.start(3, free_port())

        async def takes_part() -> bool:
            return "metadata leader" in servers.log(3).read_text()  # another, or itself

        await until(takes_part, "the server to take part")
