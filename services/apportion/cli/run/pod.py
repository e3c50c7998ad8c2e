"""What `apportion run` submits: a command as the manifest of a pod, which is bound to this machine.

Invariant: it is written in the names that the cluster's configuration has for shares of GPUs, so
that a command never asks for nothing.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from apportion.cli.client.ledger import user
from apportion.cli.exits import NotFound, Wrong
from apportion.cli.pods.local_process import Run
from apportion.core.explain.answers import NodeDetail
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import read_document
from apportion.runtime.ledger.starting import CONTAINER

_LABEL_MAX: Final = 63
_FAMILY: Final = "nvidia"


class Asked(Struct, frozen=True):
    """So many devices, and of each MiB of memory and percent of compute; None is all of it."""

    memory: int | None
    cores: int | None
    count: int


def document(this: Run, program: str, asked: Asked, config: ManifestConfig) -> dict[str, Any]:
    """The command as a manifest; amounts of memory are in MiB."""
    names = config.dialects.hami
    given = {names.count: asked.count, names.memory: asked.memory, names.cores: asked.cores}
    limits = {name: str(value) for name, value in given.items() if value is not None}
    own = {"key": "metadata.name", "operator": "In", "values": [this.node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [own]}]}
    name = label(f"{program.rpartition('/')[2]}-{this.life.pid}-{this.life.started}")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": label(user()),
            "ownerReferences": [{"kind": this.kind, "name": this.name, "controller": True}],
        },
        "spec": {
            "containers": [{"name": CONTAINER, "resources": {"limits": limits}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        },
    }


def draft_of(manifest: dict[str, Any], config: ManifestConfig) -> PodDraft:
    """Raises Wrong where it cannot be read as a pod that asks for devices."""
    in_mib = msgspec.structs.replace(
        config, dialects=msgspec.structs.replace(config.dialects, memory_factor=1)
    )
    try:
        return read_document(manifest, in_mib).pods[0]
    except ManifestError as error:
        raise Wrong(str(error)) from None


def room_for(asked: Asked, node: str, detail: NodeDetail) -> None:
    """Raises NotFound where the machine would not have room if it were empty."""
    cards = [card for card in detail.devices if card.present and card.family == _FAMILY]
    if not cards:
        raise NotFound(f"{node} has no GPU of NVIDIA; see `apportion get devices`")
    largest = max(card.memory_mib for card in cards)
    if (asked.memory or 0) > largest:
        raise NotFound(
            f"--memory {asked.memory}: the largest device of {node} has {largest} MiB; ask for less"
        )
    enough = [card for card in cards if card.memory_mib >= (asked.memory or 0)]
    if asked.count > len(enough):
        of_size = f" with {asked.memory} MiB or more" if asked.memory else ""
        raise NotFound(
            f"--count {asked.count}: {node} has {len(enough)} of them{of_size}; ask for fewer"
        )


def label(text: str) -> str:
    """The text with what a name of Kubernetes may have in it (RFC 1123)."""
    kept = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    return kept[-_LABEL_MAX:].strip("-") or "run"
