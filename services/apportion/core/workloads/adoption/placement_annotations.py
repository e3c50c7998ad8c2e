"""Format a placement as annotations of its pod: our own, and those that a device plugin reads.

The binder writes them when it binds the pod. The plugin's annotations are in the pod's dialect, so
the plugin finds what its own scheduler would have written. Invariant: our annotations suffice to
restore a lost ledger, and every binder gives the same text for the same input."""

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
# value of `RESIZED_CORES` on a resized pod: the new cores apply to later processes
NEXT_PROCESS = "next-process"
# an API server too old to check the uid of a binding may bind another pod of the same name
UID = f"{PREFIX}pod-uid"

# when an evicted pod is deleted, in RFC 3339; the pod can read it through the downward API
DELETED_AT = f"{PREFIX}deleted-at"

_encode = msgspec.json.Encoder().encode
_decode = from_outside(msgspec.json.Decoder(tuple[Share, ...]).decode)


def shares_text(shares: tuple[Share, ...]) -> str:
    """Format the shares as compact JSON, with the same fields as in events."""
    return _encode(shares).decode()


def read_shares(annotations: Mapping[str, str]) -> tuple[Share, ...]:
    """Return the shares in a pod's annotations; empty if none. Raises ManifestError."""
    text = annotations.get(SHARES, "")
    if not text:
        return ()
    field = within("metadata.annotations", SHARES)
    try:
        shares = _decode(text)
    except msgspec.MsgspecError as error:
        raise ManifestError(field, text, f"is not valid ({error})", "remove it") from None
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
    served: bool = False,
) -> dict[str, str]:
    """Return all annotations to write when the pod is bound.

    `revision` is the placement's, `now_ns` Unix time. With `served`, the annotations look as if the
    plugin had already served the pod, so that no plugin of another system does. Raises KeyError if
    a device is missing."""
    ours = {SHARES: shares_text(placed.shares), ATTEMPT: str(placed.attempt), UID: placed.pod}
    it = PlacedPod(pod, placed, devices, now_ns, config=dialect_config(configuration))
    ours |= {REVISION: str(revision), DIALECT: pod.dialect}
    return ours | render(it, served=served)
