"""Tests of how Kubernetes objects are converted to what the ledger stores."""

import json
from typing import Any

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.watcher.kubernetes.objects import ObjectReader, PodView
from apportion_schemas import Configuration, QueueObserved
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.pods import ask


def pod_of(reader: ObjectReader, document: dict[str, Any]) -> PodView | None:
    """Convert a Kubernetes pod that the watcher has not seen before."""
    return reader.pod(json.dumps(document).encode(), {})[1]


def test_unhealthy_devices_are_read_from_the_annotation() -> None:
    """The watcher reads a node's unhealthy devices from the annotation that Volcano's device plugin
    writes."""
    document = kube_node("n1")
    document["metadata"]["annotations"] = {"volcano.sh/gpu-unhealthy-ids": "1,3"}
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    assert reader.node(json.dumps(document).encode()).unhealthy_indexes == (1, 3)


def test_the_devices_that_hamis_plugin_registered() -> None:
    """The watcher reads the devices that HAMi's device plugin registered on a node, while the
    kubelet reports that the plugin runs."""
    document = kube_node("n1")
    entry = '[{"id":"GPU-0","count":10,"devmem":15360,"devcore":100,"type":"NVIDIA-Tesla T4",'
    entry += '"health":true}]'
    document["metadata"]["annotations"] = {"hami.io/node-nvidia-register": entry}
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    stopped = reader.registered(json.dumps(document).encode())
    assert (stopped.plugin, stopped.devices) == ("hami", ())
    document["status"]["allocatable"]["nvidia.com/gpu"] = "10"
    (found,) = reader.registered(json.dumps(document).encode()).devices
    assert (found.id, found.model, found.memory_mib) == ("GPU-0", "Tesla T4", 15360)


def test_G5_cards_that_hami_cordons_on_the_node_stay_on_offer() -> None:
    """HAMi can cordon devices by an annotation on the node. The watcher ignores that annotation."""
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    plain, cordoned = kube_node("n1"), kube_node("n1")
    cordoned["metadata"]["annotations"] = {"hami.io/device-cordon": "GPU-0"}
    found = [reader.node(json.dumps(each).encode()) for each in (cordoned, plain)]
    assert found[0] == found[1]


def test_G6_resources_of_registered_devices_that_are_not_supported_are_not_offered() -> None:
    """The watcher leaves out resources of devices that HAMi's plugin registers by a name that is
    not supported, because the plugin would fail each pod without HAMi's annotations."""
    names = ("huawei.com/Ascend910B", "huawei.com/Ascend910B-memory", "huawei.com/Ascend910")
    document = kube_node("n1", allocatable=dict.fromkeys(names, "8"))
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    assert set(reader.node(json.dumps(document).encode()).extended) == set(names)
    register = {"hami.io/node-register-Ascend910B": '[{"id":"a"}]'}
    document["metadata"]["annotations"] = register
    assert set(reader.node(json.dumps(document).encode()).extended) == {"huawei.com/Ascend910"}


def test_E8_the_configuration_of_the_ledger_names_resources_and_schedulers() -> None:
    """Resource names, defaults and scheduler names come from the ledger's configuration. If the
    ledger has no configuration, they come from the watcher's options."""
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    raw = json.dumps(kube_pod("p", {"a.b/gpu": "1"}, schedulerName="theirs")).encode()
    assert reader.pod(raw, {})[1] is None
    nvidia = NvidiaConfiguration(resource_count_name="a.b/gpu", default_memory=5000)
    reader.configure(Configuration(nvidia=nvidia, scheduler_names=("theirs",)))
    _, read, _ = reader.pod(raw, {})
    assert read is not None
    assert read.draft is not None
    assert read.draft.shape.asks == (ask(5000),)
    reader.configure(Configuration())
    assert reader.pod(raw, {})[1] is None


def test_a_pod_of_an_extended_scheduler_is_read_for_its_devices() -> None:
    """If a pod's scheduler uses our extender, the watcher reads only the pod's devices, not its
    volumes. It ignores such a pod if the pod requests no devices."""
    names = Configuration(extended_scheduler_names=("default-scheduler",))
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    reader.configure(names)
    claim = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
    pod = kube_pod("p", {"nvidia.com/gpumem": "5000"}, schedulerName="default-scheduler", **claim)
    read = pod_of(reader, pod)
    assert read is not None
    assert read.draft is not None
    assert (read.draft.chooser, read.draft.shape.asks) == ("default-scheduler", (ask(5000),))
    assert pod_of(reader, kube_pod("p", {"cpu": "1"}, schedulerName="default-scheduler")) is None
    ours = pod_of(reader, kube_pod("p", {"cpu": "1"}))
    assert ours is not None
    assert ours.draft is not None
    assert ours.draft.chooser == ""


def test_pods_of_one_template_are_read_once_and_keep_their_names() -> None:
    """The watcher parses the specs of pods from the same template only once. Each pod keeps its own
    name."""
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    drafts = []
    for name, token in (("a", "x1x2x"), ("b", "y9y9y")):
        document = kube_pod(name, share(), volumes=[{"name": f"kube-api-access-{token}"}])
        _, read, _ = reader.pod(json.dumps(document).encode(), {})
        assert read is not None
        assert read.draft is not None
        drafts.append(read.draft)
    assert [draft.name for draft in drafts] == ["a", "b"]
    assert drafts[0].shape is drafts[1].shape


@pytest.mark.parametrize(
    "other",
    [
        {"annotations": {"nvidia.com/use-gputype": "T4"}},
        {"labels": {"app": "b"}},
        {"nodeSelector": {"zone": "b"}},
        {"namespace": "b"},
    ],
)
def test_what_differs_in_a_template_is_read(other: dict[str, Any]) -> None:
    """Several pods share one parsed spec only if all fields that the watcher uses are equal."""
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    drafts = []
    for fields in ({}, other):
        namespace = dict(fields).pop("namespace", "default")
        document = kube_pod("p", share(), **{k: v for k, v in fields.items() if k != "namespace"})
        document["metadata"]["namespace"] = namespace
        _, read, _ = reader.pod(json.dumps(document).encode(), {})
        assert read is not None
        drafts.append(read.draft)
    assert drafts[0] != drafts[1]


def kube_queue(*, quota: str = "", **spec: Any) -> bytes:
    notes = {"volcano.sh/card.quota": quota} if quota else {}
    metadata = {"name": "ml", "annotations": notes, "resourceVersion": "7"}
    return json.dumps({"metadata": metadata, "spec": spec, "status": {"state": "Open"}}).encode()


def test_E6_the_card_quota_of_a_queue_is_read_from_its_annotation() -> None:
    """The watcher reads a queue's device quota from the queue's annotation. It converts CPU and
    memory to our units."""
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    capability = {"cpu": "1500m", "memory": "2Gi", "volcano.sh/vgpu-number": "8"}
    quota = '{"NVIDIA-A100": 8, "NVIDIA-H200/mig-1g.18gb-mixed": "2"}'
    assert reader.queue(kube_queue(quota=quota, weight=3, capability=capability)) == QueueObserved(
        queue="ml",
        weight=3,
        capability={"cpu": 1500, "memory": 2048, "volcano.sh/vgpu-number": 8},
        cards={"NVIDIA-A100": 8, "NVIDIA-H200/mig-1g.18gb-mixed": 2},
    )
    assert reader.queue(kube_queue()) == QueueObserved(queue="ml")


@pytest.mark.parametrize(
    ("quota", "says"),
    [
        ("8", "is not a JSON object"),
        ('{"A100": ', "is not a JSON object"),
        ('{"A100": 1.5}', "is a fraction"),
        ('{"A100": "many"}', "is not a quantity"),
        ('{"": 1}', "a model name that is empty or too long"),
    ],
)
def test_a_card_quota_that_cannot_be_read_is_said_aloud(quota: str, says: str) -> None:
    """If a queue's device quota is unreadable, the error names the annotation."""
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    with pytest.raises(ManifestError, match=says) as caught:
        reader.queue(kube_queue(quota=quota))
    assert "volcano.sh/card.quota" in caught.value.field


def running(spec: dict[str, Any], status: dict[str, Any]) -> PodView:
    """Convert a running pod of another scheduler as the watcher does."""
    document = kube_pod("p", {}, schedulerName="default-scheduler")
    document["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    document["spec"] |= {"nodeName": "n1"} | spec
    document["status"] = {"phase": "Running"} | status
    view = pod_of(ObjectReader(frozenset({"apportion"}), ManifestConfig()), document)
    assert view is not None
    return view


def sized(cpu: str, memory: str = "1Gi", **more: Any) -> dict[str, Any]:
    """Return container `c` of a pod's spec with these resource requests."""
    requests = {"cpu": cpu, "memory": memory}
    return {
        "name": "c",
        "image": "i",
        "resources": {"requests": requests, "limits": requests},
    } | more


def given(cpu: str, allocated: str, name: str = "c") -> dict[str, Any]:
    """Return the status that the kubelet reports for a container."""
    return {
        "name": name,
        "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}},
        "allocatedResources": {"cpu": allocated, "memory": "1Gi"},
    }


INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = INFEASIBLE | {"reason": "Deferred"}


@pytest.mark.parametrize(
    ("wanted", "status", "counts"),
    [
        ("1", [], 1000),
        ("1", [given("4", "1")], 4000),  # smaller, not in effect yet
        ("1", [given("3500m", "4")], 4000),
        ("1", [given("1", "1")], 1000),  # done
        ("4", [given("1", "1")], 4000),  # larger, deferred
        ("1", [{"name": "c"}, given("9", "9", "another")], 1000),
    ],
)
def test_a_resize_counts_until_the_kubelet_has_done_it(
    wanted: str, status: list[dict[str, Any]], counts: int
) -> None:
    """During a resize, the watcher counts the larger amount of the pod's spec and status, as
    kube-scheduler does."""
    statuses = {"containerStatuses": status, "conditions": [DEFERRED]}
    assert running({"containers": [sized(wanted)]}, statuses).amounts.cpu_milli == counts


def test_a_resize_that_is_infeasible_does_not_count() -> None:
    """If the kubelet reports a resize as infeasible, the watcher counts the amounts in the pod's
    status, not those in its spec."""
    statuses = {"containerStatuses": [given("1", "1")], "conditions": [INFEASIBLE]}
    view = running({"containers": [sized("64")]}, statuses)
    assert (view.amounts.cpu_milli, view.amounts.memory_mib) == (1000, 1024)


def test_sidecars_and_whole_pods_are_resized_as_well() -> None:
    """While a sidecar or a whole pod is resized, the watcher counts the amounts in the pod's
    status. It adds the pod's overhead."""
    sidecar = sized("1", restartPolicy="Always") | {"name": "s"}
    spec: dict[str, Any] = {"containers": [sized("1")], "initContainers": [sidecar]}
    status: dict[str, Any] = {"initContainerStatuses": [given("3", "3", "s")]}
    assert running(spec, status).amounts.cpu_milli == 4000
    spec = spec | {"overhead": {"cpu": "250m"}, "resources": {"requests": {"cpu": "2"}}}
    status = {"resources": {"requests": {"cpu": "6250m"}}, "allocatedResources": {"cpu": "2250m"}}
    assert running(spec, status).amounts.cpu_milli == 6250


def test_host_ports_of_a_sidecar_of_another_schedulers_pod_are_taken() -> None:
    """The watcher counts the host ports of a sidecar as used, but not those of other init
    containers."""
    ports = [{"containerPort": 80, "hostPort": 8080}]
    ends = sized("1") | {"name": "i", "ports": [{"containerPort": 81, "hostPort": 8081}]}
    sidecar = sized("1", restartPolicy="Always", ports=ports) | {"name": "s"}
    view = running({"containers": [sized("1")], "initContainers": [ends, sidecar]}, {})
    assert [port.port for port in view.ports] == [8080]
