"""Tests of parsing a configuration document: keys, alternative spellings, and errors with key,
value and fix."""

from typing import Any

import msgspec
import pytest

from apportion.core.configuration import read_configuration
from apportion.core.configuration.checks import half_life_ms, idle_after_s, reserve_after_s
from apportion.core.configuration.keys import KEYS
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Configuration
from apportion_schemas.configuration import FilterDevices, MigCount
from tests.support.golden import Golden

A30: dict[str, Any] = {
    "models": ["A30"],
    "allowedGeometries": [
        {"group": "group1", "geometries": [{"name": "1g.6gb", "memory": 6144, "count": 4}]},
        {"group": "group2", "geometries": [{"name": "2g.12gb", "memory": 12288, "count": 2}]},
    ],
}


def nvidia(**keys: Any) -> dict[str, Any]:
    return {"nvidia": keys}


def node(**keys: Any) -> dict[str, Any]:
    return {"nodeconfig": [{"name": "n1", **keys}]}


def refused(document: object) -> str:
    """Return the error message with which parsing refuses this document."""
    with pytest.raises(ManifestError) as caught:
        read_configuration(document)
    return str(caught.value)


PLUGIN_FILE = {
    "nvidia": {
        "resourceCountName": "volcano.sh/vgpu-number",
        "resourceMemoryName": "volcano.sh/vgpu-memory",
        "resourceMemoryPercentageName": "volcano.sh/vgpu-memory-percentage",
        "resourceCoreName": "volcano.sh/vgpu-cores",
        "resourcePriorityName": "volcano.sh/vgpu-priority",
        "overwriteEnv": False,
        "defaultMemory": 0,
        "defaultCores": 0,
        "defaultGPUNum": 1,
        "deviceSplitCount": 10,
        "deviceMemoryScaling": 1,
        "deviceCoreScaling": 1,
        "gpuMemoryFactor": 1,
        "disablecorelimit": False,
        "migStrategy": "none",
        "knownMigGeometries": [A30],
    },
    "nodeconfig": [
        {
            "name": "aio-node67",
            "operatingmode": "hami-core",
            "devicememoryscaling": 1.8,
            "devicecorescaling": 2,
            "devicesplitcount": 20,
            "migstrategy": "none",
            "filterdevices": {"uuid": ["GPU-a"], "index": [3]},
        }
    ],
}


def test_E2_the_device_plugin_s_own_file_is_taken_as_it_is() -> None:
    """Configuration files of Volcano's and HAMi's device plugins are accepted unchanged."""
    read = read_configuration(PLUGIN_FILE)
    (geometries,) = read.nvidia.known_mig_geometries
    assert geometries.allowed_geometries[1].geometries == (
        MigCount(name="2g.12gb", memory=12288, count=2),
    )
    (one,) = read.nodeconfig
    assert (one.operating_mode, one.mig_strategy, one.device_split_count) == (
        "hami-core", "none", 20,
    )  # fmt: skip
    assert (one.device_memory_scaling, one.device_core_scaling) == (1.8, 2.0)
    assert one.filter_devices == FilterDevices(uuid=("GPU-a",), index=(3,))


def test_an_empty_document_is_the_default() -> None:
    """An empty document leaves every key at its default."""
    assert read_configuration({}) == Configuration()


def test_other_spellings() -> None:
    """HAMi's key `memoryFactor` is accepted. Allowed MIG groups may lack a name, and are then named
    `group1`, `group2` and so on."""
    bare = [group["geometries"] for group in A30["allowedGeometries"]]
    read = read_configuration(
        nvidia(memoryFactor=2, knownMigGeometries=[{"models": ["A30"], "allowedGeometries": bare}])
    )
    assert read.nvidia.gpu_memory_factor == 2
    (geometries,) = read.nvidia.known_mig_geometries
    assert [group.group for group in geometries.allowed_geometries] == ["group1", "group2"]


WRONG = [
    [],
    {"nvidea": {}},
    nvidia(defaultMem=5000),
    nvidia(memoryFactor=2, gpuMemoryFactor=3),
    nvidia(deviceSplitCount="ten"),
    nvidia(deviceSplitCount=0),
    nvidia(deviceMemoryScaling=0),
    nvidia(resourceCountName="gpus"),
    nvidia(migStrategy="single"),
    nvidia(dialect="hami"),
    nvidia(resourceCountName="a.b/x", resourceMemoryName="a.b/x"),
    nvidia(resourceMemoryName="nvidia.com/gpu"),
    nvidia(resourceMemoryName="docker.com/vcuda-memory"),
    node(),
    {"nodeconfig": [{"name": "n1", "operatingmode": "mig"}] * 2},
    node(operatingmode="shared"),
    node(operatingmode="mig", devicememoryscaling=2),
    node(migstrategy="mixed"),
    node(enablenumatopology=True),
    node(filterdevices={"uid": []}),
    {"policy": {"nodes": "price", "weights": {"devices": 10}}},
    {"policy": {"weights": {"gpu": 10}}},
    {"policy": {"nodes": "random"}},
    {"queues": {"usageHalfLife": "1w"}},
    {"queues": {"usageHalfLife": "400d"}},
    {"queues": {"usageHalfLife": 7}},
    {"queues": {"usageWeight": 2}},
    {"queues": {"usageHalfLife": "7d", "usageWeight": 11}},
    {"queues": {"halfLife": "7d"}},
    {"queues": {"reserveAfter": "30s"}},
    {"queues": {"reserveAfter": "31d"}},
    {"idle": {"after": "59m"}},
    {"idle": {"after": "31d"}},
    {"idle": {"after": "4"}},
    {"idle": {"below": 5}},
    {"idle": {"after": "4h", "below": 51}},
    {"schedulerNames": ["a", "a"]},
]


def test_half_lives() -> None:
    """The half-life of past use is in hours or days. Without it, past use does not count."""
    for said, hours in (("1h", 1), ("36h", 36), ("7d", 168), ("365d", 8_760)):
        read = read_configuration({"queues": {"usageHalfLife": said}})
        assert half_life_ms(read.queues) == hours * 3_600_000
    assert half_life_ms(Configuration().queues) == 0


def test_the_time_until_a_reservation() -> None:
    """The time after which a pod gets a reservation is between one minute and 30 days."""
    for said, minutes in (("1m", 1), ("2h", 120), ("30d", 43_200)):
        queues = read_configuration({"queues": {"reserveAfter": said}}).queues
        assert reserve_after_s(queues) == minutes * 60
    assert reserve_after_s(Configuration().queues) == 0


def test_idle_times() -> None:
    """The time after which a pod is idle is between one hour and 30 days."""
    for said, minutes in (("60m", 60), ("90m", 90), ("1h", 60), ("720h", 43_200), ("30d", 43_200)):
        assert idle_after_s(read_configuration({"idle": {"after": said}}).idle) == minutes * 60
    assert idle_after_s(Configuration().idle) == 0


def test_refusals(golden: Golden) -> None:
    """Every error has the key, the value, the problem and the fix."""
    golden({str(document): refused(document) for document in WRONG})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"name": "3g.20gb"},
            '"group1" is not possible: A30 has no MIG profile 3g.20gb; it has 1g.6gb',
        ),
        ({"count": 5}, '"group1" is not possible: 5 x 1g.6gb do not fit on one A30 together'),
    ],
)
def test_A8_geometries_that_no_card_has(change: dict[str, object], says: str) -> None:
    """A MIG geometry that no GPU supports is refused, and the error names its group."""
    instance = {"name": "1g.6gb", "memory": 6144, "count": 4} | change
    groups = [{"group": "group1", "geometries": [instance]}]
    document = nvidia(knownMigGeometries=[{"models": ["A30"], "allowedGeometries": groups}])
    path = "nvidia.knownMigGeometries[0].allowedGeometries[0]: "
    assert refused(document).startswith(path + says)


def test_F20_a_part_of_a_models_name_is_refused() -> None:
    """A list of MIG geometries for `A100`, which is a part of several models' names, is refused."""
    groups = [{"group": "g", "geometries": [{"name": "1g.5gb", "memory": 5120, "count": 7}]}]
    document = nvidia(knownMigGeometries=[{"models": ["A100"], "allowedGeometries": groups}])
    said = 'knownMigGeometries[0].models: "A100" is not the name of a GPU model with MIG'
    assert said in refused(document)


def test_geometries_of_one_model_twice() -> None:
    """A second list of MIG geometries for the same model is refused, even if the model is spelled
    differently."""
    both = [A30, A30 | {"models": ["a30"]}]
    said = refused(nvidia(knownMigGeometries=both))
    assert said.startswith('nvidia.knownMigGeometries[1].models: "a30" ')
    assert "nvidia.knownMigGeometries[0]" in said


def paths(kind: Any, prefix: str = "") -> list[str]:
    """Return the path of every configuration key in this struct. `[]` marks list entries."""
    found: list[str] = []
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        at = f"{prefix}{field.encode_name}"
        inner = field.type
        if isinstance(inner, msgspec.inspect.VarTupleType) and at == "nodeconfig":
            inner, at = inner.item_type, f"{at}[]"
        if isinstance(inner, msgspec.inspect.StructType):
            found += paths(inner.cls, f"{at}.")
        else:
            found.append(at)
    return found


def test_every_key_is_told() -> None:
    """The documented table of keys lists every field of the configuration struct, in the same
    order."""
    assert [key.path for key in KEYS] == paths(Configuration)
