"""Apply resizes of running pods: the request, and the scheduler's answer.

The answer is an event that is fenced and chained on the node like a placement. A resize also
changes the pod's asks, so that quotas count the new size and a later placement uses it. Invariant:
a pod keeps its devices, none of them is oversold, and each request is answered once."""

from copy import copy

from msgspec import structs

from apportion.core.devices.shares import Oversold, occupy, release, retake
from apportion.core.ledger.handlers.change import Change, Context, Refused, folds
from apportion.core.ledger.state import NodeState, PodState, Resize, State, reshape
from apportion_schemas import PodResized, ResizeAsked, ResizeRefused, Share
from apportion_schemas.quantities import WHOLE


@folds(ResizeAsked)
def asked(context: Context, data: ResizeAsked) -> Change:
    """Record a request to resize a pod; it replaces an earlier request."""
    state = context.state
    pod = state.pods.get(data.pod)
    if pod is None:
        raise Refused(f"pod {data.pod} is not live")
    if pod.placement is None or not pod.bound_revision:
        raise Refused(f"pod {data.pod} is not bound: there is nothing of it to resize")
    state.resizes[data.pod] = Resize(data, context.revision)
    return Change(data, pod=pod, shares=())


def resized(context: Context, data: PodResized, pod: PodState) -> Change:
    """Replace the pod's shares by those of the new size; raise `Oversold` if they do not fit."""
    state = context.state
    _check_asked(state, data)
    placed = pod.placement
    if placed is None:
        raise Refused(f"pod {data.pod} has no placement")
    node = state.nodes[placed.node]
    if data.previous != node.chain:
        raise Refused(
            f"node {data.node}: chain broken: previous {data.previous!r}, expected {node.chain!r}"
        )
    if [_place(share) for share in data.shares] != [_place(share) for share in placed.shares]:
        raise Refused(f"pod {data.pod} holds other devices than those that are resized")
    before = copy(pod)
    exchange(node, placed.shares, data.shares)
    pod.placement = structs.replace(placed, shares=data.shares)
    held = {share.container: share for share in placed.shares}
    now = {share.container: share for share in data.shares}
    asks = tuple(
        structs.replace(
            ask,
            memory_mib=now[ask.container].memory_mib,
            memory_percent=None,
            cores=min(now[ask.container].cores, WHOLE),
        )
        if now.get(ask.container) != held.get(ask.container)
        else ask
        for ask in pod.submitted.shape.asks
    )
    reshape(state, pod, structs.replace(pod.submitted.shape, asks=asks))
    pod.changed_revision = context.revision
    del state.resizes[data.pod]
    return Change(data, node=node, pod=pod, before=before)


@folds(ResizeRefused)
def refused(context: Context, data: ResizeRefused) -> Change:
    """Drop the resize request that the scheduler refused; the pod keeps its shares."""
    state = context.state
    _check_asked(state, data)
    del state.resizes[data.pod]
    return Change(data, pod=state.pods[data.pod], shares=())


def exchange(node: NodeState, held: tuple[Share, ...], wanted: tuple[Share, ...]) -> None:
    """Replace the shares `held` on the node's devices by the shares `wanted`.

    Raises Oversold if a device is absent or has not enough free; then nothing changes."""
    for share in held:
        release(node.by_id[share.device], share)
    charged: list[Share] = []
    try:
        for share in wanted:
            device = node.by_id[share.device]
            if not device.present:
                raise Oversold(f"node {node.name} has no device {share.device}")
            occupy(device, share)
            charged.append(share)
    except Oversold:
        for share in charged:
            release(node.by_id[share.device], share)
        for share in held:
            retake(node.by_id[share.device], share)
        raise


def _check_asked(state: State, data: PodResized | ResizeRefused) -> None:
    wish = state.resizes.get(data.pod)
    if wish is None or wish.revision != data.asked:
        raise Refused(f"nobody waits for an answer to revision {data.asked} about pod {data.pod}")


def _place(share: Share) -> Share:
    """Return the share without the amounts that a resize may change. MIG and vNPU amounts stay."""
    if share.instance is not None or share.template is not None:
        return share
    return structs.replace(share, memory_mib=0, cores=0)
