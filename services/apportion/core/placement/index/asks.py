"""Compare one ask with every kind of device, and with the devices of each changed node.

Invariant: a device has room here exactly if it passes every device filter."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from apportion.core.devices.catalogue import alike_number, by_template
from apportion.core.devices.chains import Chain
from apportion.core.devices.demand import SLICE_STATES, Demand, FleetFacts, demand
from apportion.core.devices.sets import in_sets
from apportion.core.placement.feasibility.evaluator import refused_kind
from apportion.core.placement.index import ask_loops, packed
from apportion.core.placement.index.columns import HOST, Columns
from apportion.core.placement.index.device_kinds import FIRST_KIND
from apportion.core.placement.index.packed import Int64, Int64s, UInt8s
from apportion.core.placement.index.row_log import Rows
from apportion.core.placement.index.score_input import ScoreInput
from apportion_schemas import Ask, Device, DeviceConstraints, RefusalCode
from apportion_schemas.configuration import GROUPS_MAX

_NOWHERE: Final = np.zeros(0, np.bool_)


class AskColumns:
    """One ask, compared with all devices."""

    def __init__(
        self,
        ask: Ask,
        constraints: DeviceConstraints,
        chain: Chain,
        fleet: FleetFacts,
        *,
        host_need: int,
        without: frozenset[int] = frozenset(),
    ) -> None:
        self.ask = ask
        self._without = without
        self._host_need = host_need
        self.constraints = constraints
        self.together: bool = ask.count > 1 and in_sets(ask.family)  # see `core.devices.sets`
        # HAMi's plugin for NPUs gives all containers of a pod on one NPU the last one's part.
        self.parts_alike: bool = constraints.plugin == "hami" and by_template(ask.family)
        self.chain = chain
        self._count: Int64 = ask.count
        self.elsewhere: NDArray[np.bool_] | None = None  # excluded by uuid or index
        self._elsewhere: UInt8s = flags(_NOWHERE)
        self._begin(fleet)
        self._flatten()

    def follow(self, fleet: FleetFacts) -> None:
        """Use these facts of the fleet from now on, and recompute what depends on them."""
        devices = self._devices
        self._begin(fleet)
        for device in devices:
            self._learn(device)
        self._flatten()

    def _begin(self, fleet: FleetFacts) -> None:
        self.fleet = fleet
        self._devices: list[Device] = []
        self.demands: list[Demand | RefusalCode] = [RefusalCode.NO_SUCH_DEVICE] * FIRST_KIND
        self.needs: list[int] = [packed.NEVER, self._host_need]  # packed, by kind
        self._charges = [0] * FIRST_KIND
        self._amounts = [0, 0, 0] * FIRST_KIND
        self._cuts: Int64 = SLICE_STATES * (1 + GROUPS_MAX if fleet.geometries else 1)
        self.instance_fits = np.ones((FIRST_KIND, self._cuts), np.bool_)
        self.cuts_instances = False

    def rebuild(self, columns: Columns, rows: Rows) -> None:
        """Mark the devices of these rows that the pod's uuids and indexes exclude."""
        unknown = columns.kinds[len(self.demands) - FIRST_KIND :]
        for device in unknown:
            self._learn(device)
        if unknown:
            self._flatten()
        wants = self.constraints
        if wants.indexes or wants.use_ids or wants.nouse_ids:
            marks = self.elsewhere
            if marks is None or marks.shape != columns.kind.shape:
                # The marks of unchanged rows remain. If rows moved, every row is recomputed.
                wider = np.zeros(columns.kind.shape, np.bool_)
                if marks is not None and len(marks) == len(wider):
                    wider[:, HOST + 1 :] = True
                    wider[:, : marks.shape[1]] = marks
                self.elsewhere, self._elsewhere = wider, flags(wider)
                marks = wider
            marks[rows] = np.logical_or(*unnamed(columns, wants, rows))

    def possible(self, without: frozenset[int]) -> bool:
        """Return True if any kind of device, except these, could serve the ask when free."""
        return any(
            isinstance(known, Demand) and kind not in without
            for kind, known in enumerate(self.demands)
        )

    def demand_of(self, kind: int) -> Demand:
        """Return what the ask takes of this kind of device. Raises TypeError if it never fits."""
        found = self.demands[kind]
        if not isinstance(found, Demand):
            raise TypeError(f"kind {kind} refuses the ask: {found}")
        return found

    def wanted(self, row: int, kinds: Sequence[int]) -> Iterator[tuple[int, Demand]]:
        """Yield the position and the demand of each device that could serve the ask when free."""
        elsewhere = self.elsewhere[row].tolist() if self.elsewhere is not None else ()
        for at, kind in enumerate(kinds):
            found = self.demands[kind]
            if isinstance(found, Demand) and not (elsewhere and elsewhere[HOST + 1 + at]):
                yield at, found

    def look(self, look: ScoreInput, times: Int64, noted: Int64) -> None:
        """Refuse the nodes whose host or devices lack room for the ask.

        `times` is the number of identical asks that must fit together; above 1, each is for one
        device. If `noted`, record which devices have room."""
        columns = look.columns
        ask_loops.look(
            look.rows,
            look.count,
            columns.flat_free,
            columns.flat_kind,
            columns.flat_cut,
            self._elsewhere,
            self._need,
            self._charge,
            self._fits,
            columns.width,
            self._cuts,
            self._count * times,
            times,
            noted,
            look.enough,
            look.given,
        )

    def fill(self, columns: Columns, rows: Int64s, found: Int64s) -> None:
        """Lower the value of each of these rows to how many times the ask fits there at most."""
        ask_loops.fill(
            rows,
            columns.flat_free,
            columns.flat_kind,
            self._need,
            self._charge,
            columns.width,
            self._count,
            found,
        )

    def pick(self, columns: Columns, row: Int64, weight: Int64) -> Int64:
        """Return the index of the device with room that `BINPACK` or `SPREAD` prefers, or -1."""
        return ask_loops.pick(
            row,
            columns.flat_free,
            columns.flat_kind,
            columns.flat_cut,
            self._elsewhere,
            self._need,
            self._fits,
            self._totals,
            columns.width,
            self._cuts,
            weight,
        )

    def rank(self, columns: Columns, ranks: NDArray[np.uint8], codes: UInt8s) -> None:
        """Lower each rank that is still `codes[0]` to that of the first amount that is too small.

        `codes` are as in `ask_loops.rank`."""
        alone = [isinstance(known, Demand) and known.alone for known in self.demands]
        ask_loops.rank(
            ranks.reshape(-1).data,
            columns.flat_free,
            columns.flat_kind,
            columns.flat_closed,
            columns.flat_cut,
            self._need,
            flags(np.array(alone)),
            self._fits,
            self._cuts,
            codes,
        )

    def _learn(self, device: Device) -> None:
        anywhere = structs.replace(self.constraints, use_ids=(), nouse_ids=(), indexes=())
        known: Demand | RefusalCode | None = refused_kind(self.ask, anywhere, device)
        known = known or demand(self.ask, device, self.fleet)
        if len(self.demands) in self._without:
            known = RefusalCode.GANG_MODEL_MISMATCH  # limits do not report the kinds they exclude
        if self.chain.idle_only and isinstance(known, Demand):
            known = known._replace(alone=True)
        need, charge, fits = packed.NEVER, 0, np.ones((1, self._cuts), np.bool_)
        if isinstance(known, Demand):
            need = packed.amounts(
                known.memory_mib,
                known.cores_needed,
                device.slots if known.alone else 1,
                known.template_cpu,
            )
            if known.profile is None:
                charge = packed.amounts(known.memory_mib, known.cores, 1, known.template_cpu)
                if only := alike_number(device.family, known.template or ""):
                    self.cuts_instances = True
                    fits[0] = False
                    fits[0, [0, only]] = True
            else:
                self.cuts_instances = True
                slices = np.arange(SLICE_STATES)
                fits[0] = False
                for place in known.options:
                    first = place.number * SLICE_STATES
                    fits[0, first : first + SLICE_STATES] |= (slices & place.mask) == 0
                fits[0, 0] = bool(known.options)
        self._devices.append(device)
        self.demands.append(known)
        self.needs.append(need)
        self._charges.append(charge)
        self._amounts += (device.memory_mib, device.cores, device.slots)
        self.instance_fits = np.concatenate([self.instance_fits, fits])

    def _flatten(self) -> None:
        self._need: Int64s = np.array(self.needs, np.int64).data
        self._charge: Int64s = np.array(self._charges, np.int64).data
        self._totals: Int64s = np.array(self._amounts, np.int64).data
        self._fits: UInt8s = flags(self.instance_fits)


def unnamed(
    columns: Columns, wants: DeviceConstraints, rows: Rows
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the devices that the pod's uuids exclude, and those that its indexes exclude."""
    ids, indexes, known = columns.ids[rows], columns.index[rows], columns.device_kinds
    by_id = np.isin(ids, known.id_numbers(wants.nouse_ids))
    if wants.use_ids:
        by_id |= ~np.isin(ids, known.id_numbers(wants.use_ids))
    by_index = np.zeros(ids.shape, np.bool_)
    if wants.indexes:
        by_index = ~np.isin(indexes, wants.indexes)
    by_id[:, HOST] = by_index[:, HOST] = False
    return by_id, by_index


def flags(answers: NDArray[np.bool_]) -> memoryview:
    """Return the booleans as a flat view of bytes, for the compiled loops."""
    return answers.reshape(-1).view(np.uint8).data
