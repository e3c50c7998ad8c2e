"""Compare two states of the ledger: placements, pending pods, nodes, devices, limits and settings.

A picture is a copy of the parts of a state that are compared. Invariants: pictures are equal
exactly if these parts are equal. An event changes only what `touched` returns."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

import apportion_schemas as schemas
from apportion.core.answers.past import READY, Side
from apportion.core.explain.health import failure
from apportion.core.explain.text.event_text import families_of, limit_name, policy_words, quota_name
from apportion.core.explain.text.words import of_resource
from apportion.core.ledger.state import NodeState, State
from apportion.core.names import natural

VALUE_CHARS_MAX = 200
GONE, OK, FAILED, PENDING = "gone", "ok", "failed", "pending"
WHOLE_LIMIT = "limit"  # the difference of a limit that was added or removed
_encode = msgspec.json.Encoder(order="sorted").encode


class Held(NamedTuple):
    """The node and the shares of a placed pod, as copied for a comparison of two states."""

    name: str
    node: str
    shares: tuple[schemas.Share, ...]
    asks: tuple[schemas.Ask, ...]

    @property
    def side(self) -> Side:
        """Return the placement as one side of a difference, before or after."""
        return Side(node=self.node, shares=self.shares, families=families_of(self.asks))


_NOTHING = Side()


class Picture(NamedTuple):
    """The parts of one state that are compared with those of another."""

    revision: int
    placements: dict[str, Held]
    nodes: dict[str, dict[str, Side]]
    devices: dict[str, dict[str, Side]]
    configuration: schemas.Configuration
    policy: schemas.PolicyChanged
    cards: dict[str, int]
    owners: dict[str, str]
    waiting: dict[str, str]  # pods without placement
    limits: dict[str, dict[str, Side]]

    def joined(self, before: "Picture", node: str) -> bool:
        """Return True if the node is in this picture but not in the one before."""
        now, was = self.nodes.get(node), before.nodes.get(node)
        is_there = now is not None and now["state"].state not in {"", GONE}
        return is_there and (was is None or not was["state"].state)


class Part(NamedTuple):
    """Selects which pods, nodes, devices and limits to compare. Settings are always compared."""

    pods: Collection[str] = ()  # by uid
    nodes: Collection[str] = ()
    devices: Collection[str] = ()
    limits: Collection[str] = ()


class Difference(NamedTuple):
    """A difference between two states: the object, the aspect that changed, and both values."""

    key: str
    name: str
    what: str
    was: Side
    now: Side
    left: str = ""  # uid of the pod that had this name before


def picture(state: State, part: Part | None = None) -> Picture:
    """Copy everything in the state that is compared, or only `part` of it."""
    pods, nodes, owners = state.pods, state.nodes, state.node_of_device
    if part is not None:
        pods = {uid: pods[uid] for uid in part.pods if uid in pods}
        nodes = {name: nodes[name] for name in part.nodes if name in nodes}
        owners = {device: owners[device] for device in part.devices if device in owners}
    devices: dict[str, dict[str, Side]] = {}
    for device, owner in owners.items():
        found = state.nodes[owner].by_id[device]
        failed = failure(found)
        health = Side(state=FAILED, reason=failed.reason) if failed else Side(state=OK)
        devices[device] = {"health": health, "cordon": Side(reason=found.cordon)}
    return Picture(
        revision=state.revision,
        placements={
            uid: Held(
                pod.full_name, pod.placement.node, pod.placement.shares, pod.submitted.shape.asks
            )
            for uid, pod in pods.items()
            if pod.placement is not None
        },
        nodes={
            name: {"state": Side(state=_node_state(node)), "cordon": Side(reason=node.cordoned)}
            for name, node in nodes.items()
        },
        devices=devices,
        configuration=state.configuration,
        policy=state.policy,
        cards={name: sum(d.present for d in node.devices) for name, node in nodes.items()},
        owners=dict(owners),
        waiting={uid: pod.full_name for uid, pod in pods.items() if pod.placement is None},
        limits=_limits(state, None if part is None else part.limits),
    )


def touched(state: State, data: Any) -> Part | None:
    """Return the part of the state that the event may change; None if it changes nothing."""
    found = _TOUCHED.get(type(data))
    return found(state, data) if found is not None else None


def placements(before: Picture, after: Picture) -> Iterator[Difference]:
    """Yield, in order of name, a difference for each pod whose node or shares changed.

    A pod that was resubmitted under the same name counts as moved."""
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for uid in before.placements | after.placements:
        was, now = before.placements.get(uid), after.placements.get(uid)
        if was == now:
            continue
        for held, at in ((was, 0), (now, 1)):
            if held is not None:
                pairs.setdefault(held.name, ([], []))[at].append(uid)
    for name in sorted(pairs, key=natural):
        left, came = pairs[name]
        # Pair the pods that are in both pictures first, then the others in order.
        both = [uid for uid in came if uid in before.placements]
        left = both + [uid for uid in left if uid not in both]
        came = both + [uid for uid in came if uid not in both]
        for old, new in zip_longest(left, came, fillvalue=""):
            one = before.placements[old].side if old else _NOTHING
            other = after.placements[new].side if new else _NOTHING
            gone = old if new and old != new else ""
            yield Difference(new or old, name, "placement", one, other, gone)


def waiting(before: Picture, after: Picture) -> Iterator[Difference]:
    """Yield the pods that became pending or are no longer pending, in order of name."""
    was, now = before.waiting, after.waiting
    changed = [(name, uid) for uid, name in (was | now).items() if (uid in was) != (uid in now)]
    for name, uid in sorted(changed, key=lambda each: (natural(each[0]), each[1])):
        one, other = (Side(state=PENDING) if uid in there else _NOTHING for there in (was, now))
        yield Difference(uid, name, "waiting", one, other)


def configuration(before: Picture, after: Picture) -> Iterator[Difference]:
    """Yield the keys of the configuration whose values differ."""
    if before.configuration is after.configuration:
        return
    was, now = structs.asdict(before.configuration), structs.asdict(after.configuration)
    for key, value in now.items():
        if was[key] != value:
            yield Difference(key, key, key, Side(value=_value(was[key])), Side(value=_value(value)))


def policy(before: Picture, after: Picture) -> Iterator[Difference]:
    """Yield one difference if the placement policy changed."""
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


def _nodes_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    for each in LISTS["nodes"](before, after):
        if each.what == "state" and after.joined(before, each.key):
            yield each._replace(now=structs.replace(each.now, cards=after.cards[each.key]))
        else:
            yield each


def _devices_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    for each in LISTS["devices"](before, after):
        came = each.was == _NOTHING and each.now.state == OK
        if not (came and after.joined(before, after.owners.get(each.key, ""))):
            yield each


def _waiting_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    """Yield the pods that began or stopped waiting, other than by placement or resubmission."""
    waited, waits = set(before.waiting.values()), set(after.waiting.values())
    placed = {held.name for held in after.placements.values()}
    for each in waiting(before, after):
        if each.name not in (waited if each.now.state else waits | placed):
            yield each


def _limits_shown(before: Picture, after: Picture) -> Iterator[Difference]:
    """Yield changes of limits; an added or removed limit is one difference."""
    for name, sides in groupby(LISTS["limits"](before, after), lambda each: each.name):
        if name in before.limits and name in after.limits:
            yield from sides
        else:
            was, now = (_whole(each.limits.get(name, {})) for each in (before, after))
            yield Difference(name, name, WHOLE_LIMIT, Side(value=was), Side(value=now))


def _whole(sides: Mapping[str, Side]) -> str:
    named = sides.keys() - {"state", "hard"}
    shown = ((name, side.state or side.value) for name, side in sides.items())
    return ", ".join(f"{name} {said}" if name in named else said for name, said in shown if said)


# The lists for users: a node that joined, a placed pod and a limit are one row each
SHOWN = {
    **LISTS,
    "waiting": _waiting_shown,
    "nodes": _nodes_shown,
    "devices": _devices_shown,
    "limits": _limits_shown,
}


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
    # A node that is not known yet has an empty state, like one that does not exist.
    if not node.present:
        return GONE if node.gone else ""
    return READY if node.ready else "silent" if node.silent else "not ready"


def _limits(state: State, wanted: Collection[str] | None) -> dict[str, dict[str, Side]]:
    if wanted is not None and not wanted:
        return {}
    quotas = (quota for of_namespace in state.quotas.values() for quota in of_namespace.values())
    sides = {limit_name(each): _queue(each) for each in state.queues.values()}
    sides |= {limit_name(each): {"hard": Side(value=_amounts(each.hard))} for each in quotas}
    return {name: each for name, each in sides.items() if wanted is None or name in wanted}


def _queue(queue: schemas.QueueObserved) -> dict[str, Side]:
    cards, deserved, guaranteed = (
        ", ".join(f"{each} {most:,}" for each, most in sorted(of.items()))
        for of in (queue.cards, queue.cards_deserved, queue.cards_guarantee)
    )
    return {
        "state": Side(state="open" if queue.open else "closed"),
        "parent": Side(value=queue.parent),
        "weight": Side(value=str(queue.weight)),
        "priority": Side(value=str(queue.priority or "")),
        "guarantee": Side(value=_amounts(queue.guarantee)),
        "cards guarantee": Side(value=guaranteed),
        "deserved": Side(value=_amounts(queue.deserved)),
        "cards deserved": Side(value=deserved),
        "capability": Side(value=_amounts(queue.capability)),
        "cards": Side(value=cards),
        "reclaimable": Side(value="" if queue.reclaimable else "no"),
        "order": Side(value="fifo" if queue.fifo else ""),
        "minimum runtime": Side(value=f"{queue.safe_s:,} s" if queue.safe_s else ""),
    }


def _amounts(most: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {of_resource(name, value)}" for name, value in sorted(most.items()))


def _value(value: Any) -> str:
    text: str = _encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def _devices_of(state: State, node: str) -> tuple[str, ...]:
    known = state.nodes.get(node)
    return tuple(known.by_id) if known is not None else ()


_TOUCHED: dict[type, Callable[[State, Any], Part]] = {
    **dict.fromkeys(
        (schemas.PodPlaced, schemas.PodResized, schemas.PlacementVoided),
        lambda _, data: Part(pods=(data.pod,)),
    ),
    # Unknown devices are created with the pod that uses them.
    schemas.PodAdopted: lambda _, data: Part(
        (data.pod,), devices=[each.device for each in data.shares]
    ),
    **dict.fromkeys(
        (schemas.PodSubmitted, schemas.PodGone), lambda _, data: Part(pods=(data.uid,))
    ),
    **dict.fromkeys(
        (schemas.QueueObserved, schemas.QuotaObserved),
        lambda _, data: Part(limits=(limit_name(data),)),
    ),
    schemas.QuotaGone: lambda _, data: Part(limits=(quota_name(data.namespace, data.quota),)),
    # Devices in this report, and those of the previous one.
    **dict.fromkeys(
        (schemas.NodeReported, schemas.DevicesRegistered),
        lambda state, data: Part(
            nodes=(data.node,),
            devices=[*(each.id for each in data.devices), *_devices_of(state, data.node)],
        ),
    ),
    # The first node from an API server removes all nodes that it does not list.
    schemas.NodeObserved: lambda state, data: Part(
        nodes=(*(state.nodes if data.version and not state.of_kubernetes else ()), data.node),
        devices=_devices_of(state, data.node),
    ),
    schemas.NodeGone: lambda state, data: Part(
        nodes=(data.node,), devices=_devices_of(state, data.node)
    ),
    **dict.fromkeys(
        (
            schemas.NodeSilent,
            schemas.NodeHeard,
            schemas.NodeCordoned,
            schemas.NodeUncordoned,
            schemas.NodeCordonLifted,
        ),
        lambda _, data: Part(nodes=(data.node,)),
    ),
    **dict.fromkeys(
        (
            schemas.DeviceHealthChanged,
            schemas.DeviceCordoned,
            schemas.DeviceUncordoned,
            schemas.DeviceCordonLifted,
        ),
        lambda _, data: Part(devices=(data.device,)),
    ),
    schemas.ConfigurationChanged: lambda *_: Part(),
    schemas.PolicyChanged: lambda *_: Part(),
}
