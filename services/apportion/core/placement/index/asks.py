"""One ask against every kind of device, and against the devices of every node that changed.

What an ask comes to on a kind of device is worked out once. Then a node is looked at in one pass
over its devices.

Invariant: a device has enough here exactly where every device filter passes it."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from apportion.core.devices.catalogue import module_of
from apportion.core.devices.chains import Chain
from apportion.core.devices.demand import Demand, Known, demand
from apportion.core.devices.geometries import SLICE_STATES
from apportion.core.placement.feasibility import refused_kind
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
    """One ask against every kind of device: what must be free there, and where it never fits.

    The kinds `without` are left out, whatever they have. `module` is how many devices at once are
    taken together, 1 where each is taken alone. `host_need` is what the pod needs of the host,
    packed, which stands among the devices. `demands`, `needs` and `instance_fits` have an entry for
    each kind; a need is packed, `NEVER` where a device rule refuses the kind, and whether an
    instance fits depends on how the card is cut. `elsewhere` marks the devices that the pod's uuids
    and indexes leave out, None where it names none."""

    def __init__(
        self,
        ask: Ask,
        constraints: DeviceConstraints,
        chain: Chain,
        geometries: Known,
        *,
        host_need: int,
        without: frozenset[int] = frozenset(),
    ) -> None:
        self.ask = ask
        self._without = without
        self._host_need = host_need
        self.constraints = constraints
        self.module = module_of(ask.family) if ask.count > 1 else 1
        self.chain = chain
        self._count: Int64 = ask.count
        self.elsewhere: NDArray[np.bool_] | None = None
        self._elsewhere: UInt8s = flags(_NOWHERE)
        self._begin(geometries)
        self._flatten()

    def follow(self, geometries: Known) -> None:
        """Cards may be cut so from now on."""
        devices = self._devices
        self._begin(geometries)
        for device in devices:
            self._learn(device)
        self._flatten()

    def _begin(self, geometries: Known) -> None:
        self.geometries = geometries
        self._devices: list[Device] = []
        self.demands: list[Demand | RefusalCode] = [RefusalCode.NO_SUCH_DEVICE] * FIRST_KIND
        self.needs: list[int] = [packed.NEVER, self._host_need]
        self._charges = [0] * FIRST_KIND
        self._amounts = [0, 0, 0] * FIRST_KIND
        self._cuts: Int64 = SLICE_STATES * (1 + GROUPS_MAX if geometries else 1)
        self.instance_fits = np.ones((FIRST_KIND, self._cuts), np.bool_)
        self.cuts_instances = False

    def rebuild(self, columns: Columns, rows: Rows) -> None:
        """Work out again what stands for these rows until their nodes are reported anew."""
        unknown = columns.kinds[len(self.demands) - FIRST_KIND :]
        for device in unknown:
            self._learn(device)
        if unknown:
            self._flatten()
        wants = self.constraints
        if wants.indexes or wants.use_ids or wants.nouse_ids:
            marks = self.elsewhere
            if marks is None or marks.shape != columns.kind.shape:
                # Of rows that stand where they stood the marks are as they were; if others stand
                # there, every row is looked at again.
                wider = np.zeros(columns.kind.shape, np.bool_)
                if marks is not None and len(marks) == len(wider):
                    wider[:, HOST + 1 :] = True
                    wider[:, : marks.shape[1]] = marks
                self.elsewhere, self._elsewhere = wider, flags(wider)
                marks = wider
            marks[rows] = np.logical_or(*unnamed(columns, wants, rows))

    def demand_of(self, kind: int) -> Demand:
        """What the ask comes to on a device of a kind that does not refuse it."""
        found = self.demands[kind]
        if not isinstance(found, Demand):
            raise TypeError(f"kind {kind} refuses the ask: {found}")
        return found

    def wanted(self, row: int, kinds: Sequence[int]) -> Iterator[tuple[int, Demand]]:
        """The devices of a node, given by their kinds, that would do for the ask were they free."""
        elsewhere = self.elsewhere[row].tolist() if self.elsewhere is not None else ()
        for at, kind in enumerate(kinds):
            found = self.demands[kind]
            if isinstance(found, Demand) and not (elsewhere and elsewhere[HOST + 1 + at]):
                yield at, found

    def look(self, look: ScoreInput, times: Int64, noted: Int64) -> None:
        """Refuse the rows that have not enough, host and devices; note which do, if `noted`.

        Of an ask for one device, `times` must fit beside one another, several on one device if it
        has as much; how many instances a card takes is not told."""
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

    def capacity(self, columns: Columns) -> NDArray[np.int64]:
        """For each row at most how many times the ask would fit on its devices; fewer may."""
        devices = np.s_[:, HOST + 1 :]
        kind = columns.kind[devices]
        needs, charges = np.array(self.needs, np.int64), np.array(self._charges, np.int64)
        times = packed.times_each(columns.free[devices], needs.take(kind), charges.take(kind))
        found: NDArray[np.int64] = times.sum(axis=1) // max(self.ask.count, 1)
        return found

    def pick(self, columns: Columns, row: Int64, weight: Int64) -> Int64:
        """The first of the devices that have enough, by `BINPACK` or `SPREAD`; -1 if none has."""
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

    def _learn(self, device: Device) -> None:
        anywhere = structs.replace(self.constraints, use_ids=(), nouse_ids=(), indexes=())
        known: Demand | RefusalCode | None = refused_kind(self.ask, anywhere, device)
        known = known or demand(self.ask, device, self.geometries)
        if len(self.demands) in self._without:
            known = RefusalCode.TYPE_MISMATCH
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
            else:
                self.cuts_instances = True
                fits[0] = _instance_fits(known, self._cuts)
        self._devices.append(device)
        self.demands.append(known)
        self.needs.append(need)
        self._charges.append(charge)
        self._amounts += (device.memory_mib, device.cores, device.slots)
        self.instance_fits = np.concatenate([self.instance_fits, fits])

    def _flatten(self) -> None:
        """What was learnt of all kinds, as loops take it."""
        self._need: Int64s = np.array(self.needs, np.int64).data
        self._charge: Int64s = np.array(self._charges, np.int64).data
        self._totals: Int64s = np.array(self._amounts, np.int64).data
        self._fits: UInt8s = flags(self.instance_fits)


def unnamed(
    columns: Columns, wants: DeviceConstraints, rows: Rows
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """By row and column whether the pod's uuids, and its indexes, leave the device out.

    As `filters.devices.uuid` and `index` have it; of a column without a device they do."""
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
    """Answers one by one, as loops take them; a view."""
    return answers.reshape(-1).view(np.uint8).data


def _instance_fits(wanted: Demand, cuts: int) -> NDArray[np.bool_]:
    """For each way in which a card may be cut (`cut_state`): whether it has room for the ask."""
    fits = np.zeros(cuts, np.bool_)
    slices = np.arange(SLICE_STATES)
    for place in wanted.options:
        first = place.number * SLICE_STATES
        fits[first : first + SLICE_STATES] |= (slices & place.mask) == 0
    fits[0] = bool(wanted.options)
    return fits
