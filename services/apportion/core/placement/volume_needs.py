"""What the volumes of a pod need of a node: that each can be had there, and room to attach them.

Source: kube-scheduler's VolumeBinding, VolumeZone and NodeVolumeLimits. A volume is its claim here,
and one that is still attached though no pod of the node mounts it does not count. Invariant: a
volume that several pods of a node mount counts once there.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from apportion.core.ledger.state import NodeState
from apportion_schemas import NodeExpression, VolumeClaimObserved

ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""
Claims = Mapping[str, Mapping[str, VolumeClaimObserved]]
Terms = tuple[tuple[NodeExpression, ...], ...]
"""Nodes that meet one of these terms; an empty term is met by none."""
NOWHERE: tuple[Terms, ...] = ((),)

_encode = msgspec.json.Encoder(order="sorted").encode


class ToAttach(NamedTuple):
    """Volumes of one driver: so many that no other pod mounts, and those that others do."""

    fresh: int
    shared: tuple[ClaimKey, ...]


class VolumeNeeds:
    """What pods of a class need for their volumes.

    `places` are the nodes of each volume that is not everywhere. `attached` are volumes by driver,
    of those that a node limits, and `claims` those of the ledger, as of `epoch`. Of equal `key`,
    two have the same needs.
    """

    def __init__(
        self,
        places: tuple[Terms, ...],
        attached: Mapping[str, ToAttach],
        claims: Claims,
        epoch: int,
    ) -> None:
        self.places = places
        self.attached = attached
        self._claims = claims
        self.key = b"volumes " + _encode((places, attached, epoch if attached else 0))

    def check(self, _shape: object, node: NodeState) -> tuple[int, int]:
        """What the first driver that the node has too little room for would take, and its room."""
        limits = node.observed.volume_limits if node.observed is not None else {}
        for driver, (fresh, shared) in sorted(self.attached.items()):
            limit = limits.get(driver)
            if limit is None:
                continue
            there = {key for key in mounted(node) if self._driver_of(key) == driver}
            needed = fresh + sum(key not in there for key in shared)
            if needed and limit - len(there) < needed:
                return needed, max(limit - len(there), 0)
        return 0, 0

    def _driver_of(self, key: ClaimKey) -> str:
        namespace, name = key
        found = self._claims.get(namespace, {}).get(name)
        return found.driver if found is not None else ""


def mounted(node: NodeState) -> set[ClaimKey]:
    """The claims that pods of the node mount, whoever placed them."""
    found = {
        (pod.submitted.namespace, claim)
        for pod in node.pods.values()
        for claim in pod.submitted.volume_claims
    }
    if node.observed is not None:
        found |= {
            (each.namespace, claim) for each in node.observed.others for claim in each.volume_claims
        }
    return found
