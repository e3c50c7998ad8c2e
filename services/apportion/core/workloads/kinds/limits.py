"""Read the limits in a Volcano Queue or a ResourceQuota into events.

A queue may have a card quota, as in Volcano's capacity-card: `{"NVIDIA-A100": 8,
"NVIDIA-H200/mig-1g.18gb-mixed": 2}`. All extended resources of a ResourceQuota are read, because
the configuration decides later which of them are devices. Invariant: a limit that cannot be
enforced is refused, with the field."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, quantity, whole
from apportion.core.workloads.dialects.dialect import DEVICE_MEMORY, PARTIAL_MEMORY
from apportion.core.workloads.dialects.listing import resources
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError, dns_label, dns_subdomain, within
from apportion_schemas import QueueObserved, QuotaObserved
from apportion_schemas.decoding import from_outside

MIB: Final = 1 << 20
WEIGHT_MAX: Final = 65_535  # Volcano's API accepts no greater weight
OPEN: Final = ("", "Open")
STATES: Final = (*OPEN, "Closed", "Closing", "Unknown")  # Volcano's; only an open queue takes pods
QUEUE: Final = ("scheduling.volcano.sh/v1beta1", "Queue")
QUOTA: Final = ("v1", "ResourceQuota")
DEFAULTS: Final = DialectConfig()
# CPU is kept in thousandths, memory in MiB, all else in whole units
_UNITS: Final = {"cpu": (1000, 1), "memory": (1, MIB)}


def limit_of(
    document: object, config: DialectConfig = DEFAULTS
) -> QueueObserved | QuotaObserved | None:
    """Return the event for a queue or quota document; None for any other kind.

    Raises ManifestError if the limit cannot be enforced."""
    if not isinstance(document, dict):
        return None
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind == QUEUE:
        return _queue(document, config)
    if kind != QUOTA:
        return None
    metadata, spec = _parts(document)
    if not isinstance(spec.get("hard") or {}, dict):
        raise ManifestError("spec.hard", spec["hard"], "is not an object", "write name: amount")
    hard = extended_limits(document)
    _check_units({name: spec["hard"][name] for name in hard}, "spec.hard", config)
    if not hard:
        problem = "limits no devices, and quotas of CPU and memory are not enforced"
        fix = "add a device resource such as requests.nvidia.com/gpu"
        raise ManifestError("spec.hard", spec.get("hard"), problem, fix)
    return QuotaObserved(
        namespace=dns_label(str(metadata.get("namespace") or "default"), "metadata.namespace"),
        quota=dns_subdomain(str(metadata.get("name") or ""), "metadata.name"),
        hard=hard,
    )


def _queue(document: Mapping[str, Any], config: DialectConfig) -> QueueObserved:
    metadata, spec = _parts(document)
    weight = spec.get("weight", 1)
    if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= WEIGHT_MAX:
        fix = f"write a whole number from 1 to {WEIGHT_MAX}"
        raise ManifestError("spec.weight", weight, "is not a valid weight", fix)
    capability = spec.get("capability") or {}
    if not isinstance(capability, dict):
        raise ManifestError("spec.capability", capability, "is not an object", "write name: amount")
    _check_units(capability, "spec.capability", config)
    if (state := spec.get("state")) not in (None, *OPEN):
        # Volcano reads it from the status, so the queue would stay open.
        problem = "has no effect, because the state of a queue is in its status"
        fix = f"write status: {{state: {state}}} next to spec"
        raise ManifestError("spec.state", state, problem, fix)
    name = dns_subdomain(str(metadata.get("name") or ""), "metadata.name")
    amounts: dict[str, int] = {}
    for resource, value in sorted(capability.items()):
        field = within("spec.capability", resource)
        factor, divisor = _UNITS.get(resource, (1, 1))
        amounts[resource] = math.floor(quantity(value, field) * factor) // divisor
        if not 0 <= amounts[resource] <= AMOUNT_MAX:
            fix = f"write 0 to {AMOUNT_MAX}"
            raise ManifestError(field, value, "is out of range", fix)
    status = document.get("status") or {}
    if not isinstance(status, dict):
        raise ManifestError("status", status, "is not an object", "write status: {state: Open}")
    if (state := status.get("state", "")) not in STATES:
        fix = f"write one of {', '.join(STATES[1:])}"
        raise ManifestError("status.state", state, "is not a queue state", fix)
    return QueueObserved(
        queue=name,
        weight=weight,
        capability=amounts,
        open=state in OPEN,
        cards=card_quota(metadata.get("annotations") or {}),
    )


# Refuse fractions of a device, and bytes where the unit is MiB, which a suffix such as Mi shows. M
# does not show it, because Kubernetes itself writes 20000000 as 20M; nor does a large amount,
# because a limit can be for a whole fleet. The watcher reads a cluster's limits all the same.
def _check_units(limited: Mapping[str, object], field: str, config: DialectConfig) -> None:
    known = resources(config)
    for name, value in limited.items():
        if "/" not in name:
            continue
        at, amount = within(field, name), quantity(value, within(field, name))
        if amount.denominator != 1:
            raise ManifestError(at, value, "is a fraction", "write a whole number")
        of_claims = next((prefix for prefix in OF_CLAIMS if name.startswith(prefix)), "")
        meaning = known.get(name.removeprefix(of_claims))
        bound = meaning.bound if meaning else None
        if bound is None or bound.counts not in (DEVICE_MEMORY, PARTIAL_MEMORY):
            continue
        if isinstance(value, str) and value.endswith("i"):
            # Less than one unit in bytes (16Ki) makes no sense: it is a number of units.
            meant = int(amount) // (bound.unit * MIB) or int(amount)
            problem = f"is in bytes, but the unit is {bound.unit} MiB"
            raise ManifestError(at, value, problem, f"write {meant}")


def _parts(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = []
    for field in ("metadata", "spec"):
        part = document.get(field) or {}
        if not isinstance(part, dict):
            raise ManifestError(field, part, "is not an object", "write fields below it")
        parts.append(part)
    return parts[0], parts[1]


CARD_QUOTA = "volcano.sh/card.quota"
CARDS_MAX = 256
CARD_NAME_MAX = 317
_decode = from_outside(msgspec.json.Decoder(dict[str, object]).decode)
_FIX = 'write GPUs by model, as in {"NVIDIA-A100": 8}'


def card_quota(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the number of cards per model that a queue's annotations allow; empty if not limited.

    Raises ManifestError with the annotation, or the entry in it."""
    written = annotations.get(CARD_QUOTA)
    if not written:
        return {}
    field = within("metadata.annotations", CARD_QUOTA)
    try:
        cards = _decode(written)
    except msgspec.MsgspecError:
        raise ManifestError(field, written, "is not a JSON object", _FIX) from None
    if len(cards) > CARDS_MAX or any(not 0 < len(card) <= CARD_NAME_MAX for card in cards):
        problem = "has too many models, or a model name that is empty or too long"
        fix = f"use at most {CARDS_MAX} models with up to {CARD_NAME_MAX} characters each"
        raise ManifestError(field, written, problem, fix)
    return {
        card: whole(count, within(field, card), limit=AMOUNT_MAX)
        for card, count in sorted(cards.items())
    }


QUOTA_LIMITS_MAX: Final = 256
OF_CLAIMS: Final = ("requests.", "limits.")  # prefixes of a resource's name in `spec.hard`
HARD_MAX: Final = 1 << 53
_COUNTS: Final = "count/"
_STORAGE: Final = ".storageclass.storage.k8s.io/"


def extended_limits(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits of extended resources in `spec.hard`, in whole units.

    Raises ManifestError if an amount is unreadable, there are too many, or the quota has scopes."""
    spec = document.get("spec") or {}
    hard = {
        name: amount
        for name, amount in sorted((spec.get("hard") or {}).items())
        if "/" in name and not name.startswith(_COUNTS) and _STORAGE not in name
    }
    if len(hard) > QUOTA_LIMITS_MAX:
        fix = f"use at most {QUOTA_LIMITS_MAX} in one quota"
        raise ManifestError("spec.hard", hard, "has too many resources", fix)
    for scopes in ("scopes", "scopeSelector"):
        if hard and spec.get(scopes):
            problem = "selects pods, which is not supported for device quotas"
            fix = "limit devices in a quota without scopes"
            raise ManifestError(f"spec.{scopes}", spec[scopes], problem, fix)
    return {
        name: min(max(math.floor(quantity(amount, within("spec.hard", name))), 0), HARD_MAX)
        for name, amount in hard.items()
    }
