"""Tests of ProvisioningRequests if the API server refuses them or others write the annotations.

The conditions of pods are written after the annotations. The tests run in virtual time."""

from typing import Any

import pytest

from apportion.binder.kubernetes.provisioning import (
    AGAIN_S,
    CONSUMES,
    GANG,
    HOLD_S,
    LOOK_S,
    OURS,
    SETS_MAX,
)
from apportion.runtime.kube.client import Answer, KubeUnavailable
from apportion_schemas import RefusalCode
from tests.simulation.loop import rest
from tests.support import memory_kube_store
from tests.support.memory_kube import status_body
from tests.support.memory_kube_store import Kind
from tests.support.pods import gang
from tests.support.provisioning_world import (
    PODS,
    REQUESTS,
    Watched,
    World,
    of_others,
    refuse,
    replace_pod,
    two_gangs,
    warnings,
    with_loop,
)


def test_a_refused_successor_leaves_no_annotation() -> None:
    """If a changed gang gets no request, the previous one is deleted, and the pods name none."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        assert len(world.consumed()) == 3
        world.kube.refuses = "POST"
        world.told(gang("default/job", 2))
        await rest(3 * LOOK_S)
        assert world.names == []
        assert world.consumed() == {}

    with_loop(world, work)


def test_the_templates_are_deleted_after_their_request() -> None:
    """A request without templates fails, so a request whose deletion is refused keeps them."""
    world = World()
    world.kube.refuses, world.kube.where = "DELETE", "/provisioningrequests/"
    world.kube.status = 503

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        refuse(world, RefusalCode.QUOTA_EXCEEDED)
        await rest(3 * LOOK_S)
        assert len(world.names) == 3
        assert world.consumed() == {}

    with_loop(world, work)


def test_without_the_api_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """If the cluster does not serve ProvisioningRequests, the binder logs one warning and looks
    again later."""
    world = World()
    absent = {("autoscaling.x-k8s.io/v1", "provisioningrequests")}
    world.kube.fewer_kinds |= absent

    async def work() -> None:
        world.gang()
        await rest(3 * AGAIN_S)
        assert len(warnings(caplog)) == 1
        assert len(world.kube.log) < 10
        assert world.consumed() == {}
        world.kube.fewer_kinds -= absent
        await rest(AGAIN_S)
        assert len(world.requests) == 1

    with_loop(world, work)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_the_permission_there_is_one_warning(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the binder has no permission, it logs one warning, does not change the pods, and tries
    again later."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        assert world.consumed() == {}
        assert world.names == []
        world.kube.refuses = ""
        await rest(AGAIN_S + LOOK_S)
        assert len(world.requests) == 1
        assert len(world.consumed()) == 3

    world.kube.refuses = method
    with_loop(world, work)
    (said,) = warnings(caplog)
    assert "binder.provisioning.enabled" in said


def test_a_request_that_a_quota_refuses_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """If a quota refuses the request, the binder warns and deletes the templates."""
    world = World()
    world.kube.refuses, world.kube.message = "POST", "exceeded quota: objects"

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        assert world.names == []

    with_loop(world, work)
    (said,) = warnings(caplog)
    assert "exceeded quota" in said


@pytest.mark.parametrize(("kind", "stays"), [("podtemplates", 1), ("provisioningrequests", 3)])
def test_a_quota_refuses_what_another_binder_has_created(kind: str, stays: int) -> None:
    """A quota that is used up refuses also objects that exist. Those of another binder stay."""
    world = World()
    answered = world.kube.handle

    def handle(method: str, path: str, **given: Any) -> Answer:
        answer = answered(method, path, **given)  # the other binder creates it first
        if method == "POST" and path.endswith(f"/{kind}"):
            return Answer(403, status_body(403, "Forbidden", "exceeded quota: objects"))
        return answer

    async def work() -> None:
        world.gang()
        await rest(LOOK_S / 2)
        assert len(world.names) == stays

    world.kube.handle = handle  # type: ignore[method-assign]
    with_loop(world, work)


@pytest.mark.parametrize("where", ["/podtemplates$", "/provisioningrequests$"])
def test_only_an_object_that_exists_is_one_of_another_binder(where: str) -> None:
    """A conflict of the quota creates nothing, so the binder creates the object at its next
    attempt. Until then, no pod names the request."""
    world = World()
    world.kube.refuses, world.kube.where, world.kube.times = "POST", where, 1
    world.kube.status, world.kube.reason = 409, "Conflict"

    async def work() -> None:
        world.gang()
        await rest(1.0)
        assert world.consumed() == {}
        await rest(2 * LOOK_S)
        assert len(world.names) == 3
        assert len(world.consumed()) == 3

    with_loop(world, work)


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_a_server_that_fails_for_a_while_is_asked_again_soon(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the API server is overloaded, the binder tries again at its usual interval, without a
    warning."""
    world = World()
    world.kube.refuses, world.kube.status = method, 503

    async def work() -> None:
        world.gang()
        await rest(2 * LOOK_S)
        assert world.consumed() == {}
        world.kube.refuses = ""
        await rest(2 * LOOK_S)
        assert len(world.requests) == 1
        assert len(world.consumed()) == 3
        assert warnings(caplog) == []

    with_loop(world, work)


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize("where", ["/podtemplates$", "/provisioningrequests$"])
def test_a_refused_gang_does_not_delay_others(status: int, where: str) -> None:
    """If a webhook refuses or fails all objects of a namespace, the gangs of other namespaces get
    their requests."""
    world = World()
    world.kube.refuses, world.kube.where = "POST", f"/blocked{where}"
    world.kube.status, world.kube.message = status, "failed calling webhook"

    async def work() -> None:
        two_gangs(world)
        await rest(2 * LOOK_S)
        (request,) = world.requests
        assert request["metadata"]["namespace"] == "default"
        assert set(world.consumed()) == {"default-0", "default-1"}

    with_loop(world, work)


@pytest.mark.parametrize("status", [403, 500])
def test_a_refused_deletion_does_not_delay_others(status: int) -> None:
    """If the API server refuses to delete a request or its templates, other gangs get theirs."""
    world = World()
    world.kube.refuses, world.kube.where, world.kube.status = "DELETE", "job", status

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        world.gone(*world.ledger.state.pods)
        two_gangs(world)
        await rest(3 * LOOK_S)
        assert len(world.requests) == 3
        world.kube.refuses = ""
        await rest(2 * AGAIN_S)
        assert len(world.requests) == 2

    with_loop(world, work)


def test_a_broken_connection_leaves_no_request() -> None:
    """If the connection breaks while a request is created, those of other gangs are deleted at the
    next attempt, also if no gang needs one any more."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        answered = world.kube.handle

        def handle(method: str, path: str, **given: Any) -> Answer:
            if method == "POST" and path.endswith("/podtemplates"):
                raise KubeUnavailable("connection reset")
            return answered(method, path, **given)

        world.kube.handle = handle  # type: ignore[method-assign]
        world.gone(*world.ledger.state.pods)
        two_gangs(world)
        await rest(2.0)
        world.gone(*world.ledger.state.pods)
        await rest(3 * LOOK_S)
        assert world.names == []

    with_loop(world, work)


@pytest.mark.parametrize("status", [401, 403, 409, 422])
def test_a_refused_annotation_is_written_again(status: int) -> None:
    """If the API server refuses an annotation, the binder tries again at its next attempt."""
    world = World()
    world.kube.refuses, world.kube.where, world.kube.times = "PATCH", "/status$", 2
    world.kube.status = status

    async def work() -> None:
        world.gang()
        await rest(5 * LOOK_S)
        assert len(world.requests) == 1
        assert len(world.consumed()) == 3

    with_loop(world, work)


def test_annotations_of_users_are_kept() -> None:
    """A gang gets no request if any of the pods that it needs consumes another request. Pods beyond
    the minimum keep the request of their user when the request of the gang is deleted."""
    mine = {"annotations": {CONSUMES: "mine"}}
    needed, beyond = World(), World()

    async def none() -> None:
        needed.told(gang("default/job", 3))
        for name, notes in (("p0", {}), ("p1", {}), ("p2", mine)):
            needed.submit(name, notes=notes)
        needed.decide()
        await rest(3 * LOOK_S)
        assert needed.names == []
        assert needed.consumed() == {"p2": "mine"}

    async def kept() -> None:
        beyond.gang()
        beyond.submit("p3", notes=mine)
        beyond.submit("p4")
        beyond.decide()
        await rest(3 * LOOK_S)
        assert len(beyond.consumed()) == 4
        beyond.kube.log.clear()
        beyond.told(gang("default/job", 1))
        await rest(3 * LOOK_S)
        assert beyond.consumed() == {"p3": "mine"}
        patched = [each for each in beyond.kube.log if each.startswith("PATCH")]
        assert patched == [f"PATCH {PODS}/{name}/status" for name in ("p0", "p1", "p2")]

    with_loop(needed, none)
    with_loop(beyond, kept)


def test_pods_are_unschedulable_after_they_name_the_request() -> None:
    """Otherwise the autoscaler could add nodes for single pods in between. A new gang does not wait
    for the interval of the binder. A pod beyond the minimum needs no annotation."""
    world = Watched()

    async def work() -> None:
        await rest(LOOK_S)
        world.gang()
        beyond = world.submit("beyond")
        world.decide()
        await rest(5.0)
        assert len(world.consumed()) == 3
        for name in ("p0", "p1", "p2"):
            assert [reason for pod, reason in world.order if pod == name] == [
                "named",
                "Unschedulable",
            ]
        assert ("beyond", "Unschedulable") in world.order
        world.gone(beyond.uid)
        world.order.clear()
        replace_pod(world)
        await rest(5.0)
        said = [each for each in world.order if each[0] == "p3"]
        assert said[0] == ("p3", "named")

    world.with_events(work)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refused_requests_hold_no_condition(method: str) -> None:
    """Without the permission for requests, the pods are `Unschedulable` at once. The pods of gangs
    that come later do not wait for an answer."""
    world = Watched()
    world.kube.refuses = method

    async def work() -> None:
        world.gang()
        await rest(5.0)
        names = ("p0", "p1", "p2")
        assert sorted(world.order) == [(name, "Unschedulable") for name in names]

    world.with_events(work)


def test_a_server_without_an_answer_holds_conditions_for_a_limited_time() -> None:
    """If the API server fails, the pods are `Unschedulable` after a while without annotation."""
    world = Watched()
    world.kube.refuses, world.kube.status = "POST", 503
    world.kube.where = "/provisioningrequests$"

    async def work() -> None:
        world.gang()
        await rest(HOLD_S - 5.0)
        assert world.order == []
        await rest(10.0)
        assert len(world.order) == 3

    world.with_events(work)


def test_a_gang_holds_its_conditions_until_all_its_pods_are_annotated() -> None:
    """The annotations of a large gang can take longer than the wait for an answer."""
    world = Watched()
    slow = world.binder._notes._write

    async def write(*given: Any) -> None:
        await rest(HOLD_S)
        await slow(*given)

    world.binder._notes._write = write  # type: ignore[method-assign, assignment]

    async def work() -> None:
        world.gang()
        await rest(4 * HOLD_S)
        assert [reason for _, reason in world.order] == ["named"] * 3 + ["Unschedulable"] * 3

    world.with_events(work)


def test_a_binder_that_starts_holds_the_conditions_of_refused_pods() -> None:
    """Pods that were refused while no binder ran name the request before they are
    `Unschedulable`."""
    world = Watched()

    async def work() -> None:
        await rest(5.0)
        assert [reason for _, reason in world.order] == ["named"] * 3 + ["Unschedulable"] * 3

    world.gang()  # neither loop observes this
    world.with_events(work)


def test_a_gang_of_too_many_shapes_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A request can list a limited number of shapes. A gang with more gets a warning."""
    world = World()

    async def work() -> None:
        world.told(gang("default/job", SETS_MAX + 1))
        for number in range(SETS_MAX + 1):
            world.submit(f"p{number}", 90_000 + number)
        world.decide()
        await rest(3 * LOOK_S)
        assert len(warnings(caplog)) == 1
        assert world.names == []

    with_loop(world, work)


def test_the_version_of_the_api_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The binder uses v1beta1 if the server does not serve v1, and v1 if that replaces it."""
    older = Kind("autoscaling.x-k8s.io/v1beta1", "ProvisioningRequest")
    monkeypatch.setitem(memory_kube_store.KINDS, "provisioningrequests", older)
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        assert len(world.requests) == 1
        newer = Kind("autoscaling.x-k8s.io/v1", "ProvisioningRequest")
        monkeypatch.setitem(memory_kube_store.KINDS, "provisioningrequests", newer)
        await rest(2 * LOOK_S)
        world.gone(*world.ledger.state.pods)
        await rest(AGAIN_S)
        assert world.requests == []

    with_loop(world, work)


def test_a_tenant_cannot_use_the_name_of_another_namespace() -> None:
    """A request in another namespace, with the name and the annotation of ours, does not replace
    ours, and its deletion changes no pods of our namespace."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        (ours,) = world.requests
        name = ours["metadata"]["name"].removesuffix("-1")
        forged = {key: ours["metadata"][key] for key in ("labels", "annotations")}
        path = REQUESTS.replace("default", "tenant")
        world.ask("POST", path, {"metadata": {**forged, "name": f"{name}-99"}, "spec": {}})
        await rest(2 * LOOK_S)
        assert world.requests == [ours]
        assert set(world.consumed().values()) == {f"{name}-1"}

    with_loop(world, work)


def test_a_tenant_cannot_change_the_pods_of_another_namespace() -> None:
    """The deletion of a forged request changes no annotation in the namespace that it names."""
    world = World()

    async def work() -> None:
        of_others(world)
        world.told(gang("default/job", 1))
        before = world.consumed()
        meta = {"name": f"{OURS}x-1", "labels": {GANG: ""}, "annotations": {GANG: "default/job"}}
        path = REQUESTS.replace("default", "tenant")
        world.ask("POST", path, {"metadata": meta, "spec": {}})
        world.begin()
        await world.binder.look()
        assert world.requests == []
        assert world.consumed() == before

    with_loop(world, work)
