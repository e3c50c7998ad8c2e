"""What a live pod asked for, read from the ledger: its submission, and what changed since."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from apportion.core.explain.answers import PodAnswer
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import Record
from apportion_schemas import Event, EventError, PodChanged, PodGone, PodSubmitted, UnknownEvent
from apportion_schemas.catalogue import SUBJECTS, token


class Dropped(Exception):
    """The ledger was trimmed, and what the pod asked for went with its beginning."""


class Ended(Exception):
    """The pod has ended since it was looked up."""


class Submission(NamedTuple):
    """Who submitted a pod and what it asks for now, as of the revision that told of it last."""

    source: str
    data: PodSubmitted
    revision: int


def subject_of_pod(uid: str) -> str:
    """Where the ledger tells of the pod: its submission, its changes, its end."""
    return f"{SUBJECTS}.workload.{token(uid)}"


async def submission_of(ledger: JetStreamLedger, pod: PodAnswer) -> Submission:
    """The pod's submission, with devices, labels, gates and host amounts as they are now.

    Raises:
        Dropped: it is not in the ledger any more. Ended: the pod is not live. LedgerError.
    """
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
            return  # whoever folds says so
        if isinstance(event.data, PodSubmitted | PodChanged | PodGone):
            found.append(event)

    subjects = (subject_of_pod(pod.uid),)
    following = await ledger.follow(take, start=await ledger.first_revision(), subjects=subjects)
    try:
        await following.caught_up()
    finally:
        await following.stop()
    if found and isinstance(found[-1].data, PodGone):
        raise Ended(f"{pod.namespace}/{pod.name} has ended")
    if not found or not isinstance(found[0].data, PodSubmitted):
        raise Dropped(
            f"the ledger has dropped what {pod.namespace}/{pod.name} asked for; delete it and "
            "submit its manifest"
        )
    data = found[0].data
    if len(found) > 1:
        data = _changed(data, found[-1].data)
    # A pod that was resized asks for what it was given, which other subjects than its own tell.
    shape = msgspec.structs.replace(data.shape, asks=pod.asks)
    return Submission(found[0].source, msgspec.structs.replace(data, shape=shape), newest)


def _changed(submitted: PodSubmitted, change: PodChanged) -> PodSubmitted:
    node = msgspec.structs.replace(
        submitted.shape.node, cpu_milli=change.cpu_milli, memory_mib=change.memory_mib
    )
    shape = msgspec.structs.replace(submitted.shape, node=node)
    return msgspec.structs.replace(submitted, shape=shape, labels=change.labels, gates=change.gates)
