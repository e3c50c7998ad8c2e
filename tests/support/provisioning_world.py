"""An in-memory API server and a ledger for tests of ProvisioningRequests, in virtual time."""

import asyncio
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from apportion.binder.kubernetes.pod_events import Telling
from apportion.binder.kubernetes.provisioning import CONSUMES, Provisioning
from apportion.binder.kubernetes.target import Pace
from apportion.core.ledger.fold import Change
from apportion.runtime.kube.client import MERGE_PATCH, Answer
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import PodGone, PodRefused, PodSubmitted, RefusalCode
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.deciding import decided
from tests.support.fleet import rack
from tests.support.kube_objects import kube_pod, share
from tests.support.ledger_of import Ledger
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi
from tests.support.pods import ask, gang, member

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


def refuse(world: World, *codes: RefusalCode) -> None:
    """Let the scheduler refuse each pod of the gang for these reasons."""
    for uid, pod in list(world.ledger.state.pods.items()):
        reasons, name = dict.fromkeys(codes, 1), pod.submitted.name
        world.told(PodRefused(pod=uid, namespace="default", name=name, reasons=reasons, nodes=1))


def of_others(world: World) -> None:
    """Submit a gang whose pods consume another request."""
    world.gang(notes={"annotations": {CONSUMES: "mine"}})


def replace_pod(world: World) -> None:
    """Replace the pod p1 of the gang by an equal pod p3."""
    (uid,) = (uid for uid, pod in world.ledger.state.pods.items() if pod.submitted.name == "p1")
    world.ask("DELETE", f"{PODS}/p1")
    world.gone(uid)
    world.submit("p3")
    world.decide()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of all warnings."""
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def two_gangs(world: World) -> None:
    """Submit two gangs of two pods. One is in the namespace `blocked`."""
    for namespace in ("blocked", "default"):
        name = f"{namespace}/pair"
        world.told(gang(name, 2))
        for number in range(2):
            world.submit(f"{namespace}-{number}", group=name, namespace=namespace)
    world.decide()


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
