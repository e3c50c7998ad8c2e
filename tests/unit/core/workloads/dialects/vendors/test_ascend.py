"""Tests of Ascend NPUs that HAMi's plugin registers on a node."""

import json

import pytest

from apportion.core.workloads.dialects.node_annotations import registration
from apportion_schemas import Device
from tests.support.vendor_nodes import vendor_node

COUNT = "huawei.com/Ascend910B3"
ENTRY = {
    "id": "Ascend910B3-0", "index": 0, "count": 4, "devmem": 65536, "devcore": 20,
    "type": "Ascend910B3", "health": True,
}  # fmt: skip


def npu(**notes: str) -> Device:
    """Return the NPU of a node with these annotations. `_` in a name stands for a hyphen."""
    named = {key.replace("_", "-"): value for key, value in notes.items()}
    register = {"hami.io/node-register-Ascend910B3": json.dumps([ENTRY])}
    (found,) = registration(vendor_node(register | named, {COUNT: 4})).devices
    return found


@pytest.mark.parametrize(
    ("notes", "mode"),
    [
        ({}, "vnpu"),
        ({"hami_vnpu_core": "true"}, "hami-core"),
        ({"hami_vnpu_core": "false"}, "vnpu"),
    ],
)
def test_a_registered_npu(notes: dict[str, str], mode: str) -> None:
    """An NPU is divided by templates, or softly if the node's annotation `hami-vnpu-core` is
    true."""
    found = npu(**notes)
    assert (found.family, found.model, found.mode) == ("ascend910b3", "Ascend910B3", mode)
    assert (found.memory_mib, found.cores, found.slots) == (65536, 20, 4)
