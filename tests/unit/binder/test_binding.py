"""Tests of how the binder handles events that the ledger delivers. The binder acts on the current
state, not on what the delivered event says."""

import asyncio
import json
from datetime import datetime, timedelta

import pytest
from msgspec import structs

from apportion.binder.binding import BACK_OFF, TRIES_MAX, TURN, Binding, Bound, Failed, Outcome
from apportion.core.ledger.handlers.turns import AT_ALLOCATE, handing_out
from apportion.core.ledger.moments import micros_of
from apportion.core.ledger.rationale import placement_of
from apportion.core.ledger.state import GroupState, NodeState, Phase, PodState, State
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import (
    BindFailed,
    Device,
    Event,
    FormatEnabled,
    Host,
    NodeObserved,
    NodeReported,
    PlacementVoided,
    PodBound,
    PodEvicted,
    PodPlaced,
    PodResized,
    PodSubmitted,
    Score,
    Shape,
    Share,
    decode,
    encode,
)
from apportion_schemas.quantities import Payload

PLACED = PodPlaced(
    pod="p", namespace="d", name="p", attempt=3, node="n", shares=(), score=Score(node="n", total=0)
)

EVICTED = PodEvicted(
    pod="p", namespace="d", name="p", attempt=3, node="n", priority=0, beneficiary="h",
    beneficiary_name="d/h", beneficiary_priority=9, nominated="n", reason="preempted",
)  # fmt: skip
RESIZED = PodResized(
    pod="p", namespace="d", name="p", attempt=3, node="n", asked=8, shares=PLACED.shares
)
SUBJECT = "apportion.v1.placement.n"


class Answers:
    """A fake of the cluster in which the binder binds pods. It returns the test's answers in order
    and counts the calls."""

    def __init__(self, *outcomes: Outcome | None) -> None:
        self._outcomes = list(outcomes)
        self.asked = 0
        self.expected = PLACED
        self.announced: list[int | None] = []

    async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:
        """Assert that the eviction is the expected one, and return the next answer."""
        assert structs.replace(evicted, notice_s=0) == EVICTED
        self.announced.append(later)
        self.asked += 1
        outcome = self._outcomes.pop(0)
        assert outcome is None or isinstance(outcome, Failed)
        return outcome

    async def resize(self, resized: PodResized) -> Failed | None:
        """Assert that the resize is the expected one, and return the next answer."""
        assert resized == RESIZED
        self.asked += 1
        outcome = self._outcomes.pop(0)
        assert outcome is None or isinstance(outcome, Failed)
        return outcome

    async def bind(self, placed: PodPlaced) -> Outcome:
        """Assert that the placement is the expected one, and return the next answer."""
        assert placed == self.expected
        self.asked += 1
        outcome = self._outcomes.pop(0)
        assert isinstance(outcome, Bound | Failed)
        return outcome


class Handed:
    """A delivered ledger record. It remembers whether the binder acknowledged it or asked for
    redelivery."""

    def __init__(self, record: Record, attempt: int = 1) -> None:
        self.record = record
        self.attempt = attempt
        self.answer = ""

    async def ack(self) -> None:
        self.answer = "ack"

    async def retry(self, delay_s: float) -> None:
        self.answer = f"retry in {delay_s}"

    async def progress(self) -> None:
        """Fail the test, since the binder must not report progress on a delivery."""
        raise AssertionError


class Desk:
    """A `Binding` that handles deliveries to the binder. In its state, pod p is placed at revision
    7."""

    def __init__(self, *outcomes: Outcome | None) -> None:
        submitted = PodSubmitted(uid="p", namespace="d", name="p", shape=Shape(), dialect="x")
        self.pod = PodState(submitted, b"", 1, "", attempt=3)
        self.pod.phase, self.pod.placed_revision = Phase.PLACED, 7
        self.pod.placement = placement_of(PLACED)
        node = NodeState("n", pods={"p": self.pod})
        self.state = State(revision=9, pods={"p": self.pod}, nodes={"n": node})
        self.target = Answers(*outcomes)
        self.drafts: list[Draft] = []
        self._pen = Publisher("scheduler", SystemClock(), self._append)
        self.binding = Binding(
            self.state,
            self.target,
            Publisher("binder", SystemClock(), self._append),
            clock=SystemClock(),
            metrics=Metrics(),
        )

    async def _append(self, draft: Draft) -> Appended:
        self.drafts.append(draft)
        return Appended(len(self.drafts))

    async def settle(
        self, data: Payload = PLACED, *, revision: int = 7, attempt: int = 1
    ) -> Handed:
        """Deliver the event to the binder, and return the delivery."""
        draft = self._pen.draft(data, event_id="x", basis=0)
        return await self.hand(draft.payload, draft.subject, revision, attempt)

    async def hand(
        self, payload: bytes, subject: str = SUBJECT, revision: int = 7, attempt: int = 1
    ) -> Handed:
        """Deliver these bytes to the binder. Return the delivery, whose `answer` says if the binder
        acknowledged it."""
        handed = Handed(Record(revision, subject, payload), attempt)
        await self.binding.settle(handed)
        return handed

    @property
    def said(self) -> list[Payload]:
        """Return the events that the binding appended."""
        return [decode(draft.payload, subject=draft.subject).data for draft in self.drafts]


async def test_a_live_placement_is_bound() -> None:
    """The binder binds a current placement and appends PodBound. It then acknowledges the
    delivery."""
    desk = Desk(Bound())
    handed = await desk.settle()
    assert desk.said == [PodBound(pod="p", node="n", attempt=3)]
    event = decode(desk.drafts[0].payload, subject=desk.drafts[0].subject)
    assert (event.id, event.basis, event.cause) == ("p/3/bound", 9, 7)
    assert handed.answer == "ack"


@pytest.mark.parametrize("why", ["gone", "bound", "allocated", "pending", "other", "failing"])
async def test_what_is_no_longer_so_is_passed_over(why: str) -> None:
    """If the pod is gone, already bound, placed elsewhere or given up, the binder acknowledges the
    placement without binding the pod."""
    desk = Desk()
    match why:
        case "gone":
            del desk.state.pods["p"]
        case "other":
            desk.pod.placed_revision = 8
        case "failing":
            desk.state.failing["p"] = "given up"
        case phase:
            desk.pod.phase = Phase(phase)
    handed = await desk.settle()
    assert (desk.target.asked, desk.drafts, handed.answer) == (0, [], "ack")


async def test_a_pod_with_a_share_waits_a_while_for_an_agent_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a node's agent is silent, the binder holds back pods with shares for a limited time. It
    binds pods without shares at once."""
    desk = Desk(Bound(), Bound())
    node = desk.state.nodes["n"]
    node.silent = "2026-01-01T00:00:00Z"
    node.observed = NodeObserved(node="n", ready=True, cpu_milli=1, memory_mib=1, pods=1)
    share = Share(container="main", device="GPU-1", memory_mib=700, cores=0)
    held = structs.replace(PLACED, shares=(share,))
    assert (await desk.settle(held)).answer == f"retry in {TURN.after(1)}"
    assert (desk.target.asked, desk.said) == (0, [])
    assert (await desk.settle()).answer == "ack"
    monkeypatch.setattr("apportion.binder.binding.HOLD_S", 0.0)
    desk.target.expected = held
    assert (await desk.settle(held)).answer == "ack"


async def test_a_held_pod_waits_for_the_rest_of_its_gang() -> None:
    """The binder binds a pod of a large gang only once the gang's last batch is placed. Before
    that, it records no failure."""
    desk = Desk(Bound())
    desk.pod.submitted = structs.replace(desk.pod.submitted, group="d/gang")
    gang = desk.state.groups["d/gang"] = GroupState(pods={"p": desk.pod}, held={"p": None})
    assert (await desk.settle(attempt=3)).answer == f"retry in {TURN.after(3)}"
    assert (desk.target.asked, desk.said) == (0, [])
    gang.held.clear()
    assert (await desk.settle(attempt=4)).answer == "ack"
    assert desk.said == [PodBound(pod="p", node="n", attempt=3)]


async def test_whose_turn_has_not_come_waits_and_says_so_once() -> None:
    """On a node without CDI, the binder binds a pod only when the kubelet has started the
    previously bound pod. It records the wait once."""
    desk = Desk(Bound())
    card = Device(
        id="GPU-1", index=0, family="nvidia", model="T4", memory_mib=9000, physical_memory_mib=9000
    )
    host = handing_out(Host(cpu_milli=1, memory_mib=1), AT_ALLOCATE)
    node = desk.state.nodes["n"]
    node.reported = NodeReported(node="n", devices=(card,), host=host)
    share = Share(container="main", device="GPU-1", memory_mib=700, cores=0)
    desk.pod.placement = placement_of(structs.replace(PLACED, shares=(share,)))
    first = PodState(structs.replace(desk.pod.submitted, uid="first"), b"", 1, "")
    first.phase, first.placed_revision, first.placement = Phase.BOUND, 6, desk.pod.placement
    node.pods["first"] = first
    assert (await desk.settle()).answer == f"retry in {TURN.after(1)}"
    (failed,) = desk.said
    assert isinstance(failed, BindFailed)
    assert (failed.final, desk.target.asked) == (False, 0)
    assert failed.message
    desk.pod.last_failure = failed.message  # as the fold has it at that time
    assert (await desk.settle(attempt=9)).answer == f"retry in {TURN.after(9)}"
    assert len(desk.said) == 1
    first.phase = Phase.ALLOCATED
    assert (await desk.settle(attempt=10)).answer == "ack"
    assert desk.said[1:] == [PodBound(pod="p", node="n", attempt=3)]


async def test_the_reason_of_a_wait_is_recorded_once() -> None:
    """While a pod waits for something, such as a node lock, the binder retries and records the
    reason once. If the reason changes, the binder records the new one."""
    x, y = (Failed(f"waiting for {what}", final=False, waits=True) for what in "xy")
    desk = Desk(x, x, x, y)
    for attempt in (1, 2, TRIES_MAX + 1):
        await desk.settle(attempt=attempt)
        desk.pod.last_failure = x.message  # as the fold has it at that time
    (failed,) = desk.said
    assert isinstance(failed, BindFailed)
    assert (failed.message, failed.final) == (x.message, False)
    await desk.settle(attempt=3)
    assert len(desk.said) == 2


async def test_other_events_of_the_channel_are_passed_over() -> None:
    """The binder acknowledges an event of another type, such as PlacementVoided, and does nothing
    else."""
    desk = Desk()
    handed = await desk.settle(PlacementVoided(pod="p", attempt=3, node="n", reason="x"))
    assert (desk.drafts, handed.answer) == ([], "ack")


async def test_bytes_that_are_no_event_do_not_block_the_queue() -> None:
    """The binder acknowledges a delivery that is no valid event, and does nothing else."""
    desk = Desk()
    handed = await desk.hand(b"\xff{", revision=8)
    assert (desk.drafts, handed.answer) == ([], "ack")
    assert desk.binding.not_ready() == []


def written(**attributes: object) -> bytes:
    """Encode the current placement event with these fields added or replaced, as another build of
    Apportion might."""
    event = Event(id="x", source="scheduler", time="2026-01-01T00:00:00.000000Z", data=PLACED)
    return json.dumps(json.loads(encode(event)) | attributes).encode()


@pytest.mark.parametrize("revision", [7, 8], ids=["live", "whatever the fold holds"])
async def test_what_a_newer_build_placed_is_left_to_it(revision: int) -> None:
    """If a placement has a newer format that an operator has enabled, an older binder asks for
    redelivery. It also reports that it must be upgraded."""
    desk = Desk()
    desk.state.rules.enable(1, FormatEnabled(format="PodPlaced", version=4, by="ada"))
    handed = await desk.hand(written(schemaversion=4), revision=revision)
    assert (desk.drafts, handed.answer) == ([], "retry in 0")
    (reason,) = desk.binding.not_ready()
    assert f"revision {revision} on {SUBJECT}" in reason
    assert "schemaversion 4" in reason
    assert "upgrade Apportion here" in reason


async def test_what_no_operator_has_enabled_is_passed_over() -> None:
    """The binder acknowledges a placement in a format that no operator has enabled, and does
    nothing else."""
    desk = Desk()
    handed = await desk.hand(written(schemaversion=4), revision=8)
    assert (desk.drafts, handed.answer) == ([], "ack")
    assert desk.binding.not_ready() == []


async def test_what_the_fold_holds_and_this_binder_cannot_read_is_left() -> None:
    """If the state has a placement that the binder cannot decode, the binder asks for redelivery.
    It reports that it is not ready, and names the unknown field."""
    desk = Desk()
    handed = await desk.hand(written(data={"zone": "a"}))
    assert (desk.drafts, handed.answer) == ([], "retry in 0")
    assert "zone" in desk.binding.not_ready()[0]


async def test_a_failure_for_now_is_recorded_and_tried_again_later() -> None:
    """After a temporary failure the binder appends BindFailed and retries with back-off. The event
    has a new id for each attempt."""
    desk = Desk(Failed("busy", final=False), Failed("busy", final=False))
    first, second = await desk.settle(), await desk.settle(attempt=2)
    assert [draft.id for draft in desk.drafts] == ["p/3/bind-failed/1", "p/3/bind-failed/2"]
    assert desk.said[0] == BindFailed(pod="p", node="n", attempt=3, message="busy", final=False)
    assert (first.answer, second.answer) == ("retry in 0.5", "retry in 1.0")


async def test_a_failure_for_good_is_not_tried_again() -> None:
    """If a binding can never succeed or too many attempts have failed, the binder records the
    failure as final and does not retry."""
    desk = Desk(Failed("no such pod", final=True), Failed("busy", final=False))
    for handed in (await desk.settle(), await desk.settle(attempt=TRIES_MAX)):
        assert handed.answer == "ack"
    assert [event.final for event in desk.said if isinstance(event, BindFailed)] == [True, True]


async def test_what_nobody_answered_is_never_given_up() -> None:
    """If a binding gets no answer, the binder never records the failure as final, because the pod
    may have been bound."""
    desk = Desk(Failed("no answer", final=False, unknown=True))
    handed = await desk.settle(attempt=TRIES_MAX)
    assert handed.answer == f"retry in {BACK_OFF.longest_s}"
    (event,) = desk.said
    assert isinstance(event, BindFailed)
    assert not event.final


async def test_an_endless_message_is_cut() -> None:
    """The binder cuts an overlong failure message to the length that an event may have."""
    desk = Desk(Failed("x" * 100_000, final=True))
    await desk.settle()
    (event,) = desk.said
    assert isinstance(event, BindFailed)
    assert len(event.message) == 1024


async def test_a_target_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a binding gets no answer, it times out. The binder records the failure and retries."""

    class Silent:
        async def bind(self, placed: PodPlaced) -> Outcome:
            await asyncio.Event().wait()
            raise AssertionError(placed)

        async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:
            await asyncio.Event().wait()
            raise AssertionError(evicted, later)

        async def resize(self, resized: PodResized) -> Failed | None:
            await asyncio.Event().wait()
            raise AssertionError(resized)

    monkeypatch.setattr("apportion.binder.binding.BIND_TIMEOUT_S", 0.01)
    desk = Desk()
    desk.binding = Binding(
        desk.state,
        Silent(),
        Publisher("binder", SystemClock(), desk._append),
        clock=SystemClock(),
        metrics=Metrics(),
    )
    handed = await desk.settle()
    assert handed.answer.startswith("retry")
    assert isinstance(desk.said[0], BindFailed)


async def test_an_eviction_is_tried_until_it_has_effect() -> None:
    """The binder retries an eviction until the cluster accepts it. It appends no event."""
    desk = Desk(Failed("forbidden", final=False), None)
    desk.state.evictions["p"] = EVICTED
    assert (await desk.settle(EVICTED)).answer == f"retry in {BACK_OFF.after(1)}"
    assert (await desk.settle(EVICTED, attempt=2)).answer == "ack"
    assert (desk.target.asked, desk.drafts) == (2, [])


async def test_a_pod_with_notice_is_evicted_later() -> None:
    """If an eviction has a notice period, the binder announces the time of the eviction and evicts
    the pod at that time. If the announcement fails, the binder repeats it."""

    class Earlier(SystemClock):
        def now(self) -> datetime:
            return super().now() - timedelta(seconds=61)

    desk = Desk(Failed("forbidden", final=False), None, None)
    evicted = desk.state.evictions["p"] = structs.replace(EVICTED, notice_s=60)
    assert (await desk.settle(evicted)).answer == f"retry in {BACK_OFF.after(1)}"
    draft = Publisher("scheduler", SystemClock(), desk._append).draft(
        evicted, event_id="x", basis=0
    )
    answer = (await desk.hand(draft.payload, draft.subject, attempt=2)).answer
    assert 50 < float(answer.removeprefix("retry in ")) <= 60
    sent = decode(draft.payload, subject=draft.subject).time
    assert desk.target.announced[1] == (micros_of(sent) or 0) + 60_000_000
    draft = Publisher("scheduler", Earlier(), desk._append).draft(evicted, event_id="x", basis=0)
    assert (await desk.hand(draft.payload, draft.subject, attempt=3)).answer == "ack"
    assert desk.target.announced[2] is None


async def test_an_eviction_that_is_over_is_passed_over() -> None:
    """The binder acknowledges an eviction that is out of date, without evicting the pod."""
    desk = Desk()
    assert (await desk.settle(EVICTED)).answer == "ack"
    assert desk.target.asked == 0


async def test_a_target_that_never_answers_an_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an eviction gets no answer, the binder retries it."""
    monkeypatch.setattr("apportion.binder.binding.BIND_TIMEOUT_S", 0.01)
    desk = Desk()

    class Silent(Answers):
        async def evict(self, evicted: PodEvicted, later: int | None = None) -> Failed | None:
            await asyncio.Event().wait()
            raise AssertionError(evicted, later)

    desk.state.evictions["p"] = EVICTED
    desk.binding = Binding(
        desk.state,
        Silent(),
        Publisher("binder", SystemClock(), desk._append),
        clock=SystemClock(),
        metrics=Metrics(),
    )
    assert (await desk.settle(EVICTED)).answer == f"retry in {BACK_OFF.after(1)}"


async def test_a_resize_is_told_until_the_pod_says_it() -> None:
    """The binder retries a resize until the cluster accepts it or the pod is gone."""
    gone, busy = Failed("no such pod", final=True), Failed("busy", final=False)
    desk = Desk(busy, None, gone)
    assert (await desk.settle(RESIZED)).answer == f"retry in {BACK_OFF.after(1)}"
    assert (await desk.settle(RESIZED, attempt=2)).answer == "ack"
    assert (await desk.settle(RESIZED, attempt=3)).answer == "ack"
    assert (desk.target.asked, desk.drafts) == (3, [])


async def test_a_resize_that_another_one_followed_is_passed_over() -> None:
    """The binder acknowledges a resize that is out of date, without changing the pod."""
    desk = Desk()
    desk.pod.placement = placement_of(
        structs.replace(PLACED, shares=(Share(container="c", device="g", memory_mib=1, cores=0),))
    )
    assert (await desk.settle(RESIZED)).answer == "ack"
    desk.pod.placement = None
    assert (await desk.settle(RESIZED)).answer == "ack"
    assert desk.target.asked == 0


async def test_a_target_that_never_answers_a_resize(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a resize gets no answer, the binder retries it."""
    monkeypatch.setattr("apportion.binder.binding.BIND_TIMEOUT_S", 0.01)

    class Silent(Answers):
        async def resize(self, resized: PodResized) -> Failed | None:
            await asyncio.Event().wait()
            raise AssertionError(resized)

    desk = Desk()
    desk.binding = Binding(
        desk.state,
        Silent(),
        Publisher("binder", SystemClock(), desk._append),
        clock=SystemClock(),
        metrics=Metrics(),
    )
    assert (await desk.settle(RESIZED)).answer == f"retry in {BACK_OFF.after(1)}"
