"""Why a pod fits nowhere, worked out once for all pods that are alike.

Invariant: an answer holds for what is reserved now; it is forgotten with the next reservation.
"""

from typing import Final

import msgspec

from apportion.core.ledger.state import PodState
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.queueing.shape_queue import Reasons
from apportion.core.placement.refusals import explain
from apportion.core.placement.reservations import Reservations
from apportion.core.placement.volumes import code_of

_encode = msgspec.json.Encoder(order="sorted").encode
EXPLAINED: Final = 2  # looks that a row costs when a refusal is explained


class Refusing:
    """The reasons of those that were refused since the last reservation."""

    def __init__(self, finder: PlaceFinder, limits: Limits, reservations: Reservations) -> None:
        self._finder = finder
        self._limits = limits
        self._reservations = reservations
        self._known: dict[bytes, Reasons] = {}
        self._as_of = -1

    def refused_alike(self, pod: PodState) -> bool:
        """Whether a pod of the same class has just been refused, and nothing was placed since."""
        if not self._known:
            return False
        self._reservations.charge()
        return self._as_of == self._reservations.version and self._key_of(pod) in self._known

    def reasons_once(self, pod: PodState) -> Reasons:
        """`reasons`, for a pod that fits nowhere; those that are alike have the same."""
        self._reservations.charge()
        if self._as_of != self._reservations.version:
            self._as_of = self._reservations.version
            self._known.clear()
        key = self._key_of(pod)
        if key not in self._known:
            self._known[key] = self.reasons(pod)
        return self._known[key]

    def _key_of(self, pod: PodState) -> bytes:
        """Equal for pods that have the same reasons; a claim that is not ready is one."""
        key, shortage = self._finder.key_of(pod), self._finder.volumes.shortage(pod)
        return key if shortage is None else key + _encode((pod.submitted.namespace, shortage))

    def reasons(self, pod: PodState) -> Reasons:
        """Nodes counted by the filter that stopped them, and the limit that kept the pod out."""
        self._reservations.charge()
        shortage = self._finder.volumes.shortage(pod)
        if shortage is not None:
            return Reasons({code_of(shortage): 0}, (), 0, volume=shortage)
        kept = self._finder.look_within(pod)[1] if self._limits.active else None
        if kept is not None and kept.without is None:
            return Reasons({kept.exceeded.code: 0}, (), 0, limit=kept)
        columns = self._finder.columns
        counts, nearest = explain(self._finder.class_of(pod), columns)
        self._finder.classes.looks += EXPLAINED * len(columns.names)
        nodes = columns.count
        if kept is not None:
            counts[kept.exceeded.code] = nodes - sum(counts.values())
        return Reasons(counts, nearest, nodes, limit=kept)
