"""Tests of the volumes that a pod mounts: its volume claims, and the disks that it names
directly."""

from typing import Any

import pytest

from apportion_schemas import Disk
from tests.support.manifests import draft, pod, refused

RBD = {"monitors": ["10.0.0.1:6789", "10.0.0.2:6789"], "image": "base"}


@pytest.mark.parametrize(
    ("volume", "disks"),
    [
        ({"gcePersistentDisk": {"pdName": "d"}}, (Disk(name="gce/d"),)),
        (
            {"gcePersistentDisk": {"pdName": "d", "readOnly": True}},
            (Disk(name="gce/d", read_only=True),),
        ),
        ({"awsElasticBlockStore": {"volumeID": "d", "readOnly": True}}, (Disk(name="aws/d"),)),
        ({"iscsi": {"targetPortal": "a", "iqn": "iqn.d", "lun": 1}}, (Disk(name="iscsi/iqn.d"),)),
        (
            {"rbd": RBD},
            (Disk(name="rbd/10.0.0.1:6789/rbd/base"), Disk(name="rbd/10.0.0.2:6789/rbd/base")),
        ),
        ({"azureDisk": {"diskName": "d", "diskURI": "u"}}, ()),
        ({"cinder": {"volumeID": "d"}}, ()),
        ({"csi": {"driver": "d"}}, ()),
    ],
)
def test_F16_disks_that_a_pod_names_itself(volume: dict[str, Any], disks: tuple[Disk, ...]) -> None:
    """The disks in a pod's spec are read if kube-scheduler checks them for conflicts, each disk
    once."""
    entries = [{"name": "a", **volume}, {"name": "b", **volume}, {"name": "c", "emptyDir": {}}]
    assert draft(pod(volumes=entries)).shape.node.disks == disks


def test_a_disk_with_too_long_a_name_is_refused() -> None:
    """A disk whose name is too long is refused, and the error contains the disk's index."""
    volumes = [{"name": "a", "rbd": {"monitors": ["m" * 600], "image": "d" * 600}}]
    assert refused(pod(volumes=volumes)).field == "spec.volumes[0]"


def test_too_many_disks_are_refused() -> None:
    """A pod with too many disks is refused; a Ceph image counts once per monitor."""
    monitors = [f"m{at}" for at in range(60)]
    volumes = [
        {"name": f"v{at}", "rbd": {"monitors": monitors, "image": str(at)}} for at in range(5)
    ]
    assert refused(pod(volumes=volumes)).field == "spec.volumes"
