"""Tests of configured resource names: which of them are accepted, and which are refused."""

import msgspec
import pytest

from apportion.core.workloads.dialects import DialectConfig, ManifestError
from apportion.core.workloads.dialects.listing import claimed
from apportion.core.workloads.document import shown

VGPU = ("count", "memory", "memory_percent", "cores")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"plain_count": "gpu"}, "matching regex"),
        ({"plain_count": "nvidia.com/"}, "matching regex"),
        ({"hami": dict.fromkeys(VGPU, "a.b/x")}, "duplicate resource name"),
        ({"memory_factor": 0}, ">= 1"),
        ({"default_cores": 101}, "<= 100"),
        ({"default_gpu_count": 0}, ">= 1"),
        ({"default_memory": 1}, "unknown field"),
    ],
)
def test_a_configuration_that_cannot_be_meant(document: dict[str, object], says: str) -> None:
    """A configuration is refused if a resource name has no domain or is used twice, if a number is
    out of range, or if a field is unknown."""
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(document, DialectConfig)


def test_every_known_name_is_claimed() -> None:
    """All dialects' resource names are known, so none counts as an extended resource of a node."""
    names = claimed(DialectConfig())
    assert {"nvidia.com/gpu", "nvidia.com/gpumem-percentage", "nvidia.com/priority"} <= names
    assert {"volcano.sh/vgpu-number", "volcano.sh/gpu-memory"} <= names
    assert {"docker.com/vcuda-core", "tencent.com/vcuda-memory"} <= names
    assert {"huawei.com/Ascend910B4-1-memory", "huawei.com/npu-core"} <= names
    assert "nvidia.com/mig-1g.5gb" not in names


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "it"),
        ("x" * 500, '"' + "x" * 80 + '"…'),
        ("a\nb", r'"a\nb"'),
        (True, "true"),
        (3, "3"),
        (1 << 2000, "a very large number"),
        ([1, 2], "a list of 2"),
        ({}, "an object of 0"),
        (b"", "a value of type bytes"),
    ],
)
def test_values_are_shown_short(value: object, said: str) -> None:
    """An error message shows a long value shortened to one line."""
    assert shown(value) == said
    bare = value is None or isinstance(value, list | dict)
    text = str(ManifestError("a", value, "is bad", "mend it"))
    assert text == f"a{'' if bare else f': {said}'} is bad; mend it"
