"""Contract tests of an API server's paged lists and watches, and of their errors after a
compaction."""

import time

import pytest

from apportion.core.workloads.pods.gangs import VOLCANO
from apportion.runtime.kube.client import KubeRefused
from apportion.runtime.kube.watch import Discovery
from apportion.runtime.process.clock import SystemClock
from tests.contracts.kube.places import PODS, Place, ask, bind, get, make, status_of, told
from tests.support.kube_objects import kube_node, kube_pod

ALL = "/api/v1/pods"


async def test_the_server_reports_its_version(place: Place) -> None:
    """An authenticated client can read the API server's version."""
    about = await get(place.api, "/version")
    assert int(about["major"]) == 1
    assert int(about["minor"].rstrip("+")) >= 20


async def test_discovery_lists_the_kinds(place: Place) -> None:
    """Discovery lists the kinds of every API group version, including those of custom resources."""
    discovery = Discovery(place.api, SystemClock(), (VOLCANO,))
    await discovery.look()
    assert discovery.versions(VOLCANO, "podgroups") == ("v1beta1",)
    assert discovery.versions(VOLCANO, "none") == ()
    assert discovery.has(f"/apis/{VOLCANO}/v1beta1/queues")
    assert not discovery.has(f"/apis/{VOLCANO}/v9/queues")


async def test_a_list_in_pages_is_as_of_one_version(place: Place) -> None:
    """All pages of a list show the same version of the cluster.

    An object that is created between two pages appears only in a later list."""
    for name in ("a", "b", "c", "d"):
        await make(place.api, PODS, kube_pod(name))
    first = await get(place.api, ALL, limit="2")
    await ask(place.api, "DELETE", f"{PODS}/d")
    await make(place.api, PODS, kube_pod("bb"))
    second = await get(place.api, ALL, **{"limit": "2", "continue": first["metadata"]["continue"]})
    pages = [[pod["metadata"]["name"] for pod in page["items"]] for page in (first, second)]
    assert pages == [["a", "b"], ["c", "d"]]
    versions = {page["metadata"]["resourceVersion"] for page in (first, second)}
    assert len(versions) == 1
    assert not second["metadata"].get("continue")
    assert "kind" not in first["items"][0]
    fresh = await get(place.api, ALL)
    assert [pod["metadata"]["name"] for pod in fresh["items"]] == ["a", "b", "bb", "c"]
    assert int(fresh["metadata"]["resourceVersion"]) > int(*versions)


async def test_the_rest_of_an_expired_list_is_gone(place: Place) -> None:
    """After a compaction, reading the next page of an older list fails with 410 Gone.

    A server that keeps old lists in memory still returns the page."""
    for name in ("a", "b", "c"):
        await make(place.api, PODS, kube_pod(name))
    first = await get(place.api, ALL, limit="1")
    await make(place.api, PODS, kube_pod("d"))
    await place.forget()
    token = {"limit": "9", "continue": first["metadata"]["continue"]}
    if place.keeps_lists:
        rest = await get(place.api, ALL, **token)
        assert [pod["metadata"]["name"] for pod in rest["items"]] == ["b", "c"]
        return
    with pytest.raises(KubeRefused) as refused:
        await get(place.api, ALL, **token)
    assert (refused.value.status, refused.value.reason) == (410, "Expired")


async def test_a_watch_sends_every_write_since_its_version(place: Place) -> None:
    """A watch sends every write after the version at which it starts, in order.

    For a deletion it sends the object's last state."""
    await make(place.api, PODS, kube_pod("before"))
    version = (await get(place.api, ALL))["metadata"]["resourceVersion"]
    made = await make(place.api, PODS, kube_pod("p"))
    await bind(place.api, "p", "n1", notes={"a": "b"})
    await ask(place.api, "DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
    await make(place.api, PODS, kube_pod("q"))
    lines = await told(place.api, ALL, version, 5)
    assert [(what, pod["metadata"]["name"]) for what, pod in lines] == [
        ("ADDED", "p"),
        ("MODIFIED", "p"),
        ("MODIFIED", "p"),
        ("DELETED", "p"),
        ("ADDED", "q"),
    ]
    versions = [int(pod["metadata"]["resourceVersion"]) for _, pod in lines]
    assert versions == sorted(set(versions))
    assert versions[0] == int(made["metadata"]["resourceVersion"])
    assert (lines[3][1]["kind"], lines[3][1]["spec"]["nodeName"]) == ("Pod", "n1")
    again = await told(place.api, ALL, str(versions[1]), 3)
    assert [pod["metadata"]["resourceVersion"] for _, pod in again] == [
        str(version) for version in versions[2:]
    ]


async def test_a_watch_of_a_compacted_version_is_gone(place: Place) -> None:
    """A watch of Events that starts at a compacted version fails with 410 Gone.

    Events are tested because the API server has no watch cache for them."""
    events = "/api/v1/namespaces/default/events"
    version = (await get(place.api, events))["metadata"]["resourceVersion"]
    for name in ("p", "q"):
        await make(place.api, PODS, kube_pod(name))
    await place.forget()
    ((what, status),) = await told(place.api, events, version, 1)
    assert (what, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    newest = (await get(place.api, events))["metadata"]["resourceVersion"]
    assert await told(place.api, events, newest, 1, span_s=1) == []


async def test_a_watch_ends_after_its_time(place: Place) -> None:
    """A watch ends after its timeout, even while other objects still change."""
    version = (await get(place.api, ALL))["metadata"]["resourceVersion"]
    await make(place.api, "/api/v1/nodes", kube_node("n1"))
    began = time.monotonic()
    lines = await told(place.api, ALL, version, 9, span_s=2)
    assert [what for what, _ in lines if what != "BOOKMARK"] == []
    assert time.monotonic() - began > 1.5  # `told` fails if it never ends


async def test_unknown_kinds_and_objects_are_not_found(place: Place) -> None:
    """The server answers 404 for an unknown kind or object.

    For an unknown object, the answer's body is a Status object, as in Kubernetes."""
    for path in ("/apis/scheduling.volcano.sh/v1beta1/nonsense", "/apis/nobody.example/v1/things"):
        assert (await ask(place.api, "GET", path)).status == 404
        with pytest.raises(KubeRefused, match="404"):
            await told(place.api, path, "1", 1)
    assert status_of(await ask(place.api, "GET", f"{PODS}/p")) == (404, "NotFound")
