"""What a pod wants of a kind that a node or the fleet has not, beside what is there.

A slip of the pen in a label or a type looks like a fleet that is too small. Invariant: only what is
there is offered, of the families that the pod asks for.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from apportion.core.devices.catalogue import type_matches
from apportion.core.explain import wishes
from apportion.core.explain.lines import listed
from apportion.core.explain.natural import natural
from apportion.core.explain.near import near
from apportion.core.ledger.state import NodeState, State
from apportion_schemas import Device, RefusalCode, Shape

NAMED: Final = 8
"""So many models, modes or labels are named for a pod whose own is not there."""
TYPES_ALIKE: Final = 0.8
"""An H200 and an H100 are less than that, and none is a slip of the pen for the other."""
_C = RefusalCode
_MODELS: Final[Callable[[Device], str]] = lambda device: device.model  # noqa: E731 - beside the next
_MODES: Final[Callable[[Device], str]] = lambda device: device.mode  # noqa: E731 - in a table


def kind_words(code: RefusalCode, shape: Shape, node: NodeState) -> tuple[str, str] | None:
    """What is wanted and what the node has, where its cause is of kinds and not of amounts; of a
    gang the cause may be that of a pod which has ended since, whose wishes this one has not.
    """
    if code is _C.TYPE_MISMATCH and wishes.types(shape):
        return wishes.types(shape), " or ".join(_there([node], shape, _MODELS))
    if code is _C.MODE_MISMATCH and wishes.modes(shape):
        return wishes.modes(shape), " or ".join(_there([node], shape, _MODES))
    if code is _C.INDEX_MISMATCH and shape.devices.indexes:
        has = _there([node], shape, lambda device: str(device.index))
        return wishes.indexes(shape.devices), f"cards {listed(has, NAMED)}"
    if code is _C.NODE_LABELS_MISMATCH:
        have = [f"{key}={node.host.labels[key]}" for key in _keys(shape) if key in node.host.labels]
        return wishes.labels(shape), ", ".join(have) or "none of them"
    return None


def fleet_words(state: State, code: RefusalCode, shape: Shape) -> str:
    """What the fleet has instead, as in `; this fleet has T4; did you mean T4?`; empty for other
    causes.
    """
    nodes = state.nodes.values()
    if code is _C.TYPE_MISMATCH:
        models = _there(nodes, shape, _MODELS)
        return f"{_has(models)}{_type_meant(shape, models)}"
    if code is _C.MODE_MISMATCH:
        return _has(_there(nodes, shape, _MODES))
    return _labels_meant(state, shape) if code is _C.NODE_LABELS_MISMATCH else ""


def _has(things: list[str]) -> str:
    return f"; this fleet has {listed(things, NAMED)}" if things else ""


def _type_meant(shape: Shape, models: list[str]) -> str:
    """The parts of names of models that are like a type that none of them is of."""
    parts = {part for model in models for part in re.split(r"[\s-]+", model)}
    wrong = (
        name
        for name in shape.devices.use_types
        if not any(type_matches(name, model) for model in models)
    )
    return _meant(each for name in wrong for each in near(name, parts, alike=TYPES_ALIKE))


def _labels_meant(state: State, shape: Shape) -> str:
    """The labels that are like one that the pod selects and no node has."""
    meant = list[str]()
    for key, value in sorted(shape.node.selector.items()):
        labels = [node.host.labels for node in state.nodes.values() if node.present]
        values = {each[key] for each in labels if key in each}
        if not values:
            keys = near(key, {name for each in labels for name in each})
            meant += [
                f"{name}={value}"
                for name in keys
                if any(each.get(name) == value for each in labels)
            ]
        elif value not in values:
            meant += [f"{key}={each}" for each in near(value, values)]
    return _meant(meant)


def _meant(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return f"; did you mean {listed(found)}?" if found else ""


def _keys(shape: Shape) -> list[str]:
    return sorted({*shape.node.selector, *(e.key for term in shape.node.required for e in term)})


def _there(nodes: Iterable[NodeState], shape: Shape, what: Callable[[Device], str]) -> list[str]:
    """What the devices of the families asked for are, each once."""
    wanted = {ask.family for ask in shape.asks}
    held = (each for node in nodes if node.present for each in node.devices if each.present)
    return sorted({what(h.device) for h in held if h.device.family in wanted}, key=natural)
