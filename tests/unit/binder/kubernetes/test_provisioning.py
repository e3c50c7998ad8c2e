"""Tests of the ProvisioningRequests that the binder creates for gangs.

The tests use an in-memory API server in virtual time."""

import asyncio
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner

from apportion.binder.kubernetes.pod_events import Telling
from apportion.binder.kubernetes.provisioning import (
    AGAIN_S,
    ATTEMPTS_MAX,
    BACK_OFF,
    CLASS,
    CONSUMES,
    GANG,
    GANGS_MAX,
    HOLD_S,
    LOOK_S,
    OURS,
    SETS_MAX,
    Provisioning,
)
from apportion.binder.kubernetes.target import Pace
from apportion.binder.main import command
from apportion.core.dra.names import container_of
from apportion.core.ledger.fold import Change
from apportion.runtime.kube.client import MERGE_PATCH, Answer
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    LabelExpression,
    PlacementVoided,
    PodChanged,
    PodConstraints,
    PodGone,
    PodGroupGone,
    PodRefused,
    PodSelector,
    PodSubmitted,
    PodTerm,
    RefusalCode,
)
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support import memory_kube_store
from tests.support.deciding import decided
from tests.support.fleet import rack
from tests.support.kube_objects import kube_pod, share
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.memory_kube_store import Kind
from tests.support.pods import ask, gang, member, placed, shape

PODS = "/api/v1/namespaces/default/pods"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
API = "/apis/autoscaling.x-k8s.io/v1"
REQUESTS = f"{API}/namespaces/default/provisioningrequests"
NAME = "atomic.example.com"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "u-1"}
SECRET = {"name": "TOKEN", "value": "secret"}


class CaughtUp(Reader[Change]):
    """A ledger reader that is always at the end of the ledger."""

    def __init__(self) -> None:
        pass

    async def caught_up(self) -> None:
        """Return at once, since this reader never lags behind the ledger."""


FORBIDDEN = 'User "binder" cannot do this'


class Guarded(MemoryKube):
    """An API server that records requests, and refuses those of one method on some paths.

    By default, these are the paths of our kind and of annotations. Only as many requests are
    refused as `times` says."""

    refuses = ""
    where = "(/provisioningrequests|/status)$"
    status, reason, message = 403, "Forbidden", FORBIDDEN
    times = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def handle(self, method: str, path: str, *, body: bytes | None = None, **given: Any) -> Answer:
        """Refuse the request with `status` if its method is refused. Otherwise handle it."""
        self.log.append(f"{method} {path}")
        if method == self.refuses and self.times and re.search(self.where, path):
            self.times -= 1
            return Answer(self.status, status_body(self.status, self.reason, self.message))
        return super().handle(method, path, body=body, **given)


class World:
    """An API server, a ledger with a node of 2 GPUs, and the binder's loop for requests."""

    def __init__(self) -> None:
        self.kube, self.ledger = Guarded(), Ledger()
        self.ledger.report(rack("n1", 2))
        self.begin()

    def begin(self, provisioning_class: str = NAME) -> None:
        """Replace the binder by one that has just started."""
        clock = SkewedClock(random.Random(7), skew_s=0.0)
        api = MemoryKubeApi(self.kube)
        self.binder = Provisioning(api, self.ledger.state, clock, provisioning_class)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a user's request to the API server. Return the answer, or None on an error."""
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(method, path, query=None, body=raw, content_type=MERGE_PATCH)
        return json.loads(answer.body) if answer.ok else None

    def told(self, data: Any) -> None:
        """Append the event to the ledger and show the resulting state change to the binder."""
        self.binder.observe(self.ledger.take(data))

    def gone(self, *uids: str) -> None:
        """End these pods in the ledger."""
        for uid in uids:
            self.told(PodGone(uid=uid))

    def decide(self) -> None:
        """Let the scheduler decide once."""
        for data in decided(self.ledger.engine).events:
            self.told(data)

    def submit(
        self, name: str, memory_mib: int = 90_000, notes: dict[str, Any] | None = None,
        **fields: Any,
    ) -> PodSubmitted:  # fmt: skip
        """Create a pod of the gang in the cluster and in the ledger."""
        more = {"nodeSelector": {"pool": "gpu"}, "volumes": fields.pop("volumes", [])}
        namespace = fields.setdefault("namespace", "default")
        made = kube_pod(name, share(memory_mib), **more)
        made["spec"]["containers"][0]["env"] = [SECRET]
        made["metadata"] |= {"ownerReferences": [JOB | {"controller": True}], **(notes or {})}
        made["metadata"]["namespace"] = namespace
        uid = self.ask("POST", PODS.replace("default", namespace), made)["metadata"]["uid"]
        fields = {"group": "default/job", "name": name} | fields
        pod = member(uid, ask(memory_mib), **fields)
        self.told(pod)
        return pod

    def gang(self, pods: int = 3, least: int = 3, **fields: Any) -> None:
        """Submit a gang whose first pod fits on the node, and whose other pods do not."""
        self.told(gang("default/job", least))
        self.submit("p0", 1_000, **fields)
        for number in range(1, pods):
            self.submit(f"p{number}", **fields)
        self.decide()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Return the ProvisioningRequests of the cluster."""
        return self.kube.store.all("provisioningrequests")

    @property
    def names(self) -> list[str]:
        """Return the names of the ProvisioningRequests and of the PodTemplates."""
        both = (*self.requests, *self.kube.store.all("podtemplates"))
        return [each["metadata"]["name"] for each in both]

    def consumed(self) -> dict[str, str]:
        """Return the request that each pod names in its annotation."""
        notes = {
            pod["metadata"]["name"]: pod["metadata"].get("annotations", {})
            for pod in self.kube.store.all("pods")
        }
        return {name: note[CONSUMES] for name, note in notes.items() if CONSUMES in note}

    def condition(self, kind: str, at: str, status: str = "True") -> None:
        """Set a condition of the newest request, as the autoscaler does."""
        about = self.requests[-1]
        condition = {"type": kind, "status": status, "lastTransitionTime": at}
        about["status"] = {"conditions": [condition]}
        self.ask("PATCH", f"{REQUESTS}/{about['metadata']['name']}/status", about)


def with_loop(world: World, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` in virtual time while the binder's loop is running."""

    async def both() -> None:
        loop = asyncio.create_task(world.binder.run(CaughtUp()))
        await rest(1.0)
        await work()
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    run_virtually(both())


def test_a_gang_without_room_gets_one_request_for_all_of_its_pods() -> None:
    """The request counts the pods of each shape. Its templates have what decides where the pods
    fit, and no variables. The pods' controller owns it, and the pods name it."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        (request,) = world.requests
        name = request["metadata"]["name"]
        assert request["spec"]["provisioningClassName"] == NAME
        assert request["metadata"]["ownerReferences"] == [JOB]
        assert request["metadata"]["annotations"] == {GANG: "default/job"}
        sets = {
            each["podTemplateRef"]["name"]: each["count"] for each in request["spec"]["podSets"]
        }
        assert sets == {f"{name}-0": 1, f"{name}-1": 2}
        for template, memory_mib in ((f"{name}-0", 1_000), (f"{name}-1", 90_000)):
            made = world.ask("GET", f"{TEMPLATES}/{template}")
            assert made["metadata"]["ownerReferences"] == [JOB]
            spec = made["template"]["spec"]
            assert spec["nodeSelector"] == {"pool": "gpu"}
            (container,) = spec["containers"]
            assert container["resources"]["limits"] == share(memory_mib)
            assert "env" not in container
        assert world.consumed() == dict.fromkeys(("p0", "p1", "p2"), name)
        notes = world.ask("GET", f"{PODS}/p0")["metadata"]["annotations"]
        assert notes[CLASS] == NAME

    with_loop(world, work)


def test_a_request_has_the_minimum_of_the_gang() -> None:
    """Pods that the gang does not need to start are left to the autoscaler one by one."""
    world = World()

    async def work() -> None:
        world.gang(pods=5, least=3)
        await rest(LOOK_S)
        (request,) = world.requests
        assert sum(each["count"] for each in request["spec"]["podSets"]) == 3
        assert set(world.consumed()) == {"p0", "p1", "p2"}

    with_loop(world, work)


def test_a_template_has_the_claims_that_all_of_its_pods_mount() -> None:
    """Volume claims of one pod would keep the other pods of the template from every node."""
    world = World()

    async def work() -> None:
        world.told(gang("default/job", 2))
        for number in range(2):
            names = ("data", f"own-{number}")
            volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in names]
            volumes.append({"name": "scratch", "emptyDir": {}})
            world.submit(f"p{number}", volume_claims=names, volumes=volumes)
        refuse(world, RefusalCode.MEMORY_INSUFFICIENT)
        await rest(LOOK_S)
        (template,) = world.kube.store.all("podtemplates")
        (volume,) = template["template"]["spec"]["volumes"]
        assert volume["name"] == "data"

    with_loop(world, work)


def test_pods_that_affinity_tells_apart_have_templates_of_their_own() -> None:
    """If pods of the gang select others by labels, pods with other values of these labels have
    another template. Other labels do not matter."""
    world = World()

    async def work() -> None:
        (key, wanted) = ("role", LabelExpression(key="role", operator="In", values=("ps",)))
        term = PodTerm(pods=PodSelector(expressions=(wanted,)), topology_key="zone")
        same = shape(ask(90_000), pods=PodConstraints(anti_affinity=(term,)))
        world.told(gang("default/job", 3))
        for number, role in enumerate(("ps", "worker", "worker")):
            labels = {key: role, "index": str(number)}
            notes = {"labels": labels}
            world.submit(f"p{number}", notes=notes, labels=labels, shape=same)
        world.decide()
        await rest(LOOK_S)
        (request,) = world.requests
        counts = {
            each["podTemplateRef"]["name"]: each["count"] for each in request["spec"]["podSets"]
        }
        roles = {
            each["template"]["metadata"]["labels"][key]: counts[each["metadata"]["name"]]
            for each in world.kube.store.all("podtemplates")
        }
        assert roles == {"ps": 1, "worker": 2}

    with_loop(world, work)


def refuse(world: World, *codes: RefusalCode) -> None:
    """Let the scheduler refuse each pod of the gang for these reasons."""
    for uid, pod in list(world.ledger.state.pods.items()):
        reasons, name = dict.fromkeys(codes, 1), pod.submitted.name
        world.told(PodRefused(pod=uid, namespace="default", name=name, reasons=reasons, nodes=1))


def quota(world: World) -> None:
    """Submit a gang that a limit of its namespace refuses."""
    world.gang()
    refuse(world, RefusalCode.QUOTA_EXCEEDED)


def alone(world: World) -> None:
    """Submit pods that need not start together."""
    world.gang(least=1)


def incomplete(world: World) -> None:
    """Submit a gang that lacks a pod."""
    world.gang(least=4)


def of_kueue(world: World) -> None:
    """Submit a gang that Kueue has admitted."""
    world.gang(notes={"labels": {"kueue.x-k8s.io/managed": "true"}})


def of_others(world: World) -> None:
    """Submit a gang whose pods consume another request."""
    world.gang(notes={"annotations": {CONSUMES: "mine"}})


def chosen(world: World) -> None:
    """Submit a gang for which kube-scheduler chooses the nodes."""
    world.gang(chooser="default-scheduler")
    refuse(world, RefusalCode.MEMORY_INSUFFICIENT)


def nominated(world: World) -> None:
    """Submit a gang for which other pods are evicted."""
    world.gang()
    world.ledger.state.nominated[next(iter(world.ledger.state.pods))] = "n1"


def claiming(world: World) -> None:
    """Submit a gang whose pods request devices with ResourceClaims."""
    world.gang(shape=shape(ask(90_000, container=container_of("u-2"))))
    refuse(world, RefusalCode.MEMORY_INSUFFICIENT)


NEEDLESS = [quota, alone, incomplete, of_kueue, of_others, chosen, nominated, claiming]


@pytest.mark.parametrize("submit", NEEDLESS)
def test_a_gang_that_needs_no_request_gets_none(submit: Callable[[World], None]) -> None:
    """There is no request if a new node would not help, or if another program requests it."""
    world = World()

    async def work() -> None:
        submit(world)
        before = world.consumed()
        await rest(10 * LOOK_S)
        assert world.names == []
        assert world.consumed() == before

    with_loop(world, work)


def test_a_request_is_deleted_once_its_gang_is_placed() -> None:
    """The request and its templates are deleted once the gang is placed."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        assert len(world.names) == 3
        world.ledger.report(rack("n2", 2, memory_mib=100_000))
        world.decide()
        await rest(2 * LOOK_S)
        assert world.names == []

    with_loop(world, work)


def test_attempts_are_counted_while_the_gang_is_pending() -> None:
    """An ended request is kept while a limit refuses the gang, so the next attempt still waits for
    its pause. In the meantime, the binder sends nothing."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            (request,) = world.requests
            assert request["metadata"]["name"].endswith(f"-{attempt}")
            at = world.binder._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            world.condition("Failed", at)
            refuse(world, RefusalCode.QUOTA_EXCEEDED)
            await rest(2 * LOOK_S)
            world.kube.log.clear()
            await rest(BACK_OFF.after(attempt) + LOOK_S)
            assert world.kube.log == []
            refuse(world, RefusalCode.MEMORY_INSUFFICIENT)
            await rest(2 * LOOK_S)
        assert world.requests[0]["metadata"]["name"].endswith(f"-{ATTEMPTS_MAX}")
        world.gone(*world.ledger.state.pods)
        await rest(3 * LOOK_S)
        assert world.names == []

    with_loop(world, work)


def hold_part(world: World) -> Callable[[], None]:
    """Place the first pod of the gang in a batch that others follow."""
    uid = next(iter(world.ledger.state.pods))
    world.told(placed(uid, held=True, previous=world.ledger.state.nodes["n1"].chain))
    voided = PlacementVoided(pod=uid, node="n1", attempt=1, reason="test")
    return lambda: world.told(voided)


def nominate(world: World) -> Callable[[], None]:
    """Nominate a node for a pod of the gang."""
    uid = next(iter(world.ledger.state.pods))
    world.ledger.state.nominated[uid] = "n1"
    return world.ledger.state.nominated.clear


@pytest.mark.parametrize("begin", [hold_part, nominate])
def test_a_gang_that_may_be_placed_soon_keeps_its_request(
    begin: Callable[[World], Callable[[], None]],
) -> None:
    """While pods are evicted for the gang, or only some of its batches are placed, its request and
    its annotations stay. A gang without a request gets none."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        before, consumed = world.names, world.consumed()
        end = begin(world)
        await rest(3 * LOOK_S)
        assert world.names == before
        assert world.consumed() == consumed
        end()
        await rest(3 * LOOK_S)
        assert world.names == before

    with_loop(world, work)


def test_pods_without_a_request_name_none() -> None:
    """If the rest of a gang need not start together any more, the request is deleted, and the
    pending pods no longer name it. Otherwise the autoscaler would ignore them."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        world.told(gang("default/job", 1))
        await rest(2 * LOOK_S)
        assert world.names == []
        assert world.consumed() == {}

    with_loop(world, work)


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


def test_a_request_is_deleted_after_its_successor_exists() -> None:
    """If the minimum of a gang changes, the pods of the new request name it before the previous one
    is deleted. A pod that is not in the new request names none."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        (before,) = world.requests
        world.kube.log.clear()
        world.told(gang("default/job", 2))
        await rest(3 * LOOK_S)
        (after,) = world.requests
        name = after["metadata"]["name"]
        assert world.consumed() == dict.fromkeys(("p0", "p1"), name)
        changes = [each for each in world.kube.log if not each.startswith("GET")]
        deleted = changes.index(f"DELETE {REQUESTS}/{before['metadata']['name']}")
        assert deleted == max(
            at for at, each in enumerate(changes) if not each.startswith("DELETE")
        ) + 1  # fmt: skip

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


def test_pods_do_not_name_a_request_that_another_program_deleted() -> None:
    """If an administrator deletes the request and the gang needs none any more, its pods do not
    name it."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        world.ask("DELETE", f"{REQUESTS}/{world.requests[0]['metadata']['name']}")
        world.told(gang("default/job", 1))
        await rest(3 * LOOK_S)
        assert world.consumed() == {}

    with_loop(world, work)


def test_a_gang_that_is_placed_in_the_meantime_gets_no_request() -> None:
    """Before it creates a request, the binder checks whether the gang still needs one, because the
    requests of other gangs take time."""
    world = World()

    async def work() -> None:
        two_gangs(world)
        answered = world.kube.handle

        def handle(method: str, path: str, **given: Any) -> Answer:
            if method == "POST" and path == REQUESTS.replace("default", "blocked"):
                world.gone(*(
                    uid for uid, pod in world.ledger.state.pods.items()
                    if pod.submitted.namespace == "default"
                ))  # fmt: skip
            return answered(method, path, **given)

        world.kube.handle = handle  # type: ignore[method-assign]
        await rest(3 * LOOK_S)
        posted = [each for each in world.kube.log if each.startswith("POST /apis")]
        assert posted == [f"POST {REQUESTS.replace('default', 'blocked')}"]

    with_loop(world, work)


def test_a_request_is_deleted_once_its_gang_is_gone() -> None:
    """The request and its templates are deleted once the pods of the gang are gone."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        world.gone(*world.ledger.state.pods)
        await rest(2 * LOOK_S)
        assert world.names == []

    with_loop(world, work)


@pytest.mark.parametrize("kind", ["Failed", "BookingExpired", "CapacityRevoked"])
def test_a_failed_request_is_followed_by_another_after_a_pause(kind: str) -> None:
    """Each failure doubles the pause. The pods name the newest request, the only one that is kept.
    After the last attempt there is no other, and a pod that replaces another names the last one."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            name = world.requests[0]["metadata"]["name"]
            assert name.endswith(f"-{attempt}")
            assert len(world.names) == 3
            assert set(world.consumed().values()) == {name}
            at = world.binder._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            world.condition(kind, at)
            await rest(BACK_OFF.after(attempt) - LOOK_S)
            assert world.requests[0]["metadata"]["name"] == name
            await rest(3 * LOOK_S)
        last = world.requests[0]["metadata"]["name"]
        assert last.endswith(f"-{ATTEMPTS_MAX}")
        replace_pod(world)
        await rest(3 * LOOK_S)
        assert world.consumed() == dict.fromkeys(("p0", "p2", "p3"), last)

    with_loop(world, work)


def replace_pod(world: World) -> None:
    """Replace the pod p1 of the gang by an equal pod p3."""
    (uid,) = (uid for uid, pod in world.ledger.state.pods.items() if pod.submitted.name == "p1")
    world.ask("DELETE", f"{PODS}/p1")
    world.gone(uid)
    world.submit("p3")
    world.decide()


def test_a_request_that_the_autoscaler_works_on_is_kept() -> None:
    """A request without capacity for now, or whose capacity is booked, is neither changed nor
    followed by another."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        for status in ("False", "True"):
            world.condition("Provisioned", "2026-01-01T00:00:00Z", status)
            before = world.requests
            await rest(BACK_OFF.longest_s)
            assert world.requests == before

    with_loop(world, work)


def test_another_binder_and_a_restarted_one_change_nothing() -> None:
    """Every binder derives the same names, so there is one request. A binder that starts deletes
    the requests of gangs that no longer need one."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        version = world.kube.store.version
        world.begin()
        other = asyncio.create_task(world.binder.run(CaughtUp()))
        await rest(3 * LOOK_S)
        assert world.kube.store.version == version
        other.cancel()

    with_loop(world, work)
    world.gone(*world.ledger.state.pods)
    world.begin()

    async def rested() -> None:
        await rest(LOOK_S)
        assert world.names == []

    with_loop(world, rested)


def test_another_class_replaces_the_requests() -> None:
    """A binder with another class replaces the requests of the previous class, because the class of
    a request cannot change. The pods name the new request and its class."""
    world = World()

    async def requested() -> None:
        world.gang()
        await rest(LOOK_S)

    async def replaced() -> None:
        await rest(2 * LOOK_S)
        (request,) = world.requests
        assert request["spec"]["provisioningClassName"] == "other.example.com"
        assert set(world.consumed().values()) == {request["metadata"]["name"]}
        notes = world.ask("GET", f"{PODS}/p0")["metadata"]["annotations"]
        assert notes[CLASS] == "other.example.com"

    with_loop(world, requested)
    world.begin("other.example.com")
    with_loop(world, replaced)


def test_pods_that_replace_others_change_no_request() -> None:
    """If a pod of the gang is replaced by an equal one, the new pod names the same request."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        (before,) = world.requests
        replace_pod(world)
        await rest(2 * LOOK_S)
        assert world.requests == [before]
        assert "p3" in world.consumed()

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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of all warnings."""
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


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


def test_only_a_missing_permission_is_reported_as_one(caplog: pytest.LogCaptureFixture) -> None:
    """If a quota refuses the request, the warning does not advise the permission of the chart. The
    templates are deleted."""
    world = World()
    world.kube.refuses, world.kube.message = "POST", "exceeded quota: objects"

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        assert world.names == []

    with_loop(world, work)
    (said,) = warnings(caplog)
    assert "exceeded quota" in said
    assert "binder.provisioning.enabled" not in said


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


def test_two_binders_at_once_create_one_request() -> None:
    """A binder that finds that the request exists when it creates it names it as its own."""
    world = World()

    async def work() -> None:
        other = world.binder
        world.begin()
        world.gang()
        (uid, *_) = world.ledger.state.pods
        reasons = {RefusalCode.MEMORY_INSUFFICIENT: 1}
        again = PodRefused(pod=uid, namespace="default", name="p0", reasons=reasons, nodes=1)
        other.observe(world.ledger.take(again))
        await asyncio.gather(other.look(), world.binder.look())
        posted = [each for each in world.kube.log if each.startswith("POST /apis")]
        assert len(posted) == 2
        assert len(world.names) == 3
        assert len(world.consumed()) == 3

    run_virtually(work())


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


def two_gangs(world: World) -> None:
    """Submit two gangs of two pods. One is in the namespace `blocked`."""
    for namespace in ("blocked", "default"):
        name = f"{namespace}/pair"
        world.told(gang(name, 2))
        for number in range(2):
            world.submit(f"{namespace}-{number}", group=name, namespace=namespace)
    world.decide()


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


class Watched(World):
    """A world whose binder also writes the conditions of pods. Records the order of both."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, str]] = []
        self.telling: Telling | None = None
        answered = self.kube.handle

        def handle(method: str, path: str, *, body: bytes | None = None, **given: Any) -> Answer:
            answer = answered(method, path, body=body, **given)
            if method == "PATCH" and path.startswith(PODS) and answer.ok:
                said = json.loads(body or b"{}")
                conditions = said.get("status", {}).get("conditions", ())
                reasons = [each["reason"] for each in conditions]
                if CONSUMES in said["metadata"].get("annotations", {}):
                    reasons.append("named")
                self.order.extend((path.split("/")[-2], reason) for reason in reasons)
            return answer

        self.kube.handle = handle  # type: ignore[method-assign]

    def told(self, data: Any) -> None:
        """Append the event to the ledger and show the state change to both loops."""
        change = self.ledger.take(data)
        if self.telling is not None:
            self.telling.observe(change)
            self.binder.observe(change)

    def with_events(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in virtual time while both loops are running."""
        clock = self.binder._clock
        self.telling = telling = Telling(
            MemoryKubeApi(self.kube), self.ledger.state, clock, Metrics(), pace=Pace(clock),
            holds=self.binder.holds,
        )  # fmt: skip

        async def both() -> None:
            loop = asyncio.create_task(telling.run(CaughtUp()))
            await work()
            loop.cancel()

        with_loop(self, both)


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


def test_a_binder_that_starts_holds_the_conditions_of_refused_pods() -> None:
    """Pods that were refused while no binder ran name the request before they are
    `Unschedulable`."""
    world = Watched()

    async def work() -> None:
        await rest(5.0)
        assert [reason for _, reason in world.order] == ["named"] * 3 + ["Unschedulable"] * 3

    world.gang()  # neither loop observes this
    world.with_events(work)


def test_the_oldest_gangs_of_a_namespace_get_requests() -> None:
    """The autoscaler handles one request at a time, so a namespace has a limited number of them.
    The next gang follows when one is gone, or after its last attempt. Other namespaces are not
    affected."""
    world = World()

    def asking() -> set[str]:
        """Return the gangs that have a request."""
        return {each["metadata"]["annotations"][GANG] for each in world.requests}

    async def work() -> None:
        gangs = [f"default/{chr(ord('z') - number)}" for number in range(GANGS_MAX + 2)]
        for name in gangs:
            world.told(gang(name, 2))
            for number in range(2):
                world.submit(f"{name[-1]}{number}", group=name)
        two_gangs(world)
        await rest(2 * LOOK_S)
        others = {"blocked/pair"}
        assert asking() == {*gangs[:GANGS_MAX], *others}
        world.gone(*world.ledger.state.groups[gangs[3]].pods)
        await rest(3 * LOOK_S)
        assert asking() == {*gangs[: GANGS_MAX + 1], *others} - {gangs[3]}
        meta = next(
            each["metadata"]
            for each in world.requests
            if each["metadata"]["annotations"][GANG] == gangs[0]
        )
        last = f"{meta['name'].removesuffix('-1')}-{ATTEMPTS_MAX}"
        world.ask("POST", REQUESTS, {"metadata": {**meta, "name": last}, "spec": {}})
        condition = {"type": "Failed", "status": "True"}
        ended = {"status": {"conditions": [condition]}}
        world.ask("PATCH", f"{REQUESTS}/{last}/status", ended)
        await rest(3 * LOOK_S)
        assert asking() == {*gangs, *others} - {gangs[3]}

    with_loop(world, work)


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


def test_a_gang_that_loses_a_pod_or_its_group_gets_another_request() -> None:
    """A gang with a pod that is being deleted is incomplete. A PodGroup that is created again is
    another gang, so its requests are counted from 1 again."""
    world = World()

    async def work() -> None:
        world.gang()
        await rest(LOOK_S)
        (before,) = world.requests
        world.told(PodGroupGone(group="default/job"))
        world.told(gang("default/job", 3))
        await rest(2 * LOOK_S)
        (after,) = world.requests
        assert after["metadata"]["name"] != before["metadata"]["name"]
        assert set(world.consumed().values()) == {after["metadata"]["name"]}
        world.told(PodChanged(uid=next(iter(world.ledger.state.pods)), terminating=True))
        await rest(2 * LOOK_S)
        assert world.requests == []

    with_loop(world, work)


def test_a_gang_that_waits_for_a_limit_costs_no_request() -> None:
    """While no gang needs new nodes, the binder sends nothing."""
    world = World()

    async def work() -> None:
        quota(world)
        await rest(2 * LOOK_S)
        asked = len(world.kube.log)
        await rest(AGAIN_S)
        assert len(world.kube.log) == asked

    with_loop(world, work)


def test_pods_without_a_gang_cost_no_request() -> None:
    """After it has looked for its requests once, the binder sends nothing until a gang waits."""
    world = World()

    async def work() -> None:
        world.submit("single", group="")
        asked = len(world.kube.log)
        world.decide()
        await rest(AGAIN_S)
        assert len(world.kube.log) == asked

    with_loop(world, work)


@pytest.mark.parametrize(("value", "fix"), [("Not_A_Name", "a-z"), (NAME, "--kubernetes")])
def test_an_unusable_class_stops_the_binder(value: str, fix: str) -> None:
    """The error names the option, its value and the fix."""
    nats = ("--nats", "nats://binder:p@localhost:4222")
    done = CliRunner().invoke(command, [*nats, "--provisioning-class", value])
    assert done.exit_code == 78
    for part in ("--provisioning-class", value, fix):
        assert part in done.output
