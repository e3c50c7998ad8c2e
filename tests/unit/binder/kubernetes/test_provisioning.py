"""Tests of the ProvisioningRequests that the binder creates for gangs.

The tests use an in-memory API server in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from apportion.binder.kubernetes.provisioning import (
    AGAIN_S,
    ATTEMPTS_MAX,
    BACK_OFF,
    CLASS,
    GANG,
    GANGS_MAX,
    LOOK_S,
)
from apportion.binder.main import command
from apportion.core.dra.names import container_of
from apportion.runtime.kube.client import Answer
from apportion_schemas import (
    LabelExpression,
    PlacementVoided,
    PodChanged,
    PodConstraints,
    PodGroupGone,
    PodRefused,
    PodSelector,
    PodTerm,
    RefusalCode,
)
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import rack
from tests.support.kube_objects import share
from tests.support.pods import ask, gang, placed, shape
from tests.support.provisioning_world import (
    JOB,
    NAME,
    PODS,
    REQUESTS,
    TEMPLATES,
    CaughtUp,
    World,
    of_others,
    refuse,
    replace_pod,
    two_gangs,
    with_loop,
)


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


def quota(world: World) -> None:
    """Submit a gang that a limit of its namespace refuses."""
    world.gang()
    refuse(world, RefusalCode.QUOTA_EXCEEDED)


def alone(world: World) -> None:
    """Submit pods that need not start together, of which none fits."""
    world.told(gang("default/job", 1))
    world.submit("p0")
    world.submit("p1")
    world.decide()


def incomplete(world: World) -> None:
    """Submit a gang that lacks a pod."""
    world.gang(least=4)


def of_kueue(world: World) -> None:
    """Submit a gang that Kueue has admitted."""
    world.gang(notes={"labels": {"kueue.x-k8s.io/managed": "true"}})


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
