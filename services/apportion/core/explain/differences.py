"""What differs between two states: placements, nodes, devices, configuration and policy.

A picture holds what of a state can differ; taking one costs a look at each thing, and words are
made for what differs alone. Invariant: two pictures of equal states have no difference, and a
difference between pictures is one between the states.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from apportion.core.devices.shares import DeviceState
from apportion.core.explain.health import failure
from apportion.core.explain.lines import policy_words, shares_words
from apportion.core.ledger.state import NodeState, State
from apportion_schemas import Configuration, PolicyChanged, Share

VALUE_CHARS_MAX = 200
_encode = msgspec.json.Encoder(order="sorted").encode


class Held(NamedTuple):
    """What a pod holds, and where."""

    name: str
    node: str
    shares: tuple[Share, ...]

    @property
    def words(self) -> str:
        """As in `node-1: GPU-1a2b3c4d 3,000 MiB`."""
        return f"{self.node}: {shares_words(self.shares)}" if self.node else ""


class Picture(NamedTuple):
    """What of a state can differ from another one."""

    revision: int
    placements: dict[str, Held]
    nodes: dict[str, dict[str, str]]
    devices: dict[str, dict[str, str]]
    configuration: Configuration
    configuration_revision: int
    policy: PolicyChanged
    policy_revision: int


class Difference(NamedTuple):
    """One thing, what of it changed, and what that was and is; `key` is a uid for a pod."""

    key: str
    name: str
    what: str
    before: str
    after: str


def picture(state: State) -> Picture:
    """What of this state can differ; it stays as it is when the state goes on."""
    return Picture(
        revision=state.revision,
        placements={
            uid: Held(pod.full_name, pod.placement.node, pod.placement.shares)
            for uid, pod in state.pods.items()
            if pod.placement is not None
        },
        nodes={name: _node(node) for name, node in state.nodes.items()},
        devices={
            device.device.id: _device(device)
            for node in state.nodes.values()
            for device in node.devices
        },
        configuration=state.configuration,
        configuration_revision=state.configuration_revision,
        policy=state.policy,
        policy_revision=state.policy_revision,
    )


def placements(before: Picture, after: Picture) -> Iterator[Difference]:
    """Pods that hold something else, or hold it elsewhere."""
    nothing = Held("", "", ())
    for uid in before.placements | after.placements:
        was = before.placements.get(uid, nothing)
        now = after.placements.get(uid, nothing)
        if was != now:
            yield Difference(uid, now.name or was.name, "placement", was.words, now.words)


def nodes(before: Picture, after: Picture) -> Iterator[Difference]:
    """Nodes that came, left, were cordoned, or are ready or not."""
    yield from _sides(before.nodes, after.nodes)


def devices(before: Picture, after: Picture) -> Iterator[Difference]:
    """Devices that came, left, failed, recovered, or were cordoned."""
    yield from _sides(before.devices, after.devices)


def configuration(before: Picture, after: Picture) -> Iterator[Difference]:
    """The keys of the configuration that have another value."""
    was, now = structs.asdict(before.configuration), structs.asdict(after.configuration)
    for key, value in now.items():
        if was[key] != value:
            yield Difference(key, key, key, _value(was[key]), _value(value))


def policy(before: Picture, after: Picture) -> Iterator[Difference]:
    """How nodes and devices are preferred."""
    was, now = policy_words(before.policy), policy_words(after.policy)
    if was != now:
        yield Difference("policy", "policy", "policy", was, now)


def _sides(
    before: Mapping[str, dict[str, str]], after: Mapping[str, dict[str, str]]
) -> Iterator[Difference]:
    for name in sorted({**before, **after}):
        was, now = before.get(name, {}), after.get(name, {})
        if was is now or was == now:
            continue
        for side in {**was, **now}:
            if was.get(side, "") != now.get(side, ""):
                yield Difference(name, name, side, was.get(side, ""), now.get(side, ""))


def _node(node: NodeState) -> dict[str, str]:
    return {
        "state": "gone" if not node.present else "ready" if node.ready else "not ready",
        "cordon": node.cordoned,
    }


def _device(device: DeviceState) -> dict[str, str]:
    failed = failure(device)
    return {"health": f"failed: {failed.reason}" if failed else "ok", "cordon": device.cordon}


def _value(value: Any) -> str:
    text: str = _encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
