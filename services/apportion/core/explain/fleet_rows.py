"""Nodes packed for a picture of the whole fleet: one short row each, for ten thousand of them.

A row stands alone: it says all that a picture shows of its node, so whoever holds older rows takes
a newer one in its place. Rows are arrays, in the order of the fields below; a card is two numbers
and a share three, because there are 80,000 cards and as many shares.

Invariant: a row depends on its node alone, so it changes only when the fold touches that node."""

from collections.abc import Iterable
from enum import IntFlag
from typing import Final

import msgspec
from msgspec import Struct

from apportion.core.answers.reads import Answer
from apportion.core.answers.visibility import Everyone, Namespace, OrEmpty, People
from apportion.core.devices.cordons import cordon_words
from apportion.core.ledger.state import NodeState, State

POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
"""Labels by which clusters name a pool of like nodes; the first that a node has names its pool."""


class CardState(IntFlag):
    """What is wrong with a card, as bits."""

    FAILED = 1
    CORDONED = 2
    ABSENT = 4


class PackedPod(Struct, frozen=True, array_like=True):
    """A pod that holds devices of the node.

    `shares` are triples, one behind the other: which card (its place in the row), MiB, cores.
    `gang` is its `namespace/name`, where the pod is of one."""

    namespace: Namespace
    name: OrEmpty[str]
    phase: Everyone[str]
    shares: Everyone[tuple[int, ...]]
    gang: OrEmpty[str] = ""


class PackedNode(Struct, frozen=True, array_like=True):
    """One node. `ready` is 1 or 0.

    `models` are pairs of a model and the MiB of one card. `cards` are triples, one behind the
    other: index, place in `models`, `CardState`. By the place of the card, `notes` say why it
    failed and `cordons` who took it off offer, for a card may be both; `cordon` is that of the
    whole node. `hardware` has the cards of a node whose pool no label names: how many, place in
    `models`, and the mode unless it is hami-core."""

    node: Everyone[str]
    pool: Everyone[str]
    ready: Everyone[int]
    cordon: People[str]
    models: Everyone[tuple[tuple[str, int], ...]]
    cards: Everyone[tuple[int, ...]]
    notes: People[dict[str, str]]
    pods: Everyone[tuple[PackedPod, ...]]
    cordons: People[dict[str, str]]
    hardware: Everyone[tuple[tuple[int, int, str], ...]] = ()


class PackedUse(Struct, frozen=True, array_like=True):
    """How busy the shares of a node are: `namespace/name`, index of the card, and a part of 1.

    Nothing in it: nobody tells any more."""

    node: Everyone[str]
    shares: Everyone[tuple[tuple[str, int, float], ...]]


class FleetAnswer(Answer, frozen=True):
    """The fleet as of a revision: all rows, or those that changed behind `after`.

    `whole` says which: a whole answer takes the place of everything that was known. `gone` are
    nodes that left. `nodes` are `PackedNode` and `used` are `PackedUse`, encoded already. `heard`
    is how far samples of use were heard, by the counting of this gateway's life; 0 in the past, of
    which no samples are kept."""

    revision: Everyone[int]
    whole: Everyone[bool]
    nodes: Everyone[tuple[msgspec.Raw, ...]] = ()
    gone: Everyone[tuple[str, ...]] = ()
    heard: Everyone[int] = 0
    used: Everyone[tuple[msgspec.Raw, ...]] = ()
    time: Everyone[str] = ""


Kind = tuple[str, str]
"""The model of a card, and its mode unless that is hami-core."""


def pool_of(node: NodeState) -> tuple[str, dict[Kind, int]]:
    """The pool that a node belongs to: its name by a label, else by the cards that are counted."""
    labels = node.host.labels
    for label in POOL_LABELS:
        if labels.get(label):
            return labels[label], {}
    counts: dict[Kind, int] = {}
    for state in node.devices:
        device = state.device
        kind = device.model, "" if device.mode == "hami-core" else device.mode
        counts[kind] = counts.get(kind, 0) + 1
    said = (f"{count} x {' '.join(filter(None, kind))}" for kind, count in counts.items())
    return " + ".join(said) or "no cards", counts


def packed_node(node: NodeState) -> PackedNode:
    """The row of one node."""
    models: dict[tuple[str, int], int] = {}
    cards: list[int] = []
    notes: dict[str, str] = {}
    cordons: dict[str, str] = {}
    place: dict[str, int] = {}
    for at, state in enumerate(node.devices):
        device = state.device
        place[device.id] = at
        model = models.setdefault((device.model, device.memory_mib), len(models))
        bits = CardState(0)
        if not state.healthy:
            bits |= CardState.FAILED
        if state.cordon:
            bits |= CardState.CORDONED
        if not state.present:
            bits |= CardState.ABSENT
        if state.health_reason:
            notes[str(at)] = state.health_reason
        if state.cordons:
            cordons[str(at)] = cordon_words(state.cordons)
        cards += (device.index, model, int(bits))
    pool, hardware = pool_of(node)
    names = [model for model, _ in models]
    return PackedNode(
        node=node.name,
        pool=pool,
        ready=int(node.ready),
        cordon=cordon_words(node.cordons) or node.cordoned,
        models=tuple(models),
        cards=tuple(cards),
        notes=notes,
        pods=tuple(_pods(node, place)),
        cordons=cordons,
        hardware=tuple(
            (count, names.index(model), mode) for (model, mode), count in hardware.items()
        ),
    )


def _pods(node: NodeState, place: dict[str, int]) -> Iterable[PackedPod]:
    for pod in node.pods.values():
        shares: list[int] = []
        for share in pod.placement.shares if pod.placement else ():
            if share.device in place:
                shares += (place[share.device], share.memory_mib, share.cores)
        if shares:
            submitted = pod.submitted
            yield PackedPod(
                submitted.namespace, submitted.name, pod.phase.value, tuple(shares), submitted.group
            )


_encode = msgspec.json.Encoder().encode


def packed_row(node: NodeState) -> msgspec.Raw:
    """The row of one node, encoded."""
    return msgspec.Raw(_encode(packed_node(node)))


def whole_fleet(state: State) -> FleetAnswer:
    """Every node that is there, as of the state's revision."""
    there = (node for node in state.nodes.values() if node.present)
    return FleetAnswer(
        revision=state.revision, whole=True, nodes=tuple(packed_row(node) for node in there)
    )
