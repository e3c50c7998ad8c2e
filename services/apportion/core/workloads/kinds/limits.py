"""Read the limits in a Queue or a ResourceQuota into events.

All extended resources of a ResourceQuota are read, because the configuration decides later which
of them are devices. Invariant: a limit that cannot be enforced is refused, with the field."""

import math
from collections.abc import Mapping
from typing import Any, Final

from apportion.core.workloads.dialects.amounts import quantity
from apportion.core.workloads.dialects.dialect import DEVICE_MEMORY, PARTIAL_MEMORY
from apportion.core.workloads.dialects.listing import resources
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import (
    ManifestError,
    cleaned,
    dns_label,
    dns_subdomain,
    part,
    section,
    within,
)
from apportion.core.workloads.kinds.queues import KAI_QUEUE, MIB, VOLCANO_QUEUE, read_queue
from apportion_schemas import QueueObserved, QuotaObserved

QUOTA: Final = ("v1", "ResourceQuota")
LIMITS: Final = (VOLCANO_QUEUE, KAI_QUEUE, QUOTA)
# the fields of a Volcano Queue with amounts by resource name
QUEUE_AMOUNTS: Final = ("capability", "deserved", "guarantee.resource")
DEFAULTS: Final = DialectConfig()


def limit_of(
    document: object, config: DialectConfig = DEFAULTS
) -> QueueObserved | QuotaObserved | None:
    """Return the event for a queue or quota document; None for any other kind.

    Raises ManifestError if the limit cannot be enforced."""
    if not isinstance(document, dict):
        return None
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in LIMITS:
        return None
    clean = cleaned(document)
    if kind != QUOTA:
        queue = read_queue(clean)
        for path in QUEUE_AMOUNTS if kind == VOLCANO_QUEUE else ():
            _check_units(part(clean, "spec", *path.split(".")), f"spec.{path}", config)
        return queue
    metadata, spec = (section(clean, key, key) for key in ("metadata", "spec"))
    section(spec, "hard", "spec.hard", fix="write name: amount")
    hard = extended_limits(clean)
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
