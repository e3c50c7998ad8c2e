"""Tests of pods with PersistentVolumeClaims that are bound only when a pod first uses them.

The tests use an in-memory API server in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from apportion.binder.binding import Bound, Failed, Outcome
from apportion.binder.kubernetes.claims import PATIENCE_S, WAIT_S
from apportion.binder.kubernetes.target import KubernetesTarget, Pace
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT
from apportion.core.workloads.pods.volumes import BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE
from apportion.runtime.kube.client import MERGE_PATCH
from apportion_schemas import NodeExpression, PodPlaced, VolumeClaimObserved
from tests.simulation.clocks import EPOCH, SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import gpu, node, observed
from tests.support.golden import Golden
from tests.support.kube_objects import kube_pod
from tests.support.kube_volumes import HOST, kube_claim, kube_class, kube_volume
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.pods import ask, pod

SPACE = "/api/v1/namespaces/default"
CLAIM = f"{SPACE}/persistentvolumeclaims/data"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
STATIC = "kubernetes.io/no-provisioner"


class World:
    """An API server with a pod that is placed on node n1 and has a volume claim. The test acts as
    Kubernetes' volume controller."""

    def __init__(
        self, provisioner: str = "disks.example.com", state: Any = "first-consumer"
    ) -> None:
        self.kube = MemoryKube()
        self.clock = SkewedClock(random.Random(7), skew_s=0.0)
        uid = self.ask("POST", f"{SPACE}/pods", kube_pod("p"))["metadata"]["uid"]
        claim = self.ask("POST", f"{SPACE}/persistentvolumeclaims", kube_claim())
        self.claim_uid = claim["metadata"]["uid"]
        self.ask("POST", CLASSES, kube_class(provisioner))
        self.ledger = Ledger(
            node("n1", gpu("g0")),
            observed("n1", labels={HOST: "n1"}, version=1),
            VolumeClaimObserved(namespace="default", claim="data", state="first-consumer"),
            pod(uid, ask(1000), name="p", volume_claims=("data",)),
        ).settle()
        self.told(state)
        self.target = KubernetesTarget(
            MemoryKubeApi(self.kube), self.ledger.state, Pace(self.clock), self.clock
        )
        self.uid = uid

    def told(self, state: Any, *nodes: str) -> None:
        """Set the volume claim's state in the ledger. If `nodes` are given, only these nodes can
        reach the claim's volume."""
        term = (NodeExpression(key=HOST, operator="In", values=nodes),)
        terms = (term,) if nodes else ()
        self.ledger.play(
            VolumeClaimObserved(namespace="default", claim="data", state=state, nodes=terms)
        )

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        raw = json.dumps(body or {}).encode()
        answer = self.kube.handle(method, path, query=None, body=raw, content_type=MERGE_PATCH)
        assert answer.ok, answer.refusal()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def add(self, name: str, on: str, **spec: Any) -> None:
        """Add a free volume that only node `on` can reach."""
        free = {"status": {"phase": "Available"}}
        self.ask("POST", VOLUMES, kube_volume(name, on, **spec) | free)

    def complete(self, to: str) -> None:
        """Bind the claim to volume `to`, as Kubernetes' volume controller does."""
        done = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": to}}
        self.ask("PATCH", CLAIM, done)

    def chosen(self) -> str:
        """Return the node in the claim's selected-node annotation."""
        notes = self.ask("GET", CLAIM)["metadata"].get("annotations", {})
        return str(notes.get(SELECTED_NODE, ""))

    def unchoose(self) -> None:
        """Remove the claim's selected node, as a provisioner does when it gives up."""
        self.ask("PATCH", CLAIM, {"metadata": {"annotations": {SELECTED_NODE: None}}})

    def node_of_pod(self) -> str:
        """Return the node that the API server has bound the pod to, or an empty string."""
        return str(self.ask("GET", f"{SPACE}/pods/p")["spec"].get("nodeName", ""))

    async def bind(self) -> Outcome:
        (placed,) = (event for event in self.ledger.events if isinstance(event, PodPlaced))
        return await self.target.bind(placed)

    async def binding(self, during: Callable[[], object]) -> Outcome:
        """Bind the pod, and call `during` while the binding is in progress."""
        trying = asyncio.create_task(self.bind())
        await rest(2.0)
        during()
        return await trying


def world(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the check in virtual time."""
    run_virtually(check())


def test_the_smallest_volume_there_is_kept_and_the_pod_is_bound_with_it() -> None:
    """For a volume claim, the binder reserves the smallest volume that the node can reach. It binds
    the pod once the claim is bound."""

    async def check() -> None:
        of = World(STATIC)
        of.add("far", "n2")
        of.add("large", "n1", capacity={"storage": "9Gi"})
        of.add("near", "n1")
        outcome = await of.binding(lambda: of.complete("near"))
        assert outcome == Bound()
        assert of.node_of_pod() == "n1"
        kept = of.ask("GET", f"{VOLUMES}/near")
        reference = kept["spec"]["claimRef"]
        assert (reference["kind"], reference["uid"]) == ("PersistentVolumeClaim", of.claim_uid)
        assert kept["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}
        assert all(
            "claimRef" not in of.ask("GET", f"{VOLUMES}/{n}")["spec"] for n in ("far", "large")
        )
        assert of.chosen() == ""

    world(check)


def test_a_provisioner_is_told_the_node_and_waited_for(golden: Golden) -> None:
    """If a volume has yet to be provisioned, the binder writes the node to the claim. The binding
    fails temporarily until the volume exists."""

    async def check() -> None:
        of = World()
        began = asyncio.get_running_loop().time()
        outcome = await of.bind()
        assert isinstance(outcome, Failed)
        assert (outcome.final, outcome.waits) == (False, True)
        golden({"not made yet": outcome.message})
        assert asyncio.get_running_loop().time() - began < 2 * WAIT_S
        assert (of.chosen(), of.node_of_pod()) == ("n1", "")
        of.add("made", "n1")
        assert await of.binding(lambda: of.complete("made")) == Bound()

    world(check)


def test_a_provisioner_that_gives_up_ends_the_placement(golden: Golden) -> None:
    """If the provisioner gives up on the node, the placement fails for good. This is so even if the
    provisioner gives up between two attempts of the binder."""

    async def check() -> None:
        of = World()
        outcome = await of.binding(of.unchoose)
        assert isinstance(outcome, Failed)
        assert outcome.final
        await of.bind()
        of.unchoose()
        assert await of.bind() == outcome
        assert of.chosen() == ""
        golden({"the provisioner gave up": outcome.message})

    world(check)


def test_what_takes_too_long_is_decided_anew() -> None:
    """If a volume is not ready within the time that kube-scheduler would wait, the placement fails
    for good."""

    async def check() -> None:
        of = World()
        found = of.ledger.pod(of.uid)
        late = EPOCH - timedelta(seconds=PATIENCE_S)
        found.placed_time = late.isoformat()
        outcome = await of.bind()
        assert isinstance(outcome, Failed)
        assert (outcome.final, outcome.waits) == (True, False)

    world(check)


def test_a_pod_is_bound_at_once_where_its_claim_has_its_volume() -> None:
    """If the ledger shows a pod's volume claim as bound, the binder binds the pod without reading
    the claim."""

    async def check() -> None:
        of = World()
        of.told("bound", "n1")
        of.ask("DELETE", CLAIM)
        assert await of.bind() == Bound()

    world(check)


def test_a_pod_is_not_bound_where_its_volume_cannot_be_reached(golden: Golden) -> None:
    """The binder does not bind a pod to a node if the ledger or the API server shows that the pod's
    volume is unreachable there."""

    async def check() -> None:
        of = World()
        of.told("bound", "n2")
        outcome = await of.bind()
        assert isinstance(outcome, Failed)
        assert outcome.final
        of = World()
        of.add("far", "n2")
        of.complete("far")
        assert await of.bind() == outcome
        assert of.node_of_pod() == ""
        golden({"on n2": outcome.message})

    world(check)


def test_what_cannot_be_ends_the_placement_and_says_why(golden: Golden) -> None:
    """A volume claim that can never be bound on the node ends the placement. Each cause has its own
    message."""

    async def check() -> None:
        of = World(STATIC)
        outcomes = {"no volume is free": await of.bind()}
        of.ask("PATCH", CLAIM, {"metadata": {"annotations": {SELECTED_NODE: "n2"}}})
        outcomes["n2 is chosen"] = await of.bind()
        of.ask("DELETE", CLAIM)
        outcomes["the claim is deleted"] = await of.bind()
        of = World(state="unbound")
        outcomes["the claim is unbound"] = await of.bind()
        of = World()
        of.add("kept", "n2", claimRef={"name": "data", "namespace": "default"})
        outcomes["one on n2 is kept for it"] = await of.bind()
        failures = {name: each for name, each in outcomes.items() if isinstance(each, Failed)}
        assert failures == outcomes
        assert all(each.final for each in failures.values())
        golden({name: each.message for name, each in failures.items()})

    world(check)


def test_a_pod_that_an_earlier_call_bound_is_bound_whatever_became_of_its_claim() -> None:
    """If an earlier request has already bound the pod, the binding succeeds even if the claim is
    gone."""

    async def check() -> None:
        of = World()
        notes = {"metadata": {"annotations": {ATTEMPT: "1"}}, "spec": {"nodeName": "n1"}}
        of.ask("PATCH", f"{SPACE}/pods/p", notes)
        of.ask("DELETE", CLAIM)
        assert await of.bind() == Bound(earlier=True)

    world(check)
