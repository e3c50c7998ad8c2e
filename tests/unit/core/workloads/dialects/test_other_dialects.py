"""Tests of the resource names of vcuda, Ascend and Volcano's older sharing."""

from typing import Any

import msgspec
import pytest

from apportion.core.workloads.dialects.names import VOLCANO_VGPU
from apportion_schemas import Ask
from tests.support.golden import Golden
from tests.support.manifests import asks, container, draft, pod, refused


def ask(**fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", **{"family": "nvidia", **fields}),)


def vcuda(core: object = None, memory: object = None, by: str = "tencent") -> dict[str, Any]:
    """Return a pod with gpu-manager's resources, `tencent.com/vcuda-core` and
    `tencent.com/vcuda-memory`."""
    amounts = {f"{by}.com/vcuda-core": core, f"{by}.com/vcuda-memory": memory}
    return pod({name: amount for name, amount in amounts.items() if amount is not None})


def npu(word: str, count: object = None, memory: object = None) -> dict[str, Any]:
    """Return a pod with these amounts of an Ascend resource, such as `huawei.com/Ascend310P`."""
    amounts = {f"huawei.com/{word}": count, f"huawei.com/{word}-memory": memory}
    return pod({name: amount for name, amount in amounts.items() if amount is not None})


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (pod({"volcano.sh/gpu-memory": "4096"}), ask(memory_mib=4096)),
        (pod({"volcano.sh/gpu-number": "2"}), ask(count=2, cores=100)),
        (pod({"volcano.sh/gpu-number": 1, "volcano.sh/gpu-memory": 0}), ask(cores=100)),
        (pod({"volcano.sh/gpu-memory": "0"}), ()),
        (vcuda("20", "10"), ask(memory_mib=2560, cores=20)),
        (vcuda("99", "1", by="docker"), ask(memory_mib=256, cores=99)),
        (vcuda("100"), ask(cores=100)),
        (vcuda("200", "64"), ask(count=2, cores=100)),
        (vcuda("0"), ()),
        (vcuda("0", "0"), ()),
        (npu("Ascend310P", 1, 6144), ask(family="ascend310p", memory_mib=6144)),
        (npu("ascend310p", 1, 6144), ask(family="ascend310p", memory_mib=6144)),
        (npu("Ascend310P", None, 3072), ask(family="ascend310p", memory_mib=3072)),
        (npu("Ascend310P", 1), ask(family="ascend310p", cores=100)),
        (npu("Ascend910B4-1", 2), ask(family="ascend910b4-1", count=2, cores=100)),
        (npu("Ascend910B4", 1, 8192), ask(family="ascend910b4", memory_mib=8192)),
        (npu("Ascend910B2", 2, 65536), ask(family="ascend910b2", count=2, cores=100)),
        (npu("Ascend910C", 1), ask(family="ascend910c", count=2, cores=100)),
        (npu("Ascend910C", 4), ask(family="ascend910c", count=4, cores=100)),
        (npu("Ascend910C", 1, 16384), ask(family="ascend910c", memory_mib=16384)),
        (npu("Ascend910A", 0), ()),
    ],
)
def test_asks(document: dict[str, Any], wanted: tuple[Ask, ...]) -> None:
    """Every form of a request in these dialects is read in the dialect's own units."""
    assert asks(document) == wanted


@pytest.mark.parametrize(
    ("document", "resource", "says"),
    [
        (
            pod({"volcano.sh/gpu-number": 1, "volcano.sh/gpu-memory": 1}),
            "volcano.sh/gpu-number",
            "keep one of the two resources",
        ),
        (vcuda("150", "1"), "tencent.com/vcuda-core", "write 100 or 200"),
        (vcuda("6500"), "tencent.com/vcuda-core", "not between 1 and 64 devices"),
        (vcuda("20"), "tencent.com/vcuda-core", "add tencent.com/vcuda-memory in units of 256 MiB"),
        (vcuda(None, "20"), "tencent.com/vcuda-memory", "add tencent.com/vcuda-core"),
        (vcuda("20", 1 << 17), "tencent.com/vcuda-memory", "write at most 65536"),
        (npu("Ascend910C", 3), "huawei.com/Ascend910C", "write 2 or 4"),
        (
            npu("Ascend310P", 2, 6144),
            "huawei.com/Ascend310P-memory",
            "requested devices must be whole",
        ),
        (pod({"huawei.com/Ascend310P-core": 2}), "huawei.com/Ascend310P-core", "softly split"),
        (pod({"huawei.com/npu-core": 8}), "huawei.com/npu-core", "is not supported"),
    ],
)
def test_refusals(document: dict[str, Any], resource: str, says: str) -> None:
    """An invalid request is refused with the field's path and a fix."""
    error = refused(document)
    assert error.field == f'spec.containers[0].resources.limits["{resource}"]'
    assert says in str(error)


def test_two_families_in_one_container() -> None:
    """A container that requests two device families is refused. Two containers of a pod may request
    different families."""
    both = {"huawei.com/Ascend310P": 1, "huawei.com/Ascend910A": 1}
    assert refused(pod(both)).field == "spec.containers[0].resources"
    apart = [container(n[-1].lower(), {n: 1}) for n in both]
    assert {a.family for a in asks(pod(containers=apart))} == {"ascend310p", "ascend910a"}


def test_two_spellings_in_one_container(golden: Golden) -> None:
    """A container that sets a resource in two spellings is refused, because it is unknown which of
    them the device plugin reads."""
    error = refused(pod({"huawei.com/Ascend310P": 1, "huawei.com/ascend310p": 1}))
    golden({"Ascend310P and ascend310p": str(error)})


@pytest.mark.parametrize(
    ("limits", "dialect"),
    [
        ({"nvidia.com/gpu": 1}, "plain"),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}, "hami"),
        ({"volcano.sh/vgpu-number": 1}, "volcano-vgpu"),
        ({"volcano.sh/gpu-number": 1}, "volcano-share"),
        ({"docker.com/vcuda-core": 100}, "docker.com/vcuda"),
        ({"huawei.com/Ascend910A": 1}, "ascend"),
        ({"cpu": 1, "example.com/fpga": 1}, "none"),
    ],
)
def test_which_dialect(limits: dict[str, object], dialect: str) -> None:
    """A pod's dialect follows from all of its resource names."""
    assert draft(pod(limits)).dialect == dialect


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"nvidia.com/gpu": 1}, {"volcano.sh/vgpu-number": 1}),
        ({"volcano.sh/gpu-number": 1}, {"volcano.sh/vgpu-number": 1}),
        ({"docker.com/vcuda-core": 100}, {"tencent.com/vcuda-core": 100}),
        ({"volcano.sh/vgpu-number": 1}, {"huawei.com/Ascend910A": 1}),
    ],
)
def test_mixed_dialects(one: dict[str, object], other: dict[str, object]) -> None:
    """A pod that uses resource names of two dialects is refused. The error points to the second
    dialect's name."""
    (first,), (second,) = one, other
    error = refused(pod({**one, **other}))
    assert error.field == f'spec.containers[0].resources.limits["{second}"]'
    assert first in error.problem
    error = refused(pod(containers=[container("a", one), container("b", other)]))
    assert error.field == f'spec.containers[1].resources.limits["{second}"]'


def test_a_shared_name_goes_by_the_others() -> None:
    """If several dialects use the same name for the device count, the pod's other resource names
    decide its dialect (E4)."""
    names = msgspec.structs.replace(VOLCANO_VGPU, count="nvidia.com/gpu")
    limits = {"nvidia.com/gpu": 2, "volcano.sh/vgpu-memory": 3000}
    found = draft(pod(limits), volcano_vgpu=names)
    assert found.dialect == "volcano-vgpu"
    assert found.shape.asks == ask(count=2, memory_mib=3000, cap_memory=True)
    assert draft(pod({"nvidia.com/gpu": 2}), volcano_vgpu=names).dialect == "plain"
    assert "another dialect" in str(refused(pod(limits)))
