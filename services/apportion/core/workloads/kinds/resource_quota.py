"""A ResourceQuota of Kubernetes: how much of extended resources its namespace may hold.

What a name means is said by the configuration in force when it is asked for, so all that could be
devices is read. CPU, memory, storage and counts of objects are the API server's to keep to.
Invariant: a quota whose limits would bind other pods than it says is not read: it is told of.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from apportion.core.workloads.dialects.amounts import quantity
from apportion.core.workloads.dialects.errors import ManifestError, within

LIMITS_MAX: Final = 256
OF_CLAIMS: Final = ("requests.", "limits.")
"""What `spec.hard` may say before the name of a resource."""
AMOUNT_MAX: Final = 1 << 53
_COUNTS: Final = "count/"
_STORAGE: Final = ".storageclass.storage.k8s.io/"


def extended_limits(document: Mapping[str, Any]) -> dict[str, int]:
    """What `spec.hard` says of extended resources, in whole units; empty where it says nothing.

    Raises:
        ManifestError: the quota has scopes, or an amount that cannot be read.
    """
    spec = document.get("spec") or {}
    hard = {
        name: amount
        for name, amount in sorted((spec.get("hard") or {}).items())
        if "/" in name and not name.startswith(_COUNTS) and _STORAGE not in name
    }
    if len(hard) > LIMITS_MAX:
        raise ManifestError(
            "spec.hard", hard, "has too many resources", f"name at most {LIMITS_MAX} in one quota"
        )
    for scopes in ("scopes", "scopeSelector"):
        if hard and spec.get(scopes):
            raise ManifestError(
                f"spec.{scopes}",
                spec[scopes],
                "chooses among pods, which is not implemented for devices",
                "limit devices in a quota without scopes",
            )
    return {name: _whole(amount, within("spec.hard", name)) for name, amount in hard.items()}


def _whole(amount: object, field: str) -> int:
    return min(max(math.floor(quantity(amount, field)), 0), AMOUNT_MAX)
