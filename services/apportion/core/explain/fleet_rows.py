"""Pack each node into one short row, so that the console can draw ten thousand nodes.

Invariant: a row depends on its node only, so a newer row replaces an older one."""

from enum import IntFlag
from typing import Final

import msgspec
from msgspec import Struct

from apportion.core.answers.reads import Answer
from apportion.core.answers.visibility import Everyone, Namespace, OrEmpty, People
from apportion.core.devices.cordons import cordon_words
from apportion.core.ledger.state import NodeState, State

# Labels that name a pool of similar nodes; the first one present is used
POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)


class CardState(IntFlag):
    """Why a device cannot be used, as bit flags."""

    FAILED = 1
    CORDONED = 2
    ABSENT = 4


class PackedPod(Struct, frozen=True, array_like=True):
    """A pod that uses devices of the node."""

    namespace: Namespace
    name: OrEmpty[str]
    phase: Everyone[str]
    shares: Everyone[tuple[int, ...]]  # position of the device, MiB, cores
    gang: OrEmpty[str] = ""  # `namespace/name`


class PackedNode(Struct, frozen=True, array_like=True):
    """One node in the picture of the fleet, encoded as a short array."""

    node: Everyone[str]
    pool: Everyone[str]
    ready: Everyone[int]  # 1 or 0
    cordon: People[str]
    models: Everyone[tuple[tuple[str, int], ...]]  # model, and MiB of one device
    cards: Everyone[tuple[int, ...]]  # index, position in `models`, `CardState`
    notes: People[dict[str, str]]  # failures by position of the device
    pods: Everyone[tuple[PackedPod, ...]]
    cordons: People[dict[str, str]]  # authors by position of the device
    hardware: Everyone[tuple[tuple[int, int, str], ...]] = ()  # devices, model, mode


class PackedUse(Struct, frozen=True, array_like=True):
    """The usage of each share on a node; empty if unknown."""

    node: Everyone[str]
    shares: Everyone[tuple[tuple[str, int, float], ...]]  # pod, device index, fraction in use


class FleetAnswer(Answer, frozen=True):
    """The whole fleet as of a revision, or only the rows that changed after revision `after`."""

    revision: Everyone[int]
    whole: Everyone[bool]  # replaces all previous rows
    nodes: Everyone[tuple[msgspec.Raw, ...]] = ()  # encoded `PackedNode`
    gone: Everyone[tuple[str, ...]] = ()  # nodes that left the cluster
    heard: Everyone[int] = 0  # usage samples since the gateway started
    used: Everyone[tuple[msgspec.Raw, ...]] = ()  # encoded `PackedUse`
    time: Everyone[str] = ""


Kind = tuple[str, str]  # the model of a card, and its mode unless that is hami-core


def pool_of(node: NodeState) -> tuple[str, dict[Kind, int]]:
    """Return the name of the node's pool, and the device counts of a pool without a label.

    Without a pool label, the name lists the node's devices by model and mode."""
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
    return " + ".join(said) or "no devices", counts


def packed_node(node: NodeState) -> PackedNode:
    """Return the row of one node."""
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
    pods = list[PackedPod]()
    for pod in node.pods.values():
        shares: list[int] = []
        for share in pod.placement.shares if pod.placement else ():
            if share.device in place:
                shares += (place[share.device], share.memory_mib, share.cores)
        if shares:
            of, phase = pod.submitted, pod.phase.value
            pods.append(PackedPod(of.namespace, of.name, phase, tuple(shares), of.group))
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
        pods=tuple(pods),
        cordons=cordons,
        hardware=tuple(
            (count, names.index(model), mode) for (model, mode), count in hardware.items()
        ),
    )


_encode = msgspec.json.Encoder().encode


def packed_row(node: NodeState) -> msgspec.Raw:
    """Return the row of one node, encoded as JSON."""
    return msgspec.Raw(_encode(packed_node(node)))


def whole_fleet(state: State) -> FleetAnswer:
    """Return the rows of all present nodes, as of the state's revision."""
    there = (node for node in state.nodes.values() if node.present)
    return FleetAnswer(
        revision=state.revision, whole=True, nodes=tuple(packed_row(node) for node in there)
    )
