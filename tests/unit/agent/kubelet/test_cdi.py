"""CDI files of slots: what is ours, and what NVIDIA's specification of the node says of a card."""

import json
from pathlib import Path
from typing import Any

import pytest

from apportion.agent.kubelet.cdi import Specifications
from apportion.core.grants import DeviceNode, Edits, Mount

COMMON = {
    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    "mounts": [{"hostPath": "/l", "containerPath": "/l"}],
}
NVIDIAS = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "GPU-2", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]}},
    ],
    "containerEdits": COMMON,
}
OTHERS = NVIDIAS | {"kind": "example.org/gpu", "containerEdits": {"env": ["WRONG=1"]}}


@pytest.fixture
def specifications(tmp_path: Path) -> Specifications:
    """With that of NVIDIA's toolkit there, and one of somebody else before it."""
    (tmp_path / "another.json").write_text(json.dumps(OTHERS))
    (tmp_path / "nvidia.yaml").write_text(json.dumps(NVIDIAS))
    return Specifications(tmp_path)


def edits_of(folder: Path, slot: str) -> dict[str, Any]:
    """What a runtime finds under the slot's name."""
    (device,) = json.loads((folder / f"apportion-{slot}.json").read_bytes())["devices"]
    assert device["name"] == slot
    return dict(device["containerEdits"])


def test_a_slot_has_what_nvidia_says_of_its_card(
    specifications: Specifications, tmp_path: Path
) -> None:
    """Of that card alone; the last word on what is visible is ours."""
    ours = Edits({"NVIDIA_VISIBLE_DEVICES": "GPU-2"}, (Mount("/a", "/b"),), cards=("GPU-2",))
    specifications.write(["s1"], ours)
    found = edits_of(tmp_path, "s1")
    assert found["deviceNodes"] == [{"path": "/dev/nvidia1"}]
    assert found["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=GPU-2"]
    assert [mount["containerPath"] for mount in found["mounts"]] == ["/l", "/b"]


def test_a_card_in_mig_mode_has_what_is_said_of_all(
    specifications: Specifications, tmp_path: Path
) -> None:
    """It does not stand there by its name; the nodes of its instance are ours to name."""
    nodes = (
        DeviceNode("/dev/nvidia7", 195, 7),
        DeviceNode("/dev/nvidia-caps/nvidia-cap12", 237, 12),
    )
    specifications.write(["s1", "s2"], Edits({"A": "1"}, device_nodes=nodes, cards=("GPU-7",)))
    found = edits_of(tmp_path, "s1")
    assert found["mounts"] == COMMON["mounts"]
    assert found["deviceNodes"] == [
        {"path": "/dev/nvidia7", "type": "c", "major": 195, "minor": 7},
        {"path": "/dev/nvidia-caps/nvidia-cap12", "type": "c", "major": 237, "minor": 12},
    ]
    assert "deviceNodes" not in edits_of(tmp_path, "s2")


def test_devices_of_another_vendor_have_nothing_of_nvidia(
    specifications: Specifications, tmp_path: Path
) -> None:
    """An NPU has no card of NVIDIA's."""
    specifications.write(["s1"], Edits({"ASCEND_VISIBLE_DEVICES": "0"}))
    assert edits_of(tmp_path, "s1") == {"env": ["ASCEND_VISIBLE_DEVICES=0"]}
