"""The volumes of the cluster, and what they mean for the claims that pods of ours mount.

A change of a volume or a class may concern any claim of that class, so those are marked when they
are compared and not one by one. Invariant: the ledger is told of claims that a pod of ours mounts,
and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from apportion.core.dialects import ManifestError
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.manifests.volumes import (
    Claim,
    Storage,
    StorageClass,
    Volume,
    claim_fact,
    read_claim,
    read_class,
    read_volume,
)
from apportion.runtime.kube.watch import number
from apportion.watcher.kubernetes_kind import Kind
from apportion_schemas import (
    PodAdopted,
    PodGone,
    PodSubmitted,
    VolumeClaimGone,
    VolumeClaimObserved,
)

CLAIMS, VOLUMES, CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"


class VolumeView:
    """Claims by `namespace/name`, volumes and classes by name; `stir` is called when any changes.

    `mounted` are the claims that live pods of the ledger mount, with the uids of those.
    """

    def __init__(
        self, state: State, stir: Callable[[], None], problem: Callable[[str, str], None]
    ) -> None:
        self._state = state
        self._stir = stir
        self._problem = problem
        self.claims: dict[str, Claim] = {}
        self.storage = Storage({}, {})
        self.mounted: dict[str, set[str]] = {}
        self._marked: dict[str, None] = {}
        self._marked_classes: set[str] = set()
        for uid, pod in state.pods.items():
            self._mount(uid, pod.submitted, live=True)
        volumes: dict[str, Volume] = {}
        classes: dict[str, StorageClass] = {}
        self.storage = Storage(volumes, classes)
        self.kinds: dict[str, Kind[Any]] = {
            CLAIMS: Kind(self.claims, self._read_claim, self._claim_changed, expected=tuple),
            VOLUMES: Kind(volumes, self._read_volume, self._volume_changed, expected=tuple),
            CLASSES: Kind(classes, self._read_class, self._class_changed, expected=tuple),
        }

    def observe(self, change: Change) -> None:
        """Take note of a pod of the ledger that came or went."""
        data = change.data
        if change.pod is None or change.refused:
            return
        if isinstance(data, PodSubmitted | PodAdopted):
            self._mount(change.pod.uid, change.pod.submitted, live=True)
        elif isinstance(data, PodGone):
            self._mount(change.pod.uid, change.pod.submitted, live=False)

    def _mount(self, uid: str, about: PodSubmitted, *, live: bool) -> None:
        for claim in about.volume_claims:
            key = f"{about.namespace}/{claim}"
            pods = self.mounted.setdefault(key, set())
            (pods.add if live else pods.discard)(uid)
            if not pods:
                del self.mounted[key]
                self.mark(key)

    def mark(self, key: str) -> None:
        """The claim is to be compared again, for something of it may have changed."""
        self._marked[key] = None
        self._stir()

    def take(self) -> dict[str, None]:
        """The claims to compare; they are marked no longer."""
        marked, self._marked = self._marked, {}
        if self._marked_classes:
            for key in self.mounted:
                claim = self.claims.get(key)
                if claim is not None and claim.storage_class in self._marked_classes:
                    marked[key] = None
            self._marked_classes.clear()
        return marked

    def everything(self) -> dict[str, None]:
        """All claims that matter, here or in the ledger."""
        return dict.fromkeys((*self.mounted, *self._known()))

    def fact(self, key: str) -> VolumeClaimObserved | None:
        """What is to be known of the claim; None where a volume of it cannot be read."""
        version = min(kind.version for kind in self.kinds.values())
        claim = self.claims.get(key)
        if claim is not None:
            version = max(version, number(claim.metadata.resource_version))
        try:
            return claim_fact(key, claim, self.storage, version)
        except (ManifestError, ValueError) as error:
            self._problem(f"PersistentVolumeClaim {key}", str(error))
            return None

    def differences(
        self, names: Iterable[str], coming: Iterable[str]
    ) -> Iterable[VolumeClaimObserved | VolumeClaimGone]:
        """What the ledger does not know of these claims, or knows otherwise.

        `coming`: claims of pods that it is told of next.
        """
        soon = set(coming)
        for key in dict.fromkeys((*names, *soon)):
            namespace, _, name = key.partition("/")
            known = self._state.volume_claims.get(namespace, {}).get(name)
            if key not in self.mounted and key not in soon:
                if known is not None:
                    yield VolumeClaimGone(namespace=namespace, claim=name)
                continue
            wanted = self.fact(key)
            if wanted is not None and _is_news(wanted, known):
                yield wanted

    def _known(self) -> list[str]:
        known = self._state.volume_claims.items()
        return [f"{name}/{claim}" for name, claims in known for claim in claims]

    def _read_claim(self, raw: bytes) -> tuple[str, Claim | None, int]:
        claim = read_claim(raw)
        return claim.key, claim, number(claim.metadata.resource_version)

    def _claim_changed(self, key: str, _before: object, _now: object, _version: int) -> None:
        if key in self.mounted:
            self.mark(key)

    def _read_volume(self, raw: bytes) -> tuple[str, Volume | None, int]:
        volume = read_volume(raw)
        return volume.metadata.name, volume, number(volume.metadata.resource_version)

    def _volume_changed(
        self, _name: str, before: Volume | None, now: Volume | None, _version: int
    ) -> None:
        for volume in (before, now):
            if volume is None:
                continue
            self._marked_classes.add(volume.spec.storage_class_name)
            ref = volume.spec.claim_ref
            if ref is not None and f"{ref.namespace}/{ref.name}" in self.mounted:
                self._marked[f"{ref.namespace}/{ref.name}"] = None
        self._stir()

    def _read_class(self, raw: bytes) -> tuple[str, StorageClass | None, int]:
        found = read_class(raw)
        return found.metadata.name, found, number(found.metadata.resource_version)

    def _class_changed(self, name: str, _before: object, _now: object, _version: int) -> None:
        self._marked_classes.add(name)
        self._stir()


def _is_news(wanted: VolumeClaimObserved, known: VolumeClaimObserved | None) -> bool:
    """Whether the ledger says otherwise, and no other watcher has seen a later version."""
    if known is None or known.version > wanted.version:
        return known is None
    return msgspec.structs.replace(wanted, version=known.version) != known
