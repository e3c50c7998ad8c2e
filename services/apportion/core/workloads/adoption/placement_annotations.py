"""A placement as annotations of its pod: ours, and those that its dialect's device plugin reads.

They travel in the one write that binds the pod, so a bound pod has them or was not bound by us. An
unmodified device plugin of the pod's own system finds there what its own scheduler would have
written: a pod is rendered in the dialect that it was read in, and in no other.

Invariant: ours say all that the ledger says of the placement's shares, so that a lost ledger can be
written again from them. The same placement, devices, configuration and time make the same text, on
any binder."""

from collections.abc import Mapping

import msgspec

from apportion.core.workloads.dialects.dialect import PlacedPod
from apportion.core.workloads.dialects.listing import render
from apportion.core.workloads.dialects.names import dialect_config
from apportion.core.workloads.document import ManifestError, within
from apportion_schemas import Configuration, Device, PodPlaced, PodSubmitted, Share
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import CONTAINERS_MAX, COUNT_MAX

PREFIX = "apportion.dev/"
SHARES = f"{PREFIX}shares"
ATTEMPT = f"{PREFIX}attempt"
RESIZED_CORES = f"{PREFIX}resized-cores"
NEXT_PROCESS = "next-process"
"""Value of `RESIZED_CORES` on a pod that was resized: its new cores hold for later processes."""
UID = f"{PREFIX}pod-uid"
"""An API server too old to check the uid of a binding may bind another pod of the same name."""

_encode = msgspec.json.Encoder().encode
_decode = from_outside(msgspec.json.Decoder(tuple[Share, ...]).decode)


def shares_text(shares: tuple[Share, ...]) -> str:
    """Shares as compact JSON, with the fields of the event."""
    return _encode(shares).decode()


def own_annotations(placed: PodPlaced) -> dict[str, str]:
    """What we write on a pod that is bound."""
    return {SHARES: shares_text(placed.shares), ATTEMPT: str(placed.attempt), UID: placed.pod}


def read_shares(annotations: Mapping[str, str]) -> tuple[Share, ...]:
    """The shares that a pod's annotations speak of; empty where they say nothing.

    Raises ManifestError: they cannot be read."""
    text = annotations.get(SHARES, "")
    if not text:
        return ()
    field = within("metadata.annotations", SHARES)
    try:
        shares = _decode(text)
    except msgspec.MsgspecError as error:
        raise ManifestError(field, text, f"is not what we wrote ({error})", "remove it") from None
    if len(shares) > CONTAINERS_MAX * COUNT_MAX:
        raise ManifestError(field, text, "has too many shares", "remove it")
    return shares


REVISION = f"{PREFIX}placement-revision"
DIALECT = f"{PREFIX}dialect"


def annotations_for(
    pod: PodSubmitted,
    placed: PodPlaced,
    *,
    revision: int,
    devices: Mapping[str, Device],
    now_ns: int,
    configuration: Configuration,
) -> dict[str, str]:
    """The annotations of a pod that is bound now.

    `revision` is the placement's, `devices` are the node's by their id, `now_ns` is Unix time in
    nanoseconds.

    Raises KeyError: a share is of a device that the node has not."""
    ours = own_annotations(placed) | {REVISION: str(revision), DIALECT: pod.dialect}
    return ours | render(
        PlacedPod(pod, placed, devices, now_ns, config=dialect_config(configuration))
    )
