"""Read a Queue of Volcano or KAI into an event.

Volcano has amounts by resource name; annotations add amounts by device model, as in its
capacity-card: `{"NVIDIA-A100": 8, "NVIDIA-H200/mig-1g.18gb-mixed": 2}`. KAI has GPUs in fractions,
CPU in thousandths and memory in MB. Invariant: a field that cannot be served is refused, with its
path."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import msgspec

from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, quantity, whole
from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion.core.workloads.document import (
    ManifestError,
    dns_subdomain,
    go_seconds,
    section,
    texts,
    within,
)
from apportion_schemas import QueueObserved
from apportion_schemas.decoding import from_outside

MIB: Final = 1 << 20
VOLCANO_QUEUE: Final = ("scheduling.volcano.sh/v1beta1", "Queue")
KAI: Final = "scheduling.run.ai"
KAI_QUEUE: Final = (f"{KAI}/v2", "Queue")
WEIGHT_MAX: Final = 65_535  # Volcano's API accepts no greater weight
PRIORITY_MAX: Final = (1 << 31) - 1
OPEN: Final = ("", "Open")
STATES: Final = (*OPEN, "Closed", "Closing", "Unknown")  # Volcano's; only an open queue takes pods
ROOT: Final = "root"  # Volcano's name for the top of the tree, which is the whole cluster
TRAVERSE, FIFO = "traverse", "fifo"
AMOUNTS_MAX: Final = 256  # resources or models in one field
KEY_MAX: Final = 317
# CPU is kept in thousandths, memory in MiB, all else in whole units
_UNITS: Final = {"cpu": (1000, 1), "memory": (1, MIB)}
_WRITE_AMOUNTS: Final = "write name: amount"


def read_queue(document: Mapping[str, Any]) -> QueueObserved:
    """Return the event for a Queue. Raises ManifestError if a field cannot be served."""
    metadata = section(document, "metadata", "metadata")
    spec = section(document, "spec", "spec")
    name = dns_subdomain(str(metadata.get("name") or ""), "metadata.name")
    if (document.get("apiVersion"), document.get("kind")) == KAI_QUEUE:
        return _of_kai(name, spec)
    return _of_volcano(name, document, section(metadata, "annotations", "metadata.annotations"))


def _of_volcano(name: str, document: Mapping[str, Any], notes: Mapping[str, Any]) -> QueueObserved:
    spec, status = section(document, "spec", "spec"), section(document, "status", "status")
    if (state := spec.get("state")) not in (None, *OPEN):
        # Volcano reads it from the status, so the queue would stay open.
        problem = "has no effect, because the state of a queue is in its status"
        fix = f"write status: {{state: {state}}} next to spec"
        raise ManifestError("spec.state", state, problem, fix)
    if (state := status.get("state", "")) not in STATES:
        fix = f"write one of {', '.join(STATES[1:])}"
        raise ManifestError("status.state", state, "is not a queue state", fix)
    if (order := spec.get("dequeueStrategy") or TRAVERSE) not in (TRAVERSE, FIFO):
        fix = f"write {TRAVERSE} or {FIFO}"
        raise ManifestError("spec.dequeueStrategy", order, "is not a dequeue strategy", fix)
    reclaimable = spec.get("reclaimable", True)
    if not isinstance(reclaimable, bool):
        raise ManifestError("spec.reclaimable", reclaimable, "is not true or false", "write false")
    guarantee = section(spec, "guarantee", "spec.guarantee")
    return QueueObserved(
        queue=name,
        parent=_parent(spec, "parent", name, top=ROOT),
        weight=_number(spec, "weight", 1, least=1, most=WEIGHT_MAX),
        priority=_number(spec, "priority", 0, least=0, most=PRIORITY_MAX),
        capability=_amounts(spec, "capability", "spec.capability"),
        cards=cards_in(notes, CARD_QUOTA),
        deserved=_amounts(spec, "deserved", "spec.deserved"),
        cards_deserved=cards_in(notes, CARD_DESERVED),
        guarantee=_amounts(guarantee, "resource", "spec.guarantee.resource"),
        cards_guarantee=cards_in(notes, CARD_GUARANTEE),
        reclaimable=reclaimable,
        fifo=order == FIFO,
        open=state in OPEN,
    )


def _parent(spec: Mapping[str, Any], key: str, name: str, *, top: str = "") -> str:
    parent, field = spec.get(key) or "", f"spec.{key}"
    if not isinstance(parent, str):
        raise ManifestError(field, parent, "is not text", "put it in quotes")
    if parent == name:
        fix = "name another queue, or remove the field"
        raise ManifestError(field, parent, "is the queue itself", fix)
    return "" if parent in ("", top) else dns_subdomain(parent, field)


def _number(spec: Mapping[str, Any], key: str, unset: int, *, least: int, most: int) -> int:
    value = spec.get(key, unset)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        fix = f"write a whole number from {least} to {most}"
        raise ManifestError(f"spec.{key}", value, f"is not a valid {key}", fix)
    return value


def _amounts(whole: Mapping[str, Any], key: str, field: str) -> dict[str, int]:
    written = section(whole, key, field, fix=_WRITE_AMOUNTS)
    if len(written) > AMOUNTS_MAX:
        fix = f"use at most {AMOUNTS_MAX}"
        raise ManifestError(field, written, "has too many resources", fix)
    amounts: dict[str, int] = {}
    for resource, value in sorted(written.items()):
        at = within(field, resource)
        if not 0 < len(resource) <= KEY_MAX:
            fix = f"use 1 to {KEY_MAX} characters"
            raise ManifestError(at, resource, "is an empty or too long name", fix)
        factor, divisor = _UNITS.get(resource, (1, 1))
        amounts[resource] = _in_range(quantity(value, at) * factor / divisor, at, value)
    return amounts


def _in_range(amount: Fraction, field: str, written: object) -> int:
    found = math.floor(amount)
    if found > AMOUNT_MAX:
        raise ManifestError(field, written, "is out of range", f"write 0 to {AMOUNT_MAX}")
    return found


CARD_QUOTA: Final = "volcano.sh/card.quota"
CARD_DESERVED: Final = "apportion.dev/card.deserved"
CARD_GUARANTEE: Final = "apportion.dev/card.guarantee"
CARDS: Final = (CARD_QUOTA, CARD_DESERVED, CARD_GUARANTEE)
_decode = from_outside(msgspec.json.Decoder(dict[str, object]).decode)
_FIX: Final = 'write GPUs by model, as in {"NVIDIA-A100": 8}'


def cards_in(annotations: Mapping[str, Any], key: str) -> dict[str, int]:
    """Return the number of cards per model in this annotation of a queue; empty without it.

    Raises ManifestError with the annotation, or the entry in it."""
    written = annotations.get(key)
    if not written:
        return {}
    texts({key: written}, "metadata.annotations")
    field = within("metadata.annotations", key)
    try:
        cards = _decode(written)
    except msgspec.MsgspecError:
        raise ManifestError(field, written, "is not a JSON object", _FIX) from None
    if len(cards) > AMOUNTS_MAX or any(not 0 < len(card) <= KEY_MAX for card in cards):
        problem = "has too many models, or a model name that is empty or too long"
        fix = f"use at most {AMOUNTS_MAX} models with up to {KEY_MAX} characters each"
        raise ManifestError(field, written, problem, fix)
    return {
        card: whole(count, within(field, card), limit=AMOUNT_MAX)
        for card, count in sorted(cards.items())
    }


# The resources of a KAI Queue: the name here, and how many of its units are one unit of KAI.
KAI_RESOURCES: Final = {
    "gpu": (GPU_MILLI, Fraction(1000)),
    "cpu": ("cpu", Fraction(1)),
    "memory": ("memory", Fraction(10**6, MIB)),
}
NO_LIMIT: Final = -1
KAI_PRIORITY: Final = 100  # of a queue without one


def _of_kai(name: str, spec: Mapping[str, Any]) -> QueueObserved:
    if "resources" not in spec:
        raise ManifestError("spec.resources", None, "is missing", "add gpu, cpu and memory")
    resources = section(spec, "resources", "spec.resources")
    deserved, capability, weights = dict[str, int](), dict[str, int](), dict[str, int]()
    for part, (resource, units) in KAI_RESOURCES.items():
        at = f"spec.resources.{part}"
        found = section(resources, part, at)
        quota = _kai_amount(found, "quota", at, none=True)
        # As KAI documents it, a queue without a limit gets nothing beyond its quota.
        limit = _kai_amount(found, "limit", at, none=True) or quota
        weights[part] = weight = math.ceil(_kai_amount(found, "overQuotaWeight", at))
        if weight > WEIGHT_MAX:
            fix = f"write 0 to {WEIGHT_MAX}"
            raise ManifestError(f"{at}.overQuotaWeight", weight, "is not a valid weight", fix)
        if quota:
            amount = AMOUNT_MAX if quota == NO_LIMIT else quota * units
            deserved[resource] = _in_range(Fraction(amount), f"{at}.quota", found.get("quota"))
        if limit != NO_LIMIT:
            capability[resource] = _in_range(limit * units, f"{at}.limit", found.get("limit"))
    return QueueObserved(
        queue=name,
        parent=_parent(spec, "parentQueue", name),
        weight=weights["gpu"],
        priority=_number(spec, "priority", KAI_PRIORITY, least=-PRIORITY_MAX, most=PRIORITY_MAX),
        capability=capability,
        deserved=deserved,
        safe_s=go_seconds(spec.get("reclaimMinRuntime", "0"), "spec.reclaimMinRuntime"),
    )


def _kai_amount(found: Mapping[str, Any], key: str, at: str, *, none: bool = False) -> Fraction:
    """Return an amount in KAI's unit. If `none`, it may be -1, which means without a limit."""
    value, field = found.get(key, 0), f"{at}.{key}"
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not finite:
        raise ManifestError(field, value, "is not a number", "write a number without quotes")
    if value < 0 and not (none and value == NO_LIMIT):
        fix = "write 0 or more, or -1 for no limit" if none else "write 0 or more"
        raise ManifestError(field, value, "is negative", fix)
    return Fraction(repr(value))
