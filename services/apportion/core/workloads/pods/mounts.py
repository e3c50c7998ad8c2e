"""What a pod mounts: claims of volumes, and disks that it names itself, without a claim.

Source: kube-scheduler's VolumeRestrictions. Other volumes of a pod without a claim, as `azureDisk`
or `cinder`, keep it from no node there, and so they do not here. Invariant: two pods conflict by
their disks here exactly where two of these volumes do there.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from apportion.core.workloads import kube
from apportion.core.workloads.dialects.errors import ManifestError
from apportion_schemas import Disk, quantities

CLAIMS_MAX, DISKS_MAX = 256, 256
NAME_MAX = 1024
CLAIM_NAME_MAX: Final = quantities.NAME_MAX
OWN: Final = "-"
"""Begins the claim of a generic ephemeral volume, whose name begins with the pod's."""


def claims(volumes: Iterable[kube.Volume]) -> tuple[str, ...]:
    """The claims of `volumes`, in order; one of the pod's own by what follows the pod's name."""
    found: set[str] = set()
    for volume in volumes:
        if volume.persistent_volume_claim is not None:
            found.add(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.add(f"{OWN}{volume.name}")
    return tuple(sorted(found))


def whole_names(pod: str, found: Iterable[str]) -> tuple[str, ...]:
    """What the claims of a pod of that name are called; a longer name than there can be is none."""
    names = (pod + claim if claim.startswith(OWN) else claim for claim in found)
    return tuple(name for name in names if len(name) <= CLAIM_NAME_MAX)


class Mounted(NamedTuple):
    """What a pod mounts; see `claims` and `disks`."""

    claims: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()


def mounted(volumes: Any) -> Mounted:
    """The same of a pod that runs, by the `volumes` of its spec; of what cannot be read, nothing.

    The API server and the kubelet took them.
    """
    try:
        found = msgspec.convert(volumes or [], list[kube.Volume])
    except msgspec.ValidationError:
        return Mounted()
    names = claims(found)[:CLAIMS_MAX]
    try:
        return Mounted(names, disks(found, "spec"))
    except ManifestError:
        return Mounted(names)


def disks(volumes: list[kube.Volume], field: str) -> tuple[Disk, ...]:
    """The disks of `volumes`; an image of Ceph is one for each of its monitors.

    Raises:
        ManifestError: a name is too long, or there are too many.
    """
    found: dict[Disk, None] = {}
    for i, volume in enumerate(volumes):
        for disk in _of(volume):
            if len(disk.name) > NAME_MAX:
                at = f"{field}.volumes[{i}]"
                raise ManifestError(at, disk.name, "has too long a name", f"at most {NAME_MAX}")
            found[disk] = None
    if len(found) > DISKS_MAX:
        raise ManifestError(f"{field}.volumes", None, "names too many disks", f"{DISKS_MAX}")
    return tuple(found)


def _of(volume: kube.Volume) -> Iterator[Disk]:
    if (google := volume.gce_persistent_disk) is not None:
        yield Disk(name=f"gce/{google.pd_name}", read_only=google.read_only)
    if (amazon := volume.aws_elastic_block_store) is not None:
        yield Disk(name=f"aws/{amazon.volume_id}")  # not even to read is it for two
    if (target := volume.iscsi) is not None:
        yield Disk(name=f"iscsi/{target.iqn}", read_only=target.read_only)
    if (ceph := volume.rbd) is not None:
        for monitor in ceph.monitors:
            name = f"rbd/{monitor}/{ceph.pool}/{ceph.image}"
            yield Disk(name=name, read_only=ceph.read_only)
