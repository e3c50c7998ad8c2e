"""Documents that limit: a Volcano Queue and a ResourceQuota, as the events that say the same.

Invariant: what cannot be obeyed is refused by the field that says so.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from apportion.core.dialects import ManifestError
from apportion.core.dialects.errors import within
from apportion.core.dialects.quantity import quantity
from apportion.core.manifests import naming
from apportion.core.manifests.card_quota import card_quota
from apportion.core.manifests.resource_quota import AMOUNT_MAX, extended_limits
from apportion_schemas import QueueObserved, QuotaObserved

MIB: Final = 1 << 20
OPEN: Final = ("", "Open")
STATES: Final = (*OPEN, "Closed", "Closing", "Unknown")
"""Volcano's; only an open queue takes pods."""
QUEUE: Final = ("scheduling.volcano.sh/v1beta1", "Queue")
QUOTA: Final = ("v1", "ResourceQuota")
_UNITS: Final = {"cpu": (1000, 1), "memory": (1, MIB)}
"""CPU is kept in thousandths, memory in MiB, all else in whole units."""


def limit_of(document: object) -> QueueObserved | QuotaObserved | None:
    """What a document of either kind says; None for one of another kind.

    Raises:
        ManifestError: it cannot be obeyed.
    """
    if not isinstance(document, dict):
        return None
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind == QUEUE:
        return _queue(document)
    return _quota(document) if kind == QUOTA else None


def _queue(document: Mapping[str, Any]) -> QueueObserved:
    metadata, spec = _parts(document)
    weight = spec.get("weight", 1)
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= AMOUNT_MAX:
        raise ManifestError("spec.weight", weight, "is no weight", "write a whole number from 0")
    capability = spec.get("capability") or {}
    if not isinstance(capability, dict):
        raise ManifestError("spec.capability", capability, "is no object", "write name: amount")
    _refuse_state(spec)
    return QueueObserved(
        queue=naming.subdomain(str(metadata.get("name") or ""), "metadata.name"),
        weight=weight,
        capability={name: _amount(name, value) for name, value in sorted(capability.items())},
        open=_state(document) in OPEN,
        cards=card_quota(metadata.get("annotations") or {}),
    )


def _refuse_state(spec: Mapping[str, Any]) -> None:
    """Volcano has it in the status: a queue that was to be closed so would take pods."""
    state = spec.get("state")
    if state not in (None, *OPEN):
        raise ManifestError(
            "spec.state",
            state,
            "has no effect: the state of a queue is in its status",
            f"write status: {{state: {state}}}, beside spec",
        )


def _state(document: Mapping[str, Any]) -> str:
    """What the document says of it where `kubectl get queue -o yaml` does."""
    status = document.get("status") or {}
    if not isinstance(status, dict):
        raise ManifestError("status", status, "is not an object", "write the state below it")
    state = status.get("state", "")
    if state not in STATES:
        raise ManifestError(
            "status.state", state, "is no state of a queue", f"write one of {', '.join(STATES[1:])}"
        )
    return str(state)


def _amount(name: str, value: object) -> int:
    field = within("spec.capability", name)
    factor, divisor = _UNITS.get(name, (1, 1))
    amount = math.floor(quantity(value, field) * factor) // divisor
    if not 0 <= amount <= AMOUNT_MAX:
        raise ManifestError(field, value, "is out of bounds", f"at most {AMOUNT_MAX}, at least 0")
    return amount


def _quota(document: Mapping[str, Any]) -> QuotaObserved:
    metadata, spec = _parts(document)
    if not isinstance(spec.get("hard") or {}, dict):
        raise ManifestError("spec.hard", spec["hard"], "is no object", "write name: amount")
    hard = extended_limits(document)
    if not hard:
        raise ManifestError(
            "spec.hard",
            spec.get("hard"),
            "limits no device, and CPU and memory are not limited here",
            "name a resource of devices, as in requests.nvidia.com/gpu",
        )
    return QuotaObserved(
        namespace=naming.label(str(metadata.get("namespace") or "default"), "metadata.namespace"),
        quota=naming.subdomain(str(metadata.get("name") or ""), "metadata.name"),
        hard=hard,
    )


def _parts(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = []
    for field in ("metadata", "spec"):
        part = document.get(field) or {}
        if not isinstance(part, dict):
            raise ManifestError(field, part, "is not an object", f"write the {field} below it")
        parts.append(part)
    return parts[0], parts[1]
