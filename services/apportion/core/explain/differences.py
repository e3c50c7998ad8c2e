"""What differs between two states: pods that hold and that wait, nodes, devices, limits, settings.

A picture holds what of a state can differ, of all of it or of a part; taking one costs a look at
each thing of it, and words are made for what differs alone. Invariants: two pictures of equal
states have no difference, and a difference between pictures is one between the states; an event
makes no difference outside of what `touched` names."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from apportion.core.answers.past import READY, Side
from apportion.core.devices.shares import DeviceState
from apportion.core.explain.health import failure
from apportion.core.explain.text.event_text import limit_name, policy_words, quota_name
from apportion.core.explain.text.natural import natural
from apportion.core.explain.text.words import of_resource
from apportion.core.ledger.state import NodeState, State
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodGone,
    PodPlaced,
    PodResized,
    PodSubmitted,
    PolicyChanged,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    Share,
)

VALUE_CHARS_MAX = 200
GONE, OK, FAILED, WAITS = "gone", "ok", "failed", "waits"
WHOLE_LIMIT = "limit"
"""What differs of a limit that came or left."""
_encode = msgspec.json.Encoder(order="sorted").encode


class Held(NamedTuple):
    """What a pod holds, and where."""

    name: str
    node: str
    shares: tuple[Share, ...]

    @property
    def side(self) -> Side:
        """The same as a side of a difference."""
        return Side(node=self.node, shares=self.shares)


_NOTHING = Side()


class Picture(NamedTuple):
    """What of a state can differ from another one.

    `cards` counts the devices of each node, and `owners` names the node of each device. `waiting`
    are the pods without a place, by uid, with their names."""

    revision: int
    placements: dict[str, Held]
    nodes: dict[str, dict[str, Side]]
    devices: dict[str, dict[str, Side]]
    configuration: Configuration
    policy: PolicyChanged
    cards: dict[str, int]
    owners: dict[str, str]
    waiting: dict[str, str]
    limits: dict[str, dict[str, Side]]

    def joined(self, before: "Picture", node: str) -> bool:
        """Whether the node is there now, and nobody had told of it before."""
        now, was = self.nodes.get(node), before.nodes.get(node)
        is_there = now is not None and now["state"].state not in {"", GONE}
        return is_there and (was is None or not was["state"].state)


class Part(NamedTuple):
    """These things of a state: pods by uid, nodes by name, devices by id, limits by what people
    call them; and its settings."""

    pods: Collection[str] = ()
    nodes: Collection[str] = ()
    devices: Collection[str] = ()
    limits: Collection[str] = ()


class Difference(NamedTuple):
    """One thing, what of it changed, and what that was and is; `key` is a uid for a pod, that of
    the newer one where two had the name, and `left` then that of the other."""

    key: str
    name: str
    what: str
    was: Side
    now: Side
    left: str = ""


def picture(state: State, part: Part | None = None) -> Picture:
    """What of this state, or of a part of it, can differ; it stays when the state goes on."""
    pods, nodes, owners = state.pods, state.nodes, state.node_of_device
    if part is not None:
        pods = {uid: pods[uid] for uid in part.pods if uid in pods}
        nodes = {name: nodes[name] for name in part.nodes if name in nodes}
        owners = {device: owners[device] for device in part.devices if device in owners}
    return Picture(
        revision=state.revision,
        placements={
            uid: Held(pod.full_name, pod.placement.node, pod.placement.shares)
            for uid, pod in pods.items()
            if pod.placement is not None
        },
        nodes={
            name: {"state": Side(state=_node_state(node)), "cordon": Side(reason=node.cordoned)}
            for name, node in nodes.items()
        },
        devices={
            device: _device(state.nodes[owner].by_id[device]) for device, owner in owners.items()
        },
        configuration=state.configuration,
        policy=state.policy,
        cards={name: sum(d.present for d in node.devices) for name, node in nodes.items()},
        owners=dict(owners),
        waiting={uid: pod.full_name for uid, pod in pods.items() if pod.placement is None},
        limits=_limits(state, None if part is None else part.limits),
    )


def touched(state: State, data: Any) -> Part | None:
    """Of what the event may make a difference once it is folded; None where of nothing."""
    found = _TOUCHED.get(type(data))
    return found(state, data) if found is not None else None


def placements(before: Picture, after: Picture) -> Iterator[Difference]:
    """Pods that hold something else, or hold it elsewhere, by name.

    A pod that was submitted anew under its name, as one that was drained is, has moved."""
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for uid in before.placements | after.placements:
        was, now = before.placements.get(uid), after.placements.get(uid)
        if was == now:
            continue
        for held, at in ((was, 0), (now, 1)):
            if held is not None:
                pairs.setdefault(held.name, ([], []))[at].append(uid)
    for name in sorted(pairs, key=natural):
        yield from _moves(name, *pairs[name], before, after)


def _moves(
    name: str, left: list[str], came: list[str], before: Picture, after: Picture
) -> Iterator[Difference]:
    """Those of one name: who is in both is the same pod, all others are paired as they stand."""
    both = [uid for uid in came if uid in before.placements]
    left = both + [uid for uid in left if uid not in both]
    came = both + [uid for uid in came if uid not in both]
    for at in range(max(len(left), len(came))):
        was = before.placements[left[at]].side if at < len(left) else _NOTHING
        now = after.placements[came[at]].side if at < len(came) else _NOTHING
        key = came[at] if at < len(came) else left[at]
        gone = left[at] if at < len(left) and left[at] != key else ""
        yield Difference(key, name, "placement", was, now, gone)


def waiting(before: Picture, after: Picture) -> Iterator[Difference]:
    """Pods that began to wait, and those that wait no more, by name."""
    was, now = before.waiting, after.waiting
    changed = [(name, uid) for uid, name in (was | now).items() if (uid in was) != (uid in now)]
    for name, uid in sorted(changed, key=lambda each: (natural(each[0]), each[1])):
        one, other = (Side(state=WAITS) if uid in there else _NOTHING for there in (was, now))
        yield Difference(uid, name, "waiting", one, other)


def configuration(before: Picture, after: Picture) -> Iterator[Difference]:
    """The keys of the configuration that have another value."""
    if before.configuration is after.configuration:
        return
    was, now = structs.asdict(before.configuration), structs.asdict(after.configuration)
    for key, value in now.items():
        if was[key] != value:
            yield Difference(key, key, key, Side(value=_value(was[key])), Side(value=_value(value)))


def policy(before: Picture, after: Picture) -> Iterator[Difference]:
    """How nodes and devices are preferred."""
    if before.policy is after.policy:
        return
    was, now = (
        (each.node_policy, each.node_weights, each.device_policy)
        for each in (before.policy, after.policy)
    )
    if was != now:
        one, other = (Side(value=policy_words(each.policy)) for each in (before, after))
        yield Difference("policy", "policy", "policy", one, other)


LISTS: Mapping[str, Callable[[Picture, Picture], Iterator[Difference]]] = {
    "placements": placements,
    "waiting": waiting,
    "nodes": lambda before, after: _sides(before.nodes, after.nodes),
    "devices": lambda before, after: _sides(before.devices, after.devices),
    "limits": lambda before, after: _sides(before.limits, after.limits),
    "configuration": configuration,
    "policy": policy,
}
"""Everything that can differ, by its name in answers."""


def _nodes_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    """Of one that joined, how many devices it has."""
    for each in LISTS["nodes"](before, after):
        if each.what == "state" and after.joined(before, each.key):
            yield each._replace(now=structs.replace(each.now, cards=after.cards[each.key]))
        else:
            yield each


def _devices_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    """Not that one is well which came with its node."""
    for each in LISTS["devices"](before, after):
        came = each.was == _NOTHING and each.now.state == OK
        if not (came and after.joined(before, after.owners.get(each.key, ""))):
            yield each


def _waiting_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    """Not of who has a place now, which is a row of placements, nor of who waits on under its name,
    as one that was submitted anew."""
    waited, waits = set(before.waiting.values()), set(after.waiting.values())
    placed = {held.name for held in after.placements.values()}
    for each in waiting(before, after):
        if each.name not in (waited if each.now.state else waits | placed):
            yield each


def _limits_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    """One that came or left is one row, however many sides it has: so rows count limits."""
    for name, sides in groupby(LISTS["limits"](before, after), lambda each: each.name):
        if name in before.limits and name in after.limits:
            yield from sides
        else:
            was, now = (_whole(each.limits.get(name, {})) for each in (before, after))
            yield Difference(name, name, WHOLE_LIMIT, Side(value=was), Side(value=now))


def _whole(sides: Mapping[str, Side]) -> str:
    """As in `open, weight 1, capability cpu 8 CPU`."""
    named = {"weight", "capability", "cards"}
    shown = ((name, side.state or side.value) for name, side in sides.items())
    return ", ".join(f"{name} {said}" if name in named else said for name, said in shown if said)


SHOWN = {
    **LISTS,
    "waiting": _waiting_shown,
    "nodes": _nodes_shown,
    "devices": _devices_shown,
    "limits": _limits_shown,
}
"""The same for people: a node that joined is one row, and tells of the devices that came with; a
pod that waited and has a place is one row, and so is a limit that came or left.
"""


def _sides(
    before: Mapping[str, dict[str, Side]], after: Mapping[str, dict[str, Side]]
) -> Iterator[Difference]:
    for name in sorted({**before, **after}, key=natural):
        was, now = before.get(name, {}), after.get(name, {})
        if was is now or was == now:
            continue
        for side in {**was, **now}:
            one, other = was.get(side, _NOTHING), now.get(side, _NOTHING)
            if one != other:
                yield Difference(name, name, side, one, other)


def _node_state(node: NodeState) -> str:
    """Empty for one of which nobody has told yet, as for one that is not there."""
    if not node.present:
        return GONE if node.gone else ""
    return READY if node.ready else "silent" if node.silent else "not ready"


def _device(device: DeviceState) -> dict[str, Side]:
    failed = failure(device)
    health = Side(state=FAILED, reason=failed.reason) if failed else Side(state=OK)
    return {"health": health, "cordon": Side(reason=device.cordon)}


def _limits(state: State, wanted: Collection[str] | None) -> dict[str, dict[str, Side]]:
    """The sides of these limits; of all where None are named."""
    if wanted is not None and not wanted:
        return {}
    quotas = (quota for of_namespace in state.quotas.values() for quota in of_namespace.values())
    sides = {limit_name(each): _queue(each) for each in state.queues.values()}
    sides |= {limit_name(each): {"hard": Side(value=_amounts(each.hard))} for each in quotas}
    return {name: each for name, each in sides.items() if wanted is None or name in wanted}


def _queue(queue: QueueObserved) -> dict[str, Side]:
    cards = ", ".join(f"{each} {most:,}" for each, most in sorted(queue.cards.items()))
    return {
        "state": Side(state="open" if queue.open else "closed"),
        "weight": Side(value=str(queue.weight)),
        "capability": Side(value=_amounts(queue.capability)),
        "cards": Side(value=cards),
    }


def _amounts(most: Mapping[str, int]) -> str:
    """As in `cpu 8 CPU, nvidia.com/gpu 4`."""
    return ", ".join(f"{name} {of_resource(name, value)}" for name, value in sorted(most.items()))


def _value(value: Any) -> str:
    text: str = _encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


# ------------------------------------------------------------------ what an event touches


def _devices_of(state: State, node: str) -> tuple[str, ...]:
    known = state.nodes.get(node)
    return tuple(known.by_id) if known is not None else ()


_TOUCHED: dict[type, Callable[[State, Any], Part]] = {
    **dict.fromkeys(
        (PodPlaced, PodResized, PlacementVoided), lambda _, data: Part(pods=(data.pod,))
    ),
    # Devices of which nobody has told come with whoever holds them.
    PodAdopted: lambda _, data: Part((data.pod,), devices=[each.device for each in data.shares]),
    **dict.fromkeys((PodSubmitted, PodGone), lambda _, data: Part(pods=(data.uid,))),
    **dict.fromkeys(
        (QueueObserved, QuotaObserved), lambda _, data: Part(limits=(limit_name(data),))
    ),
    QuotaGone: lambda _, data: Part(limits=(quota_name(data.namespace, data.quota),)),
    # The devices that it reports now, and those that it did before.
    NodeReported: lambda state, data: Part(
        nodes=(data.node,),
        devices=[*(each.id for each in data.devices), *_devices_of(state, data.node)],
    ),
    # Once an API server has told of one, all others of which it does not tell are gone.
    NodeObserved: lambda state, data: Part(
        nodes=(*(state.nodes if data.version and not state.of_kubernetes else ()), data.node),
        devices=_devices_of(state, data.node),
    ),
    NodeGone: lambda state, data: Part(nodes=(data.node,), devices=_devices_of(state, data.node)),
    **dict.fromkeys(
        (NodeSilent, NodeHeard, NodeCordoned, NodeUncordoned, NodeCordonLifted),
        lambda _, data: Part(nodes=(data.node,)),
    ),
    **dict.fromkeys(
        (DeviceHealthChanged, DeviceCordoned, DeviceUncordoned, DeviceCordonLifted),
        lambda _, data: Part(devices=(data.device,)),
    ),
    ConfigurationChanged: lambda *_: Part(),
    PolicyChanged: lambda *_: Part(),
}
