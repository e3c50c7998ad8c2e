"""What a live pod asked for, read from the ledger: its submission, and what changed since."""

from __future__ import annotations

import msgspec

from apportion.core.explain.answers import PodAnswer
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import Record
from apportion_schemas import Event, PodChanged, PodSubmitted, decode
from apportion_schemas.catalogue import SUBJECTS, token


class Dropped(Exception):
    """The ledger was trimmed, and what the pod asked for went with its beginning."""


async def submission_of(ledger: JetStreamLedger, pod: PodAnswer) -> Event:
    """The event of the pod's submission, with labels, gates and host amounts as they are now.

    Raises:
        Dropped: it is not in the ledger any more. LedgerError.
    """
    found: list[Event] = []

    def take(record: Record) -> None:
        event = decode(record.payload, subject=record.subject)
        if isinstance(event.data, PodSubmitted | PodChanged):
            found.append(event)

    subject = f"{SUBJECTS}.workload.{token(pod.uid)}"
    following = await ledger.follow(take, start=await ledger.first_revision(), subjects=(subject,))
    try:
        await following.caught_up()
    finally:
        await following.stop()
    if not found or not isinstance(found[0].data, PodSubmitted):
        raise Dropped(
            f"the ledger has dropped what {pod.namespace}/{pod.name} asked for; delete it and "
            "submit its manifest"
        )
    first, data = found[0], found[0].data
    if len(found) > 1:
        data = _changed(data, found[-1].data)
    return msgspec.structs.replace(first, data=data)


def _changed(submitted: PodSubmitted, change: PodChanged) -> PodSubmitted:
    node = msgspec.structs.replace(
        submitted.shape.node, cpu_milli=change.cpu_milli, memory_mib=change.memory_mib
    )
    shape = msgspec.structs.replace(submitted.shape, node=node)
    return msgspec.structs.replace(submitted, shape=shape, labels=change.labels, gates=change.gates)
