"""Taking devices and nodes off offer, and putting them back: what the fold makes of it.

Two people may cordon one thing, each for a reason, and it is on offer again once both are lifted.
Invariant: `cordon` says the reasons of `cordons`, and nothing of anybody else's.
"""

from apportion.core.devices.cordons import Cordon, added, reasons, without
from apportion.core.ledger.handlers.change import Change, Context, Refused, folds
from apportion.core.ledger.handlers.departures import node_of, note_left
from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeUncordoned,
)

Said = (
    DeviceCordoned | DeviceUncordoned | DeviceCordonLifted
    | NodeCordoned | NodeUncordoned | NodeCordonLifted
)  # fmt: skip


@folds(DeviceCordoned, DeviceUncordoned, DeviceCordonLifted)
def device(
    context: Context, data: DeviceCordoned | DeviceUncordoned | DeviceCordonLifted
) -> Change:
    """Keep the device's reasons, also of one that nobody has reported yet."""
    state = context.state
    now = _reasons_after(context, state.device_cordons.get(data.device, ()), data, data.device)
    state.device_cordons.pop(data.device, None)
    if now:
        state.device_cordons[data.device] = now
    of = state.nodes.get(state.node_of_device.get(data.device, ""))
    if of is not None:
        known = of.by_id[data.device]
        known.cordons, known.cordon = now, reasons(now)
    return Change(data, node=of)


@folds(NodeCordoned, NodeUncordoned, NodeCordonLifted)
def node(context: Context, data: NodeCordoned | NodeUncordoned | NodeCordonLifted) -> Change:
    """Keep the node's reasons, also of one that nobody has told of yet."""
    known = context.state.nodes.get(data.node)
    now = _reasons_after(context, known.cordons if known else (), data, data.node)
    if known is None:
        known = node_of(context.state, data.node)
    known.cordons, known.cordon = now, reasons(now)
    forgotten = note_left(context.state, known) if known.gone else ()
    return Change(data, node=known, forgotten=forgotten)


def _reasons_after(
    context: Context, before: tuple[Cordon, ...], data: Said, target: str
) -> tuple[Cordon, ...]:
    if isinstance(data, DeviceCordoned | NodeCordoned):
        return added(before, Cordon(data.by, data.reason, context.time, context.revision))
    if isinstance(data, DeviceUncordoned | NodeUncordoned):
        return ()
    after = without(before, data.of)
    if after == before:
        raise Refused(f"{data.of} has no reason against {target}")
    return after
