"""Contract tests of bindings, deletions and patches: what each changes on an API server, and when
the server refuses it."""

from typing import Any

import msgspec
import pytest

from apportion.runtime.kube.client import MERGE_PATCH
from tests.contracts.kube.places import PODS, Place, ask, bind, get, make, status_of, told
from tests.support.kube_objects import kube_node, kube_pod, share

NOTES = {"example.com/a": "1"}
CONFLICT = (409, "Conflict")
JSON_MERGE_PATCH = "application/merge-patch+json"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"


async def _pod(place: Place, name: str = "p") -> Any:
    return await get(place.api, f"{PODS}/{name}")


async def test_a_pod_is_bound_once_with_its_annotations(place: Place) -> None:
    """A binding sets a pod's node and annotations. A second binding is refused, even to the same
    node."""
    made = await make(place.api, PODS, kube_pod("p", share(), annotations={"own": "x"}))
    meta = made["metadata"]
    assert (await bind(place.api, "p", "n1", meta["uid"], NOTES)).status == 201
    pod = await _pod(place)
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["annotations"] == {"own": "x", **NOTES}
    conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"
    assert int(pod["metadata"]["resourceVersion"]) > int(meta["resourceVersion"])
    for node in ("n1", "n2"):
        answer = await bind(place.api, "p", node, meta["uid"], {"example.com/a": "2"})
        assert status_of(answer) == CONFLICT
        assert '"n1"' in answer.refusal().message
    assert await _pod(place) == pod


async def test_a_deleted_pod_is_not_bound(place: Place) -> None:
    """The server answers 404 to a binding of a deleted pod."""
    assert status_of(await bind(place.api, "p", "n1")) == (404, "NotFound")


async def test_a_binding_with_another_uid_is_refused(place: Place) -> None:
    """The server refuses a binding whose uid is not the pod's. Kubernetes before 1.21 accepts such
    a binding."""
    first = await make(place.api, PODS, kube_pod("p"))
    await ask(place.api, "DELETE", f"{PODS}/p")
    second = await make(place.api, PODS, kube_pod("p"))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    answer = await bind(place.api, "p", "n1", first["metadata"]["uid"], NOTES)
    if place.checks_uid:
        assert status_of(answer) == CONFLICT
        assert not (await _pod(place))["spec"].get("nodeName")
    else:
        assert answer.status == 201


async def test_a_pod_without_a_kubelet_is_deleted_at_once(place: Place) -> None:
    """The server removes an unbound or ended pod as soon as it is deleted.

    A bound pod remains until the kubelet has stopped it."""
    for name in ("pending", "ended", "bound"):
        await make(place.api, PODS, kube_pod(name))
    await bind(place.api, "ended", "n1")
    await bind(place.api, "bound", "n1")
    done = {"status": {"phase": "Succeeded"}}
    path = f"{PODS}/ended/status"
    assert (await ask(place.api, "PATCH", path, done, content_type=MERGE_PATCH)).ok
    for name in ("pending", "ended", "bound"):
        assert (await ask(place.api, "DELETE", f"{PODS}/{name}")).status == 200
    assert (await ask(place.api, "GET", f"{PODS}/pending")).status == 404
    assert (await ask(place.api, "GET", f"{PODS}/ended")).status == 404
    left = await _pod(place, "bound")
    assert left["metadata"]["deletionTimestamp"]
    version = left["metadata"]["resourceVersion"]
    other = {"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}}
    assert status_of(await ask(place.api, "DELETE", f"{PODS}/bound", other)) == CONFLICT
    own = {"gracePeriodSeconds": 0, "preconditions": {"uid": left["metadata"]["uid"]}}
    assert (await ask(place.api, "DELETE", f"{PODS}/bound", own)).status == 200
    (marked, gone) = await told(place.api, "/api/v1/pods", version, 2)
    assert (marked[0], gone[0]) == ("MODIFIED", "DELETED")
    assert marked[1]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert (await ask(place.api, "DELETE", f"{PODS}/bound")).status == 404


async def test_a_terminating_pod_with_a_finalizer_cannot_be_bound(place: Place) -> None:
    """A deleted pod with a finalizer stays terminating until the finalizer is removed.

    It cannot be bound during that time."""
    pod = kube_pod("p")
    pod["metadata"]["finalizers"] = ["example.com/wait"]
    await make(place.api, PODS, pod)
    assert (await ask(place.api, "DELETE", f"{PODS}/p")).status == 200
    held = await _pod(place)
    assert held["metadata"]["deletionTimestamp"]
    answer = await bind(place.api, "p", "n1", held["metadata"]["uid"])
    assert status_of(answer) == CONFLICT
    assert "being deleted" in answer.refusal().message
    patch = {"metadata": {"finalizers": None}}
    done = await ask(place.api, "PATCH", f"{PODS}/p", patch, content_type=JSON_MERGE_PATCH)
    assert done.status == 200
    assert (await ask(place.api, "GET", f"{PODS}/p")).status == 404


async def test_a_patched_condition_keeps_the_others(place: Place) -> None:
    """A strategic merge patch of one condition keeps a pod's other conditions.

    A patch with a wrong uid changes nothing. A repeated patch creates no new version."""
    uid = (await make(place.api, PODS, kube_pod("p")))["metadata"]["uid"]

    async def say(uid: str, kind: str, message: str) -> Any:
        condition = {"type": kind, "status": "False", "reason": "Test", "message": message}
        patch = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        path = f"{PODS}/p/status"
        return await ask(place.api, "PATCH", path, patch, content_type=MERGE_PATCH)

    for kind, message in (("PodScheduled", "a"), ("Other", "b"), ("PodScheduled", "c")):
        assert (await say(uid, kind, message)).status == 200
    pod = await _pod(place)
    said = {each["type"]: each["message"] for each in pod["status"]["conditions"]}
    assert said == {"PodScheduled": "c", "Other": "b"}
    assert (await say(uid, "Other", "b")).status == 200
    assert (await _pod(place))["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    other = "00000000-0000-4000-8000-999999999999"
    assert status_of(await say(other, "Other", "d")) == (422, "Invalid")
    assert await _pod(place) == pod


async def test_status_and_spec_change_separately(place: Place) -> None:
    """A write to the status subresource changes only the status. A write to the object keeps the
    status."""
    made = await make(place.api, PODS, kube_pod("p"))
    wanted = made | {"status": {"phase": "Running"}}
    wanted["metadata"] = made["metadata"] | {"annotations": {"a": "b"}}
    assert (await ask(place.api, "PUT", f"{PODS}/p", wanted)).status == 200
    pod = await _pod(place)
    assert (pod["status"]["phase"], pod["metadata"]["annotations"]) == ("Pending", {"a": "b"})
    assert status_of(await ask(place.api, "PUT", f"{PODS}/p/status", wanted)) == CONFLICT
    wanted["metadata"] = pod["metadata"]
    assert (await ask(place.api, "PUT", f"{PODS}/p/status", wanted)).status == 200
    assert (await _pod(place))["status"]["phase"] == "Running"


async def test_an_event_is_created_once_and_then_updated(place: Place) -> None:
    """The server refuses a second Event with the same name, and an update with an old resource
    version."""
    path = "/api/v1/namespaces/default/events"
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p", "uid": "u"}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "p.1", "namespace": "default", "annotations": {"revision": "1"}},
        "involvedObject": about,
        "type": "Normal",
        "reason": "Scheduled",
        "message": "bound",
        "source": {"component": "test"},
        "count": 1,
    }
    made = await make(place.api, path, event)
    assert status_of(await ask(place.api, "POST", path, event)) == (409, "AlreadyExists")
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "count": 2}
    named = f"{path}/p.1"
    assert (await ask(place.api, "PATCH", named, patch, content_type=MERGE_PATCH)).status == 200
    found = await get(place.api, named)
    assert (found["count"], found["reason"]) == (2, "Scheduled")
    answer = await ask(place.api, "PATCH", named, patch | {"count": 3}, content_type=MERGE_PATCH)
    assert status_of(answer) == CONFLICT
    assert (await ask(place.api, "DELETE", named)).status == 200


async def test_a_group_is_admitted_by_its_status(place: Place) -> None:
    """A merge patch of a PodGroup's phase keeps the rest of the object."""
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2},
    }
    await make(place.api, GROUPS, group)
    made = await get(place.api, f"{GROUPS}/g")
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "status": {"phase": "Inqueue"}}
    path, kind = f"{GROUPS}/g", {"content_type": JSON_MERGE_PATCH}
    assert (await ask(place.api, "PATCH", f"{path}/status", patch, **kind)).status == 404
    assert (await ask(place.api, "PATCH", path, patch, **kind)).status == 200
    found = await get(place.api, path)
    assert (found["status"]["phase"], found["spec"]["minMember"]) == ("Inqueue", 2)
    stale = await ask(place.api, "PATCH", path, patch | {"status": {"phase": "Running"}}, **kind)
    assert status_of(stale) == CONFLICT


@pytest.mark.parametrize("name", ["p", "q"])
async def test_a_name_is_unique(place: Place, name: str) -> None:
    """The server refuses a second object with the same name until the first one is deleted.

    The new object then has another uid."""
    first = await make(place.api, PODS, kube_pod(name))
    assert status_of(await ask(place.api, "POST", PODS, kube_pod(name))) == (409, "AlreadyExists")
    await ask(place.api, "DELETE", f"{PODS}/{name}")
    second = await make(place.api, PODS, kube_pod(name))
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    encoded = msgspec.json.encode(second["metadata"]["resourceVersion"])
    assert int(msgspec.json.decode(encoded)) > int(first["metadata"]["resourceVersion"])


@pytest.mark.parametrize("path", [f"{PODS}/p", "/api/v1/nodes/n1"])
async def test_a_status_request_may_change_annotations_and_labels(place: Place, path: str) -> None:
    """A patch of the subresource `status` also changes annotations and labels, but not the spec. It
    is refused if it names an older version of the object."""
    await make(place.api, PODS, kube_pod("p", annotations={"own": "x"}))
    await make(place.api, "/api/v1/nodes", kube_node("n1"))
    before = await get(place.api, path)
    meta = {"annotations": {"example.com/a": "1"}, "labels": {"zone": "a"}}
    patch = {"metadata": meta, "spec": {"nodeName": "n2", "unschedulable": True}}
    kind = JSON_MERGE_PATCH
    answer = await ask(place.api, "PATCH", f"{path}/status", patch, content_type=kind)
    assert answer.ok, answer.refusal()
    after = await get(place.api, path)
    assert after["metadata"]["annotations"]["example.com/a"] == "1"
    assert after["metadata"]["labels"]["zone"] == "a"
    assert after["spec"] == before["spec"]
    old = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]} | meta}
    again = await ask(place.api, "PATCH", f"{path}/status", old, content_type=kind)
    assert status_of(again) == CONFLICT
