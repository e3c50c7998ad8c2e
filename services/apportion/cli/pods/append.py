"""Append pods in atomic batches; pods that are already live are left unchanged.

The id of a submission is made of the pod's uid, and the event must be the first on its subject. So
a retry never stores a submission twice. A gang is declared in the batch of its first pods."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import uuid4

import msgspec
from msgspec.structs import replace as replaced

from apportion.cli.client.gateway_client import WAIT_S, Gateway
from apportion.cli.client.ledger import appending, person, publish
from apportion.cli.exits import NotFound
from apportion.core.answers.reads import PodAnswer, PodDetail, RevisionAnswer
from apportion.core.explain.text.event_text import limit_name
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.runtime.files.manifests import Wish
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft, Record
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.ledger.reading import following
from apportion_schemas import (
    Event,
    EventError,
    PodChanged,
    PodGone,
    PodGroupObserved,
    PodSubmitted,
    QueueObserved,
    QuotaObserved,
    UnknownEvent,
    decode,
    subject_of,
)
from apportion_schemas.catalogue import SUBJECTS, token
from apportion_schemas.envelope import InvalidEvent, UnreadableEvent

BATCH = 250
IN_FLIGHT = 2
ASK_ONE_BY_ONE = 16  # more pods than this are looked up in lists of their namespaces

Progress = Callable[[int], None]


class Submitted(msgspec.Struct, frozen=True):
    """A pod in the ledger, with the revision of its submission."""

    namespace: str
    name: str
    uid: str
    revision: int

    @property
    def full_name(self) -> str:
        """Return the pod's name as users see it: `namespace/name`."""
        return f"{self.namespace}/{self.name}"


def look_up(
    gateway: Gateway, pods: Sequence[PodDraft], *, at_least: int
) -> tuple[int, dict[str, PodAnswer]]:
    """Return the gateway's revision, and the live pods among `pods`, keyed by `namespace/name`.

    The gateway first reads the ledger up to `at_least`. Raises Unreachable, Wrong."""
    query = {"at_least": at_least, "wait_s": WAIT_S}
    basis = gateway.ask("revision", answer=RevisionAnswer, query=query).revision
    live: dict[str, PodAnswer] = {}
    if len(pods) <= ASK_ONE_BY_ONE:
        for pod in pods:
            with contextlib.suppress(NotFound):
                found = gateway.ask("pods", pod.namespace, pod.name, answer=PodDetail).pod
                live[f"{found.namespace}/{found.name}"] = found
        return basis, live
    wanted = {f"{pod.namespace}/{pod.name}" for pod in pods}
    for namespace in sorted({pod.namespace for pod in pods}):
        for page in gateway.every("pods", PodAnswer, {"namespace": namespace}):
            live.update(
                (name, pod)
                for pod in page.items
                if (name := f"{pod.namespace}/{pod.name}") in wanted
            )
    return basis, live


async def append(
    ledger: JetStreamLedger, wish: Wish, *, basis: int, progress: Progress
) -> list[Submitted]:
    """Append the pods and gangs of `wish`; `progress` gets the number of pods in each batch.

    Raises LedgerError if a batch fails as a whole; other batches may have been appended."""
    done: list[Submitted] = []
    flying: list[asyncio.Task[list[Submitted]]] = []
    async with appending(ledger) as (commit, publisher):

        async def send(payloads: tuple[PodGroupObserved | PodSubmitted, ...]) -> list[Submitted]:
            drafts = [_draft(publisher, payload, basis) for payload in payloads]
            return pods_of(payloads, await commit.append_group(drafts))

        try:
            for payloads in _batched(_ordered(wish)):
                flying.append(asyncio.create_task(send(payloads)))
                if len(flying) == IN_FLIGHT:
                    done += (batch := await flying.pop(0))
                    progress(len(batch))
            for task in flying:
                done += (batch := await task)
                progress(len(batch))
        finally:
            await asyncio.gather(*flying, return_exceptions=True)
    return done


def pods_of(
    payloads: Iterable[PodGroupObserved | PodSubmitted], appended: Iterable[Appended]
) -> list[Submitted]:
    """Return a Submitted for each pod among the payloads, with its revision from `appended`."""
    return [
        Submitted(payload.namespace, payload.name, payload.uid, at.revision or 0)
        for payload, at in zip(payloads, appended, strict=False)
        if isinstance(payload, PodSubmitted)
    ]


def _ordered(wish: Wish) -> Iterator[PodGroupObserved | PodSubmitted]:
    """Yield each gang before its first pod. Gangs without pods come last."""
    left = dict(wish.groups)
    for pod in wish.pods:
        group = left.pop(pod.group, None)
        if group is not None:
            yield group
        yield submitted(pod, str(uuid4()))
    yield from left.values()


def _batched(
    payloads: Iterator[PodGroupObserved | PodSubmitted],
) -> Iterator[tuple[PodGroupObserved | PodSubmitted, ...]]:
    while batch := tuple(itertools.islice(payloads, BATCH)):
        yield batch


def _draft(publisher: Publisher, payload: PodGroupObserved | PodSubmitted, basis: int) -> Draft:
    if isinstance(payload, PodSubmitted):
        draft = publisher.draft(payload, event_id=f"{payload.uid}/submitted", basis=basis)
        return replaced(draft, expect=0)
    return publisher.draft(payload, event_id=f"group/{payload.group}/{uuid4()}", basis=basis)


async def append_limits(
    ledger: JetStreamLedger, limits: Sequence[QueueObserved | QuotaObserved], *, basis: int
) -> dict[str, int]:
    """Append changed queues and quotas; return their revisions. Raises LedgerError, NotFound."""
    said: dict[str, int] = {}
    async with appending(ledger) as (_, publisher):
        for limit in limits:
            before = await stands(ledger, limit)
            if isinstance(before, QuotaObserved) and before.version:
                raise NotFound(
                    f"quota {before.namespace}/{before.quota} belongs to Kubernetes; apply it there"
                )
            if before != limit:
                said[limit_name(limit)] = await publish(publisher, limit, basis=basis)
    return said


async def stands(
    ledger: JetStreamLedger, said: QueueObserved | QuotaObserved | PodGroupObserved
) -> object:
    """Return the newest event on the subject of `said`, or None if no readable one exists."""
    revision = await ledger.last_on_subject(subject_of(said))
    record = await stream.read_record(ledger.wire, revision) if revision else None
    if record is None:
        return None
    # No reader applies an event that it cannot read.
    with contextlib.suppress(UnreadableEvent, InvalidEvent):
        return decode(record.payload, subject=record.subject).data
    return None


async def end(
    ledger: JetStreamLedger, pods: Sequence[tuple[int, PodAnswer]], why: str
) -> dict[str, int]:
    """End the pods. Each is paired with the revision at which it was read. Raises LedgerError."""
    ended: dict[str, int] = {}
    reason = f"{why} by {person('')}"
    async with appending(ledger) as (_, publisher):
        for first in range(0, len(pods), BATCH):
            batch = pods[first : first + BATCH]
            # Not as a group: one pod that has ended already would refuse all of it.
            gone = [
                publisher.publish(
                    PodGone(uid=pod.uid, reason=reason), event_id=f"{pod.uid}/gone", basis=basis
                )
                for basis, pod in batch
            ]
            for (_, pod), at in zip(batch, await asyncio.gather(*gone), strict=True):
                ended[f"{pod.namespace}/{pod.name}"] = at.revision or 0
    return ended


async def replace(
    ledger: JetStreamLedger,
    changed: Sequence[tuple[PodDraft, PodAnswer]],
    groups: dict[str, PodGroupObserved],
    *,
    basis: int,
) -> list[Submitted]:
    """End changed pods and submit their new drafts, in one batch for each gang or single pod.

    Raises LedgerError; NotFound if another client has changed a pod since revision `basis`."""
    units: dict[str, list[tuple[PodDraft, PodAnswer]]] = {}
    for draft, there in changed:
        units.setdefault(draft.group or there.uid, []).append((draft, there))
    done: list[Submitted] = []
    async with appending(ledger) as (commit, publisher):
        for name, unit in units.items():
            new: list[PodGroupObserved | PodSubmitted] = [groups[name]] if name in groups else []
            new += [submitted(draft, str(uuid4())) for draft, _ in unit]
            drafts = [_draft(publisher, payload, basis) for payload in new]
            for _, pod in unit:  # fenced by the last event on the pod
                newest = await ledger.last_on_subject(subject_of_pod(pod.uid))
                if newest > basis:
                    raise NotFound(
                        f"{pod.namespace}/{pod.name} was changed or ended in the meantime, at "
                        f"revision {newest}; run the command again"
                    )
                data = PodGone(uid=pod.uid, reason=f"replaced by {person('')}")
                own_id = f"{pod.uid}/gone/{uuid4()}"  # another writer's end has a different id
                drafts.append(publisher.draft(data, event_id=own_id, basis=basis, expect=newest))
            done += pods_of(new, await commit.append_group(drafts))
    return done


class Dropped(Exception):
    """The error for a pod whose submission was trimmed from the ledger."""


class Ended(Exception):
    """The error for a pod that ended after it was looked up."""


class Submission(NamedTuple):
    """The current submission of a pod."""

    source: str  # who submitted it
    data: PodSubmitted
    revision: int  # of its last change


def subject_of_pod(uid: str) -> str:
    """Return the ledger subject of the pod's submission, changes and end."""
    return f"{SUBJECTS}.workload.{token(uid)}"


async def submission_of(ledger: JetStreamLedger, pod: PodAnswer) -> Submission:
    """Return the pod's submission, updated with the pod's current devices, labels and amounts.

    Raises LedgerError, Dropped if the submission was trimmed, Ended if the pod is not live."""
    found: list[Event] = []
    newest = 0
    rules = await stream.read_rules(ledger.wire)

    def take(record: Record) -> None:
        nonlocal newest
        newest = record.revision
        try:
            event = rules.read(record.revision, record.subject, record.payload)
        except UnknownEvent:
            raise
        except EventError:
            return  # the fold reports it
        if isinstance(event.data, PodSubmitted | PodChanged | PodGone):
            found.append(event)

    start, subjects = await ledger.first_revision(), (subject_of_pod(pod.uid),)
    async with following(ledger, take, start=start, subjects=subjects) as subscription:
        await subscription.caught_up()
    if found and isinstance(found[-1].data, PodGone):
        raise Ended(f"{pod.namespace}/{pod.name} has ended")
    if not found or not isinstance(found[0].data, PodSubmitted):
        raise Dropped(
            f"the submission of {pod.namespace}/{pod.name} was trimmed from the ledger; delete the "
            "pod and submit its manifest"
        )
    data = found[0].data
    node, change = data.shape.node, found[-1].data
    if isinstance(change, PodChanged):
        data = replaced(data, labels=change.labels, gates=change.gates)
        node = replaced(node, cpu_milli=change.cpu_milli, memory_mib=change.memory_mib)
    # A resized pod requests what it was given, which is on other subjects.
    shape = replaced(data.shape, node=node, asks=pod.asks)
    return Submission(found[0].source, replaced(data, shape=shape), newest)
