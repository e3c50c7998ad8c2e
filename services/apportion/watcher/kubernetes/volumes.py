"""The cluster's volumes, and the volume claims through which pods mount them.

Invariant: the ledger has a claim only if a pod in the ledger, or a pod bound to a node in the
cluster, mounts it."""

from collections.abc import Callable, Iterable
from typing import Any

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.pods.volumes import (
    Capacity,
    Claim,
    CsiDriver,
    Storage,
    StorageClass,
    Volume,
    claim_fact,
    read_capacity,
    read_claim,
    read_class,
    read_driver,
    read_volume,
)
from apportion.runtime.kube.watch import Kind, number
from apportion.watcher.kubernetes.kind import Marks, Problem, is_news, keys_of, known_as, readable
from apportion.watcher.kubernetes.objects import PodView
from apportion_schemas import (
    PodAdopted,
    PodGone,
    PodSubmitted,
    VolumeClaimGone,
    VolumeClaimObserved,
)

LEDGER, CLUSTER = "ledger", "cluster"
CLAIMS, VOLUMES, CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"
DRIVERS, CAPACITIES = "csidrivers", "csistoragecapacities"


class VolumeView(Marks):
    """The cluster's volume claims, volumes, storage classes, drivers and storage capacities."""

    def __init__(self, state: State, stir: Callable[[], None], problem: Problem) -> None:
        super().__init__(stir, (VolumeClaimObserved, VolumeClaimGone), ("namespace", "claim"))
        self._state = state
        self._problem = problem
        self.claims: dict[str, Claim] = {}
        self.mounted: dict[str, set[tuple[str, str]]] = {}  # (LEDGER or CLUSTER, pod uid)
        self.required: set[str] = set()  # CSI drivers that keep pods off nodes without them
        self.required_changed: Callable[[int], None] = lambda _version: None
        self._claim_of: dict[str, str] = {}
        self._marked_classes: set[str] = set()  # their claims are marked in `take`
        for uid, pod in state.pods.items():
            self._mount(LEDGER, uid, pod.submitted, live=True)
        volumes: dict[str, Volume] = {}
        classes: dict[str, StorageClass] = {}
        drivers: dict[str, CsiDriver] = {}
        capacities: dict[str, Capacity] = {}
        self.storage = Storage(volumes, classes, drivers, capacities)
        self.kinds: dict[str, Kind[Any]] = {
            CLAIMS: readable(
                "PersistentVolumeClaim",
                self.claims,
                read_claim,
                self._claim_changed,
                problem,
                expected=lambda: keys_of(state.volume_claims),
            ),
            VOLUMES: readable(
                "PersistentVolume", volumes, read_volume, self._volume_changed, problem
            ),
            CLASSES: readable(
                "StorageClass",
                classes,
                read_class,
                lambda name, *_: self._mark_classes((name,)),
                problem,
            ),
            DRIVERS: readable("CSIDriver", drivers, read_driver, self._driver_changed, problem),
            CAPACITIES: readable(
                "CSIStorageCapacity",
                capacities,
                read_capacity,
                lambda _name, before, now, _version: self._mark_classes(
                    each.storage_class_name for each in (before, now) if each
                ),
                problem,
            ),
        }

    def observe(self, change: Change) -> None:
        """Update after a pod was added to or removed from the ledger."""
        data = change.data
        if change.pod is None or change.refused:
            return
        if isinstance(data, PodSubmitted | PodAdopted):
            self._mount(LEDGER, change.pod.uid, change.pod.submitted, live=True)
        elif isinstance(data, PodGone):
            self._mount(LEDGER, change.pod.uid, change.pod.submitted, live=False)

    def follow(self, uid: str, before: PodView | None, now: PodView | None) -> None:
        """Update the mounted claims after a pod was bound to a node or left its node."""
        was, is_ = (view if view is not None and not view.ended else None for view in (before, now))
        if was is not None and is_ is not None and was.volume_claims == is_.volume_claims:
            return
        if was is not None:
            self._mount(CLUSTER, uid, was, live=False)
        if is_ is not None:
            self._mount(CLUSTER, uid, is_, live=True)

    def _mount(self, says: str, uid: str, about: PodSubmitted | PodView, *, live: bool) -> None:
        for claim in about.volume_claims:
            key = f"{about.namespace}/{claim}"
            pods = self.mounted.setdefault(key, set())
            if says == CLUSTER and not pods:
                self.mark(key)  # claims of the ledger's pods are written with the pods
            (pods.add if live else pods.discard)((says, uid))
            if not pods:
                del self.mounted[key]
                self.mark(key)

    def take(self) -> dict[str, None]:
        """Return the marked claims, and unmark them."""
        marked = super().take()
        if self._marked_classes:
            for key in self.mounted:
                claim = self.claims.get(key)
                if claim is None or claim.bound:  # a bound claim depends on its volume alone
                    continue
                if claim.storage_class in self._marked_classes:
                    marked[key] = None
            self._marked_classes.clear()
        return marked

    def everything(self) -> dict[str, None]:
        """Return all claims that pods mount, in the cluster or in the ledger."""
        return dict.fromkeys((*self.mounted, *keys_of(self._state.volume_claims)))

    def fact(self, key: str) -> VolumeClaimObserved | None:
        """Return the event with the claim's current values, or None if a volume is unreadable."""
        version = min(
            kind.version
            for name, kind in self.kinds.items()
            if name != CAPACITIES or kind.version  # older clusters lack them
        )
        claim = self.claims.get(key)
        if claim is not None:
            version = max(version, number(claim.metadata.resource_version))
        title = f"the volumes of PersistentVolumeClaim {key}"
        try:
            found = claim_fact(key, claim, self.storage, version)
        except (ManifestError, ValueError) as error:
            self._problem(title, str(error))
            return None
        self._problem(title, "")
        return found

    def differences(
        self, names: Iterable[str], coming: Iterable[str]
    ) -> Iterable[VolumeClaimObserved | VolumeClaimGone]:
        """Yield events for the claims that changed. New pods will mount the `coming` claims."""
        soon = set(coming)
        for key in dict.fromkeys((*names, *soon)):
            known: VolumeClaimObserved | None = known_as(self._state.volume_claims, key)
            if key not in self.mounted and key not in soon:
                self._problem(f"the volumes of PersistentVolumeClaim {key}", "")
                if known is not None:
                    yield VolumeClaimGone(namespace=known.namespace, claim=known.claim)
                continue
            wanted = self.fact(key)
            if wanted is not None and is_news(wanted, known):
                yield wanted

    def _claim_changed(
        self, key: str, before: Claim | None, now: Claim | None, _version: int
    ) -> None:
        if before is not None:
            self._claim_of.pop(before.spec.volume_name, None)
        if now is not None and now.spec.volume_name:
            self._claim_of[now.spec.volume_name] = key
        if key in self.mounted:
            self.mark(key)

    def _volume_changed(
        self, name: str, before: Volume | None, now: Volume | None, _version: int
    ) -> None:
        if self._claim_of.get(name) in self.mounted:
            self._marked[self._claim_of[name]] = None
        for volume in (before, now):
            if volume is None:
                continue
            ref = volume.spec.claim_ref
            if ref is not None and f"{ref.namespace}/{ref.name}" in self.mounted:
                self._marked[f"{ref.namespace}/{ref.name}"] = None
        self._mark_classes(each.storage_class for each in (before, now) if each)

    def _mark_classes(self, names: Iterable[str]) -> None:
        self._marked_classes.update(names)
        self._stir()

    def _driver_changed(
        self, name: str, before: CsiDriver | None, now: CsiDriver | None, version: int
    ) -> None:
        # Only matters if its capacities start or stop counting, or if nodes now need the driver.
        if before is not None and now is not None and before.spec == now.spec:
            return
        required = now is not None and now.spec.prevent_pod_scheduling_if_missing
        if required != (name in self.required):
            (self.required.add if required else self.required.discard)(name)
            self.required_changed(version)
        classes = self.storage.classes.items()
        self._mark_classes(key for key, each in classes if each.provisioner == name)
