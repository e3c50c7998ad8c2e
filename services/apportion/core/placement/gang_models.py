"""Keep the pods of a gang on one device model.

Pods of a gang that request devices of one family get the same model of it. Pods that select devices
or nodes differently (by type, id, node selector or required node affinity) are independent of each
other. Pods with the annotation `apportion.dev/gang-models: any` are not restricted.

Invariant: while a gang has placed pods, its further pods with the same selection of devices get
only devices of the model that the placed pods have."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from apportion.core.devices.catalogue import product
from apportion.core.ledger.handlers.adoption import UNKNOWN_MODEL
from apportion.core.ledger.state import GroupState, PodState, State
from apportion.core.placement.reservations import Reservations
from apportion_schemas import Device, PodPlaced

NO_KINDS: Final[frozenset[int]] = frozenset()
SELECTIONS_MAX: Final = 4_096

# A gang, a device family, and what the gang's pods themselves select.
Kin = tuple[str, str, bytes]
Choice = dict[Kin, str]
_encode = msgspec.json.Encoder(order="sorted").encode


class _Seen(NamedTuple):
    model: str
    charged: int  # reservations that it includes
    as_of: tuple[int, int]  # the state's revision, and how many reservations were undone


class GangModels:
    """The device models that the pods of gangs may use, in one state with its reservations."""

    def __init__(
        self, state: State, reservations: Reservations, kinds: list[Device], first_kind: int
    ) -> None:
        self._state = state
        self._reservations = reservations
        self._seen: dict[Kin, _Seen] = {}
        self._kinds = kinds
        self._first_kind = first_kind
        self._selections: dict[bytes, bytes] = {}
        self._known = 0
        self._products: dict[str, dict[str, set[int]]] = {}
        self._others: dict[tuple[str, str], frozenset[int]] = {}
        self.begin: Choice = {}  # models for pods whose gang has none yet, during one try
        self.enforced = True

    def excluded(self, pod: PodState) -> frozenset[int]:
        """Return the kinds of devices whose model differs from that of the pod's gang."""
        group = self._group_of(pod)
        if group is None or not self.enforced:
            return NO_KINDS
        found = NO_KINDS
        for kin in self._several(pod):
            model = self._model_of(group, kin) or self.begin.get(kin, "")
            if model:
                found |= self._without(kin[1], model)
        return found

    def open(self, waiting: list[PodState]) -> dict[Kin, list[PodState]]:
        """Return the pods of one gang that need a common model, but have none yet."""
        found: dict[Kin, list[PodState]] = {}
        for pod in waiting:
            for kin in self._kins(pod):
                found.setdefault(kin, []).append(pod)
        return {
            kin: pods
            for kin, pods in found.items()
            if not self._model_of(self._state.groups[kin[0]], kin)
        }

    def chosen(self, waiting: list[PodState]) -> Choice:
        """Return the models that the gang of these pods has now, with the assumed placements."""
        found: Choice = {}
        for kin in {kin: None for pod in waiting for kin in self._kins(pod)}:
            if model := self._model_of(self._state.groups[kin[0]], kin):
                found[kin] = model
        return found

    def mixed(self, placed: list[tuple[PodState, PodPlaced]]) -> bool:
        """Return True if one of these pods would use several models, though its gang may not."""
        for pod, event in placed:
            if self._group_of(pod) is None or not self._several(pod):
                continue
            by_id = self._state.nodes[event.node].by_id
            devices = [by_id[share.device].device for share in event.shares]
            models = {(each.family, product(each.family, each.model)) for each in devices}
            if len(models) > len({family for family, _ in models}):
                return True
        return False

    def of_family(self, family: str) -> list[str]:
        """Return the models that the cluster has of a device family, sorted."""
        self._learn()
        return sorted(self._products.get(family, ()))

    def _group_of(self, pod: PodState) -> GroupState | None:
        # None if the pod may use every model.
        about = pod.submitted
        group = self._state.groups.get(about.group)
        return None if group is None or about.any_model or not group.together else group

    def _kins(self, pod: PodState) -> list[Kin]:
        return [] if self._group_of(pod) is None else self._several(pod)

    def _several(self, pod: PodState) -> list[Kin]:
        # The families of which the cluster has several models.
        self._learn()
        about = pod.submitted
        families = dict.fromkeys(ask.family for ask in about.shape.asks)
        return [
            (about.group, family, self._selection(pod))
            for family in families
            if len(self._products.get(family, ())) > 1
        ]

    def _selection(self, pod: PodState) -> bytes:
        found = self._selections.get(pod.shape_key)
        if found is None:
            if len(self._selections) >= SELECTIONS_MAX:
                self._selections.clear()
            shape = pod.submitted.shape
            devices, node = shape.devices, shape.node
            said = (devices.use_types, devices.nouse_types, devices.use_ids)
            found = self._selections[pod.shape_key] = _encode((said, node.selector, node.required))
        return found

    def forget(self) -> None:
        """Clear the cache, because a trial changed placements.

        The next call scans all pods of the gang."""
        self._seen.clear()

    def _model_of(self, group: GroupState, kin: Kin) -> str:
        # The model that the first placed pod of this kind uses; empty if none is placed. Within a
        # decision, only pods that were placed since the last call can change an empty answer.
        charged = self._reservations.charged
        as_of = (self._state.revision, self._reservations.undone)
        seen = self._seen.get(kin)
        pods: Iterable[PodState] = group.pods.values()
        if seen is not None and seen.as_of == as_of:
            if seen.model:
                return seen.model
            pods = (pod for pod in charged[seen.charged :] if pod.submitted.group == kin[0])
        model = next((found for pod in pods if (found := self._model_in(pod, kin))), "")
        if len(self._seen) >= SELECTIONS_MAX:
            self._seen.clear()
        self._seen[kin] = _Seen(model, len(charged), as_of)
        return model

    def _model_in(self, pod: PodState, kin: Kin) -> str:
        _, family, selection = kin
        placed = pod.placement
        if placed is None or pod.submitted.any_model or self._selection(pod) != selection:
            return ""
        by_id = self._state.nodes[placed.node].by_id
        for share in placed.shares:
            held = by_id.get(share.device)
            if held is None or held.device.family != family:
                continue
            if held.device.model != UNKNOWN_MODEL:
                return product(family, held.device.model)
        return ""

    def _without(self, family: str, model: str) -> frozenset[int]:
        found = self._others.get((family, model))
        if found is None:
            numbers = self._products.get(family, {})
            found = frozenset(
                number for name, those in numbers.items() if name != model for number in those
            )
            self._others[family, model] = found
        return found

    def _learn(self) -> None:
        # Kinds of devices are only ever added.
        for number in range(self._known, len(self._kinds)):
            device = self._kinds[number]
            models = self._products.setdefault(device.family, {})
            name = product(device.family, device.model)
            models.setdefault(name, set()).add(self._first_kind + number)
            self._others.clear()
        self._known = len(self._kinds)
