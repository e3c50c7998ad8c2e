"""Tests of the Kubernetes events and pod conditions that the binder writes, in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from apportion.binder.kubernetes import pod_events
from apportion.binder.kubernetes.pod_events import (
    DECLARED_WITHIN_S,
    PAUSE_MAX_S,
    RECALLED_S,
    RENEW_S,
    RENEW_SLOT_S,
    Telling,
)
from apportion.binder.kubernetes.target import Pace
from apportion.core.explain.text.event_text import CORES_LATER
from apportion.core.ledger.fold import Change
from apportion.core.ledger.moments import SECOND, text_of
from apportion.runtime.kube.client import JSON, TIMEOUT_S, Answer, KubeUnavailable
from apportion.runtime.ledger.port import Draft
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    DeviceHealthChanged,
    PodBound,
    PodRefused,
    PodResized,
    RefusalCode,
    ResizeAsked,
    ShareBreached,
    ShareUsed,
    UsageRecorded,
    encode,
    subject_of,
)
from apportion_schemas.catalogue import BY_PAYLOAD
from apportion_schemas.quantities import Payload
from tests.simulation.clocks import SkewedClock
from tests.simulation.loop import rest, run_virtually
from tests.support.fleet import rack
from tests.support.golden import Golden
from tests.support.idling import looking
from tests.support.kube_objects import kube_pod
from tests.support.ledger_of import event_of
from tests.support.memory_kube import MemoryKube
from tests.support.memory_kube_api import MemoryKubeApi, PerfectKubeLink
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_server import MemoryServer
from tests.support.pods import ask, gang, member, placed, share

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"


class SlowKubeLink(PerfectKubeLink):
    """A network to the API server whose answers take a second each."""

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        answer = await super().ask(method, act)
        await rest(1)
        return answer


class DeafKubeLink(PerfectKubeLink):
    """A network that reaches the API server only while `up` is set."""

    up = True

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        """Pass the request on if `up` is set. Otherwise fail as if the API server were
        unreachable."""
        if not self.up:
            raise KubeUnavailable("connection refused")
        return await super().ask(method, act)


class FailingKubeApi(MemoryKubeApi):
    """An API server that answers 503 to Kubernetes events of chosen pods, and asks to retry after
    an hour."""

    pods: ClassVar[set[str]] = set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Answer 503 to an event of a chosen pod. Handle other requests as usual."""
        about = json.loads(body or b"{}").get("involvedObject", {"name": ""})["name"]
        if about in self.pods:
            return Answer(503, b"", retry_after_s=3_600.0)
        return await super().request(
            method, path, query=query, body=body, content_type=content_type, timeout_s=timeout_s
        )


class Told:
    """An in-memory cluster with two pods, whose binder writes Kubernetes events for them."""

    def __init__(
        self, link: PerfectKubeLink | None = None, api: type[MemoryKubeApi] = MemoryKubeApi
    ) -> None:
        self._link, self._api = link, api
        self.kube, self.server = MemoryKube(), MemoryServer()
        self.begin_anew()
        self.uids = {
            name: self.ask("POST", PODS, kube_pod(name))["metadata"]["uid"] for name in "ab"
        }

    def begin_anew(self) -> None:
        """Replace the binder by one that has not read the ledger yet."""
        cluster, metrics = StateFold(), Metrics()
        clock = SkewedClock(random.Random(7), skew_s=0.0)
        self.pace, self.state = Pace(clock), cluster.state
        self._telling = Telling(
            self._api(self.kube, self._link), cluster.state, clock, metrics, pace=self.pace
        )
        self._reader: Reader[Change] = Reader(
            MemoryLedger(self.server, role="binder"),
            cluster,
            metrics=metrics,
            on_change=self._telling.observe,
        )

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        raw = None if body is None else json.dumps(body).encode()
        answer = self.kube.handle(
            method, path, query=None, body=raw, content_type="application/json"
        )
        assert answer.ok, answer.refusal()
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def write(self, *payloads: Payload) -> None:
        """Append the events to the ledger, each with a role that may append its type."""
        for data in payloads:
            identity = f"test-{self.server.last_revision}"
            draft = Draft(subject_of(data), identity, encode(event_of(data)))
            role = BY_PAYLOAD[type(data)].appender
            self.server.append([draft], {}, role=role, writer=role)

    def messages(self) -> list[tuple[str, str]]:
        """Return the pod's name and the message of every Kubernetes event on the API server."""
        listed = self.ask("GET", "/api/v1/namespaces/default/events")["items"]
        return sorted((each["involvedObject"]["name"], each["message"]) for each in listed)

    def counts(self) -> dict[str, int]:
        """Return the count of each Kubernetes event, by its message."""
        listed = self.ask("GET", "/api/v1/namespaces/default/events")["items"]
        return {each["message"]: each["count"] for each in listed}

    def hold(self, name: str) -> str:
        """Place the pod on a GPU of node n1 and return the pod's uid."""
        uid: str = self.uids[name]
        self.write(
            rack("n1", 2), member(uid, ask(1000), group="", name=name),
            placed(uid, "n1", [share("n1-g0", 1000)], name=name),
        )  # fmt: skip
        return uid

    def refuse(self, name: str, *codes: RefusalCode) -> str:
        """Append a PodRefused event of the scheduler for the pod, and return the pod's uid."""
        uid: str = self.uids[name]
        self.write(
            rack("n1", 2), member(uid, ask(1000), group="", name=name),
            PodRefused(pod=uid, namespace="default", name=name, nodes=1,
                       reasons=dict.fromkeys(codes or (RefusalCode.NODE_NOT_READY,), 1)),
        )  # fmt: skip
        return uid

    def condition(self, name: str) -> dict[str, Any]:
        """Return the pod's condition PodScheduled, which must be its only one."""
        (found,) = self.ask("GET", f"{PODS}/{name}")["status"]["conditions"]
        assert (found["type"], found["status"]) == ("PodScheduled", "False")
        return dict(found)

    def event(self, reason: str) -> dict[str, Any]:
        """Return the Kubernetes event with this reason, and assert that there is only one."""
        (found,) = [each for each in self.ask("GET", EVENTS)["items"] if each["reason"] == reason]
        return dict(found)

    def bind(self, number: int, first: int = 0) -> None:
        """Add `number` pods without devices, each placed and bound on its own node."""
        for each in range(first, first + number):
            uid = f"u{each}"
            node = f"node-{each}"
            self.write(rack(node, 1), member(uid, group="", name=uid), placed(uid, node))
            self.write(PodBound(pod=uid, node=node, attempt=1))

    def scheduled(self) -> int:
        """Return how many pods have a Scheduled event. Assert that no such event has been
        repeated."""
        listed = self.ask("GET", EVENTS)["items"]
        found = [each for each in listed if each["reason"] == "Scheduled"]
        assert all(each["count"] == 1 for each in found)
        return len(found)

    async def run(self) -> None:
        """Read the ledger and write Kubernetes events until the task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run())
            tasks.create_task(self._telling.run(self._reader))


def test_H5_a_gang_that_nobody_declares_is_told_of_once() -> None:
    """If a gang has no PodGroup, the binder writes one event and one condition for each of its
    pods. Both name the gang."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        told.write(member(told.uids["a"], ask(1000), group="default/job", name="a"))
        await rest(10 * DECLARED_WITHIN_S)
        said = "its gang default/job has no PodGroup yet"
        assert told.messages() == [("a", said)]
        condition = told.condition("a")
        assert (condition["reason"], condition["message"]) == ("GangIncomplete", said)
        told.write(member(told.uids["b"], ask(1000), group="default/job", name="b"))
        await rest(10 * DECLARED_WITHIN_S)
        assert told.messages() == [("a", said), ("b", said)]
        running.cancel()

    run_virtually(main())


def test_a_gang_that_is_declared_in_time_is_not_told_of() -> None:
    """If a gang's PodGroup arrives shortly after its pods, the binder writes no event about a
    missing PodGroup."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        await rest(DECLARED_WITHIN_S / 2)
        told.write(member(told.uids["a"], ask(1000), group="default/job", name="a"))
        await rest(DECLARED_WITHIN_S / 2)
        told.write(gang("default/job", 2))
        await rest(10 * DECLARED_WITHIN_S)
        assert told.messages() == []
        running.cancel()

    run_virtually(main())


def test_owners_are_told_of_a_device_that_fails_and_recovers() -> None:
    """Each time a pod's device fails or recovers, the binder writes an event for the pod. A
    restarted binder writes none of them again."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        told.hold("a")
        for healthy in (False, True, False):
            told.write(DeviceHealthChanged(
                node="n1", device="n1-g0", healthy=healthy, reason="" if healthy else "XID 79"
            ))  # fmt: skip
            await rest(1)
        failed, recovered = "its device n1-g0 has failed (XID 79)", "its device n1-g0 has recovered"
        assert told.messages() == [("a", failed), ("a", recovered)]
        assert told.counts() == {failed: 2, recovered: 1}
        running.cancel()
        told.begin_anew()
        running = asyncio.create_task(told.run())
        await rest(1)
        assert told.counts() == {failed: 2, recovered: 1}
        running.cancel()

    run_virtually(main())


def test_the_owner_of_a_container_that_is_not_held_is_told() -> None:
    """If a container exceeds its share, the binder writes a warning event for its pod. Further
    breaches raise the count of that event."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        pod = told.hold("a")
        breach = ShareBreached(
            pod=pod, node="n1", attempt=1, container="main", device="n1-g0", code="raised",
            memory_mib=1_000, memory_found_mib=14_000,
        )  # fmt: skip
        await rest(1)
        told.write(breach, breach)
        await rest(1)
        event = told.event("ShareBreached")
        assert (event["involvedObject"]["name"], event["type"]) == ("a", "Warning")
        assert "14,000 MiB" in event["message"]
        running.cancel()

    run_virtually(main())


def test_a_resized_pod_has_an_event_that_says_from_when_its_cores_hold() -> None:
    """When a pod is resized, its event says when the new core limit takes effect."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        pod = told.hold("a")
        told.write(PodBound(pod=pod, node="n1", attempt=1))
        await rest(1)
        told.write(ResizeAsked(pod=pod, by="ann", cores=40))
        await rest(1)
        now = share("n1-g0", 1000, cores=40)
        told.write(
            PodResized(
                pod=pod, namespace="default", name="a", attempt=1, node="n1", shares=(now,),
                asked=told.server.last_revision, previous=told.state.nodes["n1"].chain,
            )
        )  # fmt: skip
        await rest(1)
        event = told.event("Resized")
        assert (event["involvedObject"]["name"], event["type"]) == ("a", "Normal")
        assert CORES_LATER in event["message"]
        running.cancel()

    run_virtually(main())


def test_a_pod_that_is_placed_while_its_refusal_is_told_is_not_said_to_wait() -> None:
    """If a pod is placed while the binder writes the event about an earlier refusal, the binder
    does not mark the pod as pending."""

    async def main() -> None:
        told = Told(SlowKubeLink())
        running = asyncio.create_task(told.run())
        pod = told.refuse("a")
        while not told.messages():
            await rest(0.1)
        told.write(placed(pod, "n1", [share("n1-g0")], name="a"))
        await rest(10)
        assert "conditions" not in told.ask("GET", f"{PODS}/a")["status"]
        running.cancel()

    run_virtually(main())


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ([RefusalCode.MEMORY_INSUFFICIENT], "Unschedulable"),
        ([RefusalCode.NO_SUCH_DEVICE, RefusalCode.NODE_NOT_READY], "Unschedulable"),
        ([RefusalCode.NODE_NOT_READY, RefusalCode.QUOTA_EXCEEDED], "QuotaExceeded"),
        ([RefusalCode.QUEUE_RESERVED], "QueueReserved"),
        ([RefusalCode.VOLUME_CLAIM_NOT_READY], "VolumeClaimNotReady"),
        ([RefusalCode.GANG_INCOMPLETE], "GangIncomplete"),
    ],
)
def test_autoscalers_add_nodes_only_for_pods_that_a_node_could_help(
    codes: list[RefusalCode], reason: str
) -> None:
    """The condition PodScheduled has the reason Unschedulable, for which autoscalers add nodes,
    unless a limit, a volume claim or the gang keeps the pod from every node."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        told.refuse("a", *codes)
        await rest(10)
        assert told.condition("a")["reason"] == reason
        running.cancel()

    run_virtually(main())


def test_a_failure_that_is_followed_at_once_by_another_is_told_as_well() -> None:
    """If a device reports two failures in quick succession, the binder writes an event for each of
    them."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        told.hold("a")
        await rest(1)
        told.write(*(
            DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason=reason)
            for reason in ("XID 79", "GPU is lost")
        ))  # fmt: skip
        await rest(1)
        failed = "its device n1-g0 has failed"
        assert told.messages() == [("a", f"{failed} (GPU is lost)"), ("a", f"{failed} (XID 79)")]
        running.cancel()

    run_virtually(main())


def test_every_pod_of_a_burst_gets_its_event_once_bindings_leave_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bindings have priority over Kubernetes events. After a burst of bindings every pod gets its
    event, even if the binder has more events to write than it can remember."""
    monkeypatch.setattr(pod_events, "UNTOLD_MAX", 7)

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        told.pace.in_flight = int(told.pace.limit)
        told.bind(40)
        await rest(10)
        assert told.scheduled() < 20
        told.pace.in_flight = 1  # some binding is always under way
        await rest(5)
        assert told.scheduled() == 40
        running.cancel()

    run_virtually(main())


def test_a_binder_that_restarts_tells_what_the_last_one_could_not_and_nothing_twice() -> None:
    """A restarted binder writes no Kubernetes event twice. If its predecessor left events
    unwritten, the new binder writes only the events about recent bindings."""

    async def main() -> None:
        told = Told()
        told.bind(5)
        for _ in range(2):
            running = asyncio.create_task(told.run())
            await rest(5)
            assert told.scheduled() == 5
            running.cancel()
            told.begin_anew()
        for each in told.ask("GET", EVENTS)["items"]:
            told.ask("DELETE", f"{EVENTS}/{each['metadata']['name']}")
        await rest(RECALLED_S)
        running = asyncio.create_task(told.run())
        await rest(5)
        assert told.scheduled() == 0
        running.cancel()

    run_virtually(main())


def test_an_event_waits_for_an_api_server_that_is_away() -> None:
    """If the API server is unreachable, the binder writes a pending event once it is reachable
    again."""

    async def main() -> None:
        link = DeafKubeLink()
        told = Told(link)
        running = asyncio.create_task(told.run())
        await rest(1)
        link.up = False
        told.bind(3)
        await rest(120)
        link.up = True
        await rest(5)
        assert told.scheduled() == 3
        running.cancel()

    run_virtually(main())


def test_the_event_of_a_pod_that_waits_is_renewed_before_it_expires() -> None:
    """The binder renews a pending pod's event before the event expires, and recreates an expired
    event. Two binders together renew an event no more often than one binder alone."""

    async def main() -> None:
        told = Told()
        pod = told.refuse("a")
        running = [asyncio.create_task(told.run())]
        told.begin_anew()
        running.append(asyncio.create_task(told.run()))
        await rest(10)
        (before,) = told.ask("GET", EVENTS)["items"]
        await rest(2 * RENEW_S)
        (event,) = told.ask("GET", EVENTS)["items"]
        assert event["count"] in (2, 3)
        assert event["lastTimestamp"] > before["lastTimestamp"]
        told.ask("DELETE", f"{EVENTS}/{event['metadata']['name']}")
        await rest(RENEW_S)
        assert len(told.messages()) == 1
        told.write(placed(pod, "n1", [share("n1-g0")], name="a"))
        (count,) = told.counts().values()
        await rest(2 * RENEW_S)
        assert [*told.counts().values()] == [count]
        for each in running:
            each.cancel()

    run_virtually(main())


def test_events_that_the_api_server_keeps_failing_delay_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the API server keeps rejecting some Kubernetes events, the binder still writes all other
    events. It writes the rejected events once the API server accepts them."""
    monkeypatch.setattr(FailingKubeApi, "pods", {"a", "b"})

    async def main() -> None:
        told = Told(api=FailingKubeApi)
        running = asyncio.create_task(told.run())
        await rest(1)
        for name in "ab":
            told.refuse(name)
        await rest(60)
        for first in range(0, 30, 3):
            told.bind(3, first)
            await rest(PAUSE_MAX_S + 1)
            assert told.scheduled() == first + 3
        FailingKubeApi.pods.clear()
        await rest(60)
        assert {"a", "b"} <= {name for name, _ in told.messages()}
        (condition,) = told.ask("GET", f"{PODS}/a")["status"]["conditions"]
        assert condition["type"] == "PodScheduled"
        running.cancel()

    run_virtually(main())


def test_events_of_all_waiting_pods_are_renewed_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each round the binder renews the events of a limited number of pending pods. The next
    round continues with the remaining pods."""
    monkeypatch.setattr(pod_events, "RENEWED_MAX", 1)
    monkeypatch.setattr(pod_events, "RENEW_SLOTS", 1)

    async def main() -> None:
        told = Told()
        for name in "ab":
            told.refuse(name)
        running = asyncio.create_task(told.run())
        await rest(1)
        for each in told.ask("GET", EVENTS)["items"]:
            told.ask("DELETE", f"{EVENTS}/{each['metadata']['name']}")
        await rest(2.5 * RENEW_SLOT_S)
        assert [name for name, _ in told.messages()] == ["a", "b"]
        running.cancel()

    run_virtually(main())


def test_an_idle_pod_gets_one_event_for_each_idle_period(golden: Golden) -> None:
    """An idle pod gets one Kubernetes event, also from a binder that restarts. If the pod works and
    then is idle again, the event is counted again."""

    async def main() -> None:
        told = Told()
        running = asyncio.create_task(told.run())
        uid = told.hold("a")
        told.write(looking("2h", action="reclaim", below=5))

        async def hour(cores: int) -> None:
            seconds = 3_600
            moment = told.server.last_revision * 3_600
            used = ShareUsed(
                pod=uid, namespace="default", name="a", container="main", device="n1-g0",
                seconds=seconds, memory_mib=1_000, memory_mib_seconds=0, memory_mib_peak=10,
                cores_seconds=cores * seconds, cores_peak=cores,
            )  # fmt: skip
            data = UsageRecorded(node="n1", seconds=seconds, shares=(used,))
            time = text_of(moment * SECOND)
            draft = Draft(subject_of(data), f"hour-{moment}", encode(event_of(data, time)))
            told.server.append([draft], {}, role="intake", writer="intake")
            await rest(5)

        for cores in (0, 0, 0):
            await hour(cores)
        (message,) = (each for _, each in told.messages())
        assert told.event("Idle")["type"] == "Warning"
        running.cancel()
        told.begin_anew()
        running = asyncio.create_task(told.run())
        await hour(0)
        assert told.counts() == {message: 1}
        for cores in (80, 0, 0, 0):
            await hour(cores)
        assert told.counts() == {message: 2}
        golden({"idle": message})
        running.cancel()

    run_virtually(main())
