"""Tests of the CDI files that the agent writes for the slots of its device plugin. A container
runtime reads them when it starts a container."""

import json
from pathlib import Path
from typing import Any

import pytest

from apportion.agent.kubelet.cdi import Specifications
from apportion.agent.kubelet.plugin import slot_key, slot_names
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
    """Return a folder of CDI files: NVIDIA's and another vendor's, which sorts first."""
    (tmp_path / "another.json").write_text(json.dumps(OTHERS))
    (tmp_path / "nvidia.yaml").write_text(json.dumps(NVIDIAS))
    return Specifications(tmp_path)


def edits_of(folder: Path, slot: str) -> dict[str, Any]:
    """Return the container edits that a container runtime finds under the slot's name."""
    (device,) = json.loads((folder / f"apportion-{slot}.json").read_bytes())["devices"]
    assert device["name"] == slot
    return dict(device["containerEdits"])


def test_a_slot_has_what_nvidia_says_of_its_card(
    specifications: Specifications, tmp_path: Path
) -> None:
    """The CDI file of a slot contains the container edits that NVIDIA lists for the slot's own GPU,
    and for no other GPU. It disables NVIDIA's runtime with `NVIDIA_VISIBLE_DEVICES=void`."""
    ours = Edits({"NVIDIA_VISIBLE_DEVICES": "GPU-2"}, (Mount("/a", "/b"),), cards=("GPU-2",))
    specifications.write(["s1"], ours)
    found = edits_of(tmp_path, "s1")
    assert found["deviceNodes"] == [{"path": "/dev/nvidia1"}]
    assert found["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [mount["containerPath"] for mount in found["mounts"]] == ["/l", "/b"]


def test_a_card_in_mig_mode_has_what_is_said_of_all(
    specifications: Specifications, tmp_path: Path
) -> None:
    """If a slot's GPU is in MIG mode, the slot's CDI file has the edits that NVIDIA lists for all
    GPUs. The file also has the device nodes of the slot's own MIG instance."""
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
    """The CDI file of an NPU's slot has none of NVIDIA's edits."""
    specifications.write(["s1"], Edits({"ASCEND_VISIBLE_DEVICES": "0"}))
    assert edits_of(tmp_path, "s1") == {"env": ["ASCEND_VISIBLE_DEVICES=0"]}


def test_a_card_that_is_named_by_index_is_found_by_its_device_node(tmp_path: Path) -> None:
    """If a CDI file names GPUs by index, the agent finds a GPU by its device node, because index
    and minor number can differ."""
    cards = tmp_path / "proc" / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    cards.mkdir(parents=True)
    (cards / "information").write_text("Model: \t T4\nGPU UUID: \t GPU-7\nDevice Minor: \t 0\n")
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
        for name, paths in {
            "all": ("/dev/nvidia0", "/dev/nvidia1"), "0": ("/dev/nvidia1",), "1": ("/dev/nvidia0",)
        }.items()
    ]  # fmt: skip
    static = tmp_path / "etc"
    static.mkdir()
    common: dict[str, Any] = {**COMMON, "additionalGids": [44]}
    said = NVIDIAS | {"devices": devices, "cdiVersion": "0.7.0", "containerEdits": common}
    (static / "nvidia.json").write_text(json.dumps(said))
    made = Specifications(tmp_path / "cdi", (static,), tmp_path / "proc")
    made.write(["s1"], Edits({"NVIDIA_VISIBLE_DEVICES": "GPU-7"}, cards=("GPU-7",)))
    found = edits_of(tmp_path / "cdi", "s1")
    assert found["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert found["additionalGids"] == [44]
    assert (
        json.loads((tmp_path / "cdi" / "apportion-s1.json").read_bytes())["cdiVersion"] == "0.7.0"
    )


def test_network_devices_of_a_card_reach_the_container(tmp_path: Path) -> None:
    """The CDI file of a slot has the network devices that NVIDIA lists for the slot's GPU and for
    all GPUs. The file's CDI version supports network devices."""
    interfaces = [{"hostInterfaceName": f"ib{at}", "name": f"net{at}"} for at in range(2)]
    common = {**COMMON, "netDevices": interfaces[:1]}
    card = {"name": "GPU-1", "containerEdits": {"netDevices": interfaces[1:]}}
    said = NVIDIAS | {"cdiVersion": "1.1.0", "devices": [card], "containerEdits": common}
    (tmp_path / "nvidia.json").write_text(json.dumps(said))
    Specifications(tmp_path).write(["s1"], Edits({"A": "1"}, cards=("GPU-1",)))
    assert edits_of(tmp_path, "s1")["netDevices"] == interfaces
    assert json.loads((tmp_path / "apportion-s1.json").read_bytes())["cdiVersion"] == "1.1.0"


def test_a_card_that_no_specification_has_stays_visible_by_its_id(
    specifications: Specifications, tmp_path: Path
) -> None:
    """If no CDI file describes a GPU, its id stays in NVIDIA_VISIBLE_DEVICES, so that NVIDIA's
    runtime adds the GPU."""
    specifications.write(["s1"], Edits({"NVIDIA_VISIBLE_DEVICES": "GPU-9"}, cards=("GPU-9",)))
    assert edits_of(tmp_path, "s1")["env"][-1] == "NVIDIA_VISIBLE_DEVICES=GPU-9"


def test_files_of_slots_that_are_not_in_use_are_removed(
    specifications: Specifications, tmp_path: Path
) -> None:
    """A cleanup removes the CDI files of unused slots. Files of other programs stay."""
    specifications.write(["s1", "s2"], Edits({"A": "1"}))
    specifications.write(["s3"], Edits({"A": "3"}))
    specifications.sweep(lambda: {"s3"})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"apportion-s3.json", "another.json", "nvidia.yaml"}


def test_names_of_slots_cannot_be_guessed_and_stay_the_same(tmp_path: Path) -> None:
    """A slot's name is derived from the node's secret key. The name is unique, never changes, and
    is short enough for a CDI annotation."""
    key = slot_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    resource = f"example.com/{'x' * 60}"
    names = slot_names(resource, 9, key)
    assert names == slot_names(resource, 9, slot_key(tmp_path / "key"))
    assert names[:4] == slot_names(resource, 4, key)
    others = (slot_names("example.com/y", 9, key), slot_names(resource, 9, b"k" * 32))
    assert len({*names, *others[0], *others[1]}) == 27
    assert max(len(f"apportion_{name}") for name in names) <= 63
