"""Property: no event contains a pod's secrets, whatever the pod's dialect and history.

The tests put a secret into every field that the events must not copy."""

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.core.workloads.kinds.drafts import submitted
from apportion.core.workloads.reading import read_documents
from apportion.runtime.files.manifests import Document, read_manifest_files
from apportion_schemas import Event, PodPlaced, encode
from apportion_schemas.quantities import Payload
from tests.support.fleet import rack
from tests.support.kube_objects import kube_node, managed_fields
from tests.unit.watcher.kubernetes.followed_cluster import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "hunter2-in-the-clear"
PROBE = {"exec": {"command": ["sh", "-c", SECRET]}}
IN_A_CONTAINER: dict[str, Any] = {
    "env": [
        {"name": "PASSWORD", "value": SECRET},
        {"name": SECRET.upper(), "valueFrom": {"secretKeyRef": {"name": SECRET, "key": SECRET}}},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": SECRET},
    ],
    "envFrom": [{"secretRef": {"name": SECRET}}],
    "args": [f"--password={SECRET}"],
    "command": ["run", SECRET],
    "image": f"registry.example/{SECRET}:1",
    "workingDir": f"/{SECRET}",
    "livenessProbe": PROBE,
    "lifecycle": {"postStart": PROBE},
    "volumeMounts": [{"name": "v", "mountPath": f"/{SECRET}", "subPathExpr": SECRET}],
    "securityContext": {"seLinuxOptions": {"user": SECRET}},
}
IN_A_POD: dict[str, Any] = {
    "imagePullSecrets": [{"name": SECRET}],
    "serviceAccountName": SECRET,
    "hostAliases": [{"ip": "192.0.2.1", "hostnames": [SECRET]}],
    "hostname": SECRET,
    "dnsConfig": {"searches": [SECRET]},
    "volumes": [
        {"name": "v", "secret": {"secretName": SECRET}},
        {"name": "h", "hostPath": {"path": f"/{SECRET}"}},
        {"name": "n", "nfs": {"server": SECRET, "path": "/"}},
    ],
}
ON_IT = {
    "note": SECRET,
    f"example.dev/{SECRET}": "yes",
    "kubectl.kubernetes.io/last-applied": SECRET,
}
PLACES = (*IN_A_CONTAINER, *IN_A_POD, "annotations")


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every pod and pod template in a document: each object whose spec has containers."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield value
        for child in value.values():
            yield from templates(child)
    elif isinstance(value, list):
        for child in value:
            yield from templates(child)


def samples() -> list[Any]:
    """Return the documents of all samples that create pods."""
    folders = [str(EXAMPLES / "pods"), str(EXAMPLES / "vendors")]
    found = read_manifest_files(folders, io.BytesIO())
    return [
        each.content for each in found if isinstance(each, Document) if any(templates(each.content))
    ]


SAMPLES = samples()


def with_secrets(document: Any, places: set[str]) -> Any:
    """Return a copy of the document in which every pod has the test's secret in each of these
    places."""
    told = copy.deepcopy(document)
    for pod in templates(told):
        spec = pod["spec"]
        spec |= {key: value for key, value in IN_A_POD.items() if key in places}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            container |= {key: value for key, value in IN_A_CONTAINER.items() if key in places}
        if "annotations" in places:
            metadata = pod.setdefault("metadata", {})
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **ON_IT}
    return told


def written(data: Payload) -> bytes:
    """Return the event encoded as in the ledger."""
    time = "2026-01-01T00:00:00.000000Z"
    return encode(Event(id="e", source="watcher/test", time=time, data=data))


some_places = st.sets(st.sampled_from(PLACES), min_size=1) | st.just(set(PLACES))


@given(document=st.sampled_from(SAMPLES), places=some_places)
def test_no_event_of_a_manifest_has_its_secret(document: Any, places: set[str]) -> None:
    """A secret in a manifest appears in no event. If the manifest cannot be read, the error does
    not contain it."""
    for outcome in read_documents([with_secrets(document, places)]):
        assert SECRET not in str(outcome.error)
        manifest = outcome.manifest
        if manifest is not None:
            events = [submitted(draft, f"u{at}") for at, draft in enumerate(manifest.pods)]
            told = [written(data) for data in [*events, *manifest.groups]]
            assert SECRET.encode() not in b"".join(told).lower()


@pytest.mark.parametrize("broken", [False, True], ids=["good", "cannot be read"])
@given(document=st.sampled_from(SAMPLES), places=some_places)
def test_no_event_of_a_pod_has_its_secret(broken: bool, document: Any, places: set[str]) -> None:
    """No event about a pod, from its creation to its end, contains a secret of the pod.

    This holds even if the pod cannot be read."""
    for at, pod in enumerate(templates(with_secrets(document, places))):
        told = life(pod, f"p{at}", broken=broken)
        assert told
        assert SECRET.encode() not in b"".join(map(written, told)).lower()


def life(pod: dict[str, Any], uid: str, *, broken: bool) -> list[Payload]:
    """Return all events that the watcher writes about a pod, from the pod's creation to its end."""
    cluster = Cluster()
    cluster.ledger.play(rack("n1", 8))
    cluster.see("nodes", kube_node("n1"))
    cluster.write(cluster.node_facts())
    events: list[Payload] = []
    metadata = {"name": uid, "annotations": pod.get("metadata", {}).get("annotations") or {}}
    limits = {"limits": {"nvidia.com/gpu": "many"}} if broken else None
    spec = {**pod["spec"], "schedulerName": "apportion"}
    if limits:
        spec["containers"] = [{**spec["containers"][0], "resources": limits}]
    states: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"phase": "Pending"}),
        ({"labels": {"app": "web"}}, {"phase": "Pending", "message": SECRET}),
        ({}, {"phase": "Running", "conditions": [{"type": "Ready", "message": SECRET}]}),
        ({}, {"phase": "Failed", "reason": "Evicted", "message": SECRET}),
    ]
    for version, (more, status) in enumerate(states, 1):
        where = {"nodeName": "n1"} if status["phase"] == "Running" else {}
        document = {"metadata": {**metadata, **more}, "spec": {**spec, **where}, "status": status}
        document["metadata"]["managedFields"] = managed_fields(document)
        cluster.see("pods", document, version, uid)
        marked = cluster.view.take().pods
        for told in (cluster.facts.ends, cluster.facts.changes, cluster.facts.arrivals):
            found = list(told(marked))
            cluster.write(found)
            events += [each.data for each in found]
        events += [each.data for each in cluster.facts.adoptions(marked)]
    assert not any(isinstance(each, PodPlaced) for each in events)
    return events
