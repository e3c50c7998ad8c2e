"""Apportion reads the configuration files of HAMi's chart and of Volcano unchanged."""

from copy import deepcopy
from typing import Any

import pytest

from apportion.core.configuration import passed_over, read_configuration
from apportion.core.configuration.collect_errors import every_error
from apportion.core.devices.catalogue import FAMILIES
from apportion.core.workloads.dialects.vendors.ascend import NPUS, Npu
from apportion.core.workloads.document import ManifestError, below
from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.golden import Golden


def chip(npu: Npu) -> dict[str, Any]:
    """Return this NPU's entry as it appears in the configuration of HAMi's chart."""
    templates = [
        {"name": t.name, "memory": t.memory_mib, "aiCore": t.cores}
        | ({"aiCPU": t.cpu} if t.cpu else {})
        for t in FAMILIES[npu.family].templates
    ]
    return {
        "chipName": npu.word, "commonWord": npu.word, "resourceName": npu.count,
        "resourceMemoryName": npu.memory, "resourceCoreName": npu.cores,
        "memoryAllocatable": 32768, "memoryCapacity": 32768, "memoryFactor": 1, "aiCore": 20,
        "runtimeClassName": "", "overwriteEnv": False, "templates": templates,
        **({"superPod": True} if npu.paired else {}),
    }  # fmt: skip


CHART: dict[str, Any] = {
    "nvidia": {
        "resourceCountName": "nvidia.com/gpu",
        "resourceMemoryName": "nvidia.com/gpumem",
        "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
        "resourceCoreName": "nvidia.com/gpucores",
        "resourcePriorityName": "nvidia.com/priority",
        "overwriteEnv": False, "defaultMemory": 0, "defaultCores": 0, "defaultGPUNum": 1,
        "preConfiguredDeviceMemory": 0, "memoryFactor": 1, "deviceSplitCount": 10,
        "deviceMemoryScaling": 1, "deviceCoreScaling": 1, "enableNumaTopology": False,
        "gpuCorePolicy": "default", "libCudaLogLevel": 1, "runtimeClassName": "",
        "migProfileAllowlist": [
            {"models": ["A30"], "profiles": ["1g.6gb", "2g.12gb", "4g.24gb"]},
            {"models": ["A100-SXM4-80GB"],
             "profiles": ["1g.10gb", "2g.20gb", "3g.40gb", "7g.79gb"]},
            {"models": ["H100 on GH200"], "profiles": ["1g.12gb", "2g.24gb", "3g.48gb", "7g.96gb"]},
        ],
    },
    "cambricon": {
        "resourceCountName": "cambricon.com/vmlu",
        "resourceMemoryName": "cambricon.com/mlu.smlu.vmemory",
        "resourceCoreName": "cambricon.com/mlu.smlu.vcore",
    },
    "hygon": {"resourceCountName": "hygon.com/dcunum", "memoryFactor": 1},
    "metax": {"resourceCountName": "metax-tech.com/gpu", "sgpuTopologyAware": False},
    "enflame": {"resourceNameGCU": "enflame.com/gcu"},
    "mthreads": {"resourceCountName": "mthreads.com/vgpu"},
    "iluvatars": [{"chipName": "MR-V100"}],
    "kunlun": {"resourceCountName": "kunlunxin.com/xpu"},
    "awsneuron": {"resourceCountName": "aws.amazon.com/neuron"},
    "amd": {"resourceCountName": "amd.com/gpu"},
    "vastai": {"resourceCountName": "vastaitech.com/va"},
    "biren": {"resourceCountName": "birentech.com/gpu"},
    "vnpus": {"hamiVnpuCore": False, "configs": [chip(npu) for npu in NPUS]},
}  # fmt: skip
SIX = (
    "preConfiguredDeviceMemory", "enableNumaTopology", "gpuCorePolicy", "libCudaLogLevel",
    "runtimeClassName", "migProfileAllowlist",
)  # fmt: skip


def changed(path: str, value: object) -> dict[str, Any]:
    """Return a copy of the chart's configuration in which `value` replaces the key at this path."""
    document = deepcopy(CHART)
    *above, last = (int(key) if key.isdecimal() else key for key in path.split("."))
    part: Any = document
    for key in above:
        part = part[key]
    part[last] = value
    return document


def test_F6_the_file_of_hamis_chart_is_taken_whole() -> None:
    """The configuration file of HAMi's chart is accepted unchanged. Keys that have no effect in
    Apportion are listed, each once."""
    names = {key: name for key, name in CHART["nvidia"].items() if key.endswith("Name")}
    kept = {key: name for key, name in names.items() if key != "runtimeClassName"}
    assert read_configuration(CHART) == read_configuration({"nvidia": kept})
    assert {each.path for each in passed_over(CHART)} == {
        *(f"nvidia.{key}" for key in SIX), *(key for key in CHART if key != "nvidia"),
    }  # fmt: skip
    assert passed_over({"nvidia": kept}) == ()


def test_F6_the_list_of_older_files_and_nodes_of_config_json() -> None:
    """Volcano's older list `vnpus` and HAMi's keys for nodes are both accepted."""
    document = {
        "vnpus": [chip(NPUS[0])],
        "nodeconfig": [
            {"name": "n1", "operatingmode": "mig", "enablegetpreferredallocation": True}
        ],
    }
    assert [each.path for each in passed_over(document)] == [
        "nodeconfig[0].enablegetpreferredallocation", "vnpus",
    ]  # fmt: skip
    assert read_configuration(document).nodeconfig[0].operating_mode == "mig"


def test_F6_the_cores_of_instances_and_the_section_of_older_charts() -> None:
    """The keys `core` of MIG instances (HAMi 2.9) and `iluvatar` (charts up to 2.6) are accepted.
    Both are listed as keys without effect."""
    instance = {"name": "1g.5gb", "memory": 5120, "count": 7}
    geometries = [
        {"models": ["A100-40GB"], "allowedGeometries": [{"group": "g", "geometries": [instance]}]}
    ]
    plain: dict[str, Any] = {"nvidia": {"knownMigGeometries": geometries}}
    document = deepcopy(plain) | {"iluvatar": {"resourceCountName": "iluvatar.ai/vgpu"}}
    group = document["nvidia"]["knownMigGeometries"][0]["allowedGeometries"][0]
    group["geometries"][0]["core"] = 14
    assert read_configuration(document) == read_configuration(plain)
    paths = [each.path for each in passed_over(document)]
    assert paths == ["nvidia.knownMigGeometries", "iluvatar"]


def test_G6_a_known_npu_by_another_word_is_refused() -> None:
    """A configuration that renames the resource of a supported NPU model is refused.

    Otherwise, pods that request the NPU by this name would stay pending forever."""
    chips = [chip(NPUS[2]) | {"chipName": "910B3", "commonWord": "Ascend910B"}]
    other = {"resourceName": "huawei.com/Ascend910B"}
    other["resourceMemoryName"] = "huawei.com/Ascend910B-memory"
    chips[0] |= other
    found = {each.field: each for each in every_error({"vnpus": chips})}
    assert set(found) == {f"vnpus[0].{key}" for key in ("commonWord", *other)}
    word = found["vnpus[0].commonWord"]
    assert word.value == "Ascend910B"
    assert "Ascend910B3" in word.fix
    chips[0] |= {"commonWord": "Ascend910B3"}
    for key in other:
        del chips[0][key]
    assert read_configuration({"vnpus": chips}) == Configuration()


@pytest.mark.parametrize("entry", [{"chipName": "910B2C", "commonWord": "Ascend910B2C"}, {}])
def test_G6_an_npu_outside_the_catalogue_is_refused(entry: dict[str, str]) -> None:
    """A configuration with an NPU that Apportion does not know is refused. The fix names the known
    ones."""
    (wrong,) = every_error({"vnpus": {"configs": [chip(NPUS[0]), entry]}})
    assert (wrong.field, wrong.value) == ("vnpus.configs[1].commonWord", entry.get("commonWord"))
    assert "remove this entry, or use one of Ascend910A, " in wrong.fix


def test_F6_templates_of_the_910b4_1_in_older_charts(golden: Golden) -> None:
    """A configuration that gives NPU model 910B4-1 the templates of the 910B4 is refused. The error
    names both models.

    HAMi's charts 2.7 to 2.9 contain this mistake."""
    b4, b4_1 = (
        next(npu for npu in NPUS if npu.word == w) for w in ("Ascend910B4", "Ascend910B4-1")
    )
    chips = [chip(b4), chip(b4_1) | {"templates": chip(b4)["templates"]}]
    (wrong,) = every_error({"vnpus": {"configs": chips}})
    assert wrong.field == "vnpus.configs[1].templates"
    golden({"templates of the 910B4": f"{wrong.value} {wrong.problem}"})
    del chips[1]["templates"]
    assert read_configuration({"vnpus": {"configs": chips}}) == Configuration()


@pytest.mark.parametrize(
    ("key", "value"),
    [("hami-vnpu-core", True), ("filterDevices", {"index": [0]}), ("operatingmode", "mig")],
)
def test_F6_nodes_of_the_plugin_for_npus(key: str, value: object) -> None:
    """Under `nodes`, a key of HAMi's NPU plugin is accepted if its value changes nothing in
    Apportion. A key that would hide NPUs or change their mode is refused."""
    node = {"name": "n1", "hami-vnpu-core": False, "vDeviceCount": 4, "filterDevices": {}}
    assert [each.path for each in passed_over({"nodes": [node]})] == ["nodes"]
    with pytest.raises(ManifestError) as caught:
        read_configuration({"nodes": [node | {key: value}]})
    assert caught.value.field == below("nodes[0]", key)


def test_F6_a_core_policy_of_disable_is_obeyed() -> None:
    """A core policy of `disable` has the effect of `disableCoreLimit`. If both are set,
    `disableCoreLimit` wins."""
    nvidia = NvidiaConfiguration(disable_core_limit=True)
    document: dict[str, Any] = {"nvidia": {"gpuCorePolicy": "disable"}}
    assert read_configuration(document) == Configuration(nvidia=nvidia)
    assert not passed_over(document)
    document = {"nvidia": {"gpuCorePolicy": "disable", "disableCoreLimit": False}}
    assert read_configuration(document) == Configuration()
    assert [each.path for each in passed_over(document)] == ["nvidia.gpuCorePolicy"]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("nvidia.gpuCorePolicy", "force", '"force" is not supported; write default or disable'),
        ("nvidia.runtimeClassName", "nvidia", '"nvidia" is not supported; remove it, and set'),
        ("nvidia.preConfiguredDeviceMemory", 8192, "8192 is not supported; remove it"),
        ("nvidia.enableNumaTopology", True, "annotate pods with nvidia.com/numa-bind"),
        ("nvidia.enableNumaTopology", 0, "0 is not supported"),
        (
            "nvidia.migProfileAllowlist.0.profiles",
            ["1g.6gb"],
            "excludes 2g.12gb, which Apportion creates on A30",
        ),
        (
            "nvidia.migProfileAllowlist",
            [{"models": ["A100"], "profiles": ["1g.5gb", "2g.10gb"]}],
            "excludes 3g.20gb, which Apportion creates on A100",
        ),
        ("nvidia.migProfileAllowlist.0.profiles", "1g.6gb", "is not a list"),
        ("nvidia.migProfileAllowlist.0.models", [1], "is not text"),
        ("nvidia.migProfileAllowlist", [7], "is not an object"),
        ("cambricon.resourceCountName", "cambricon.com/mlu", '"cambricon.com/vmlu"'),
        ("cambricon", [], "is not an object"),
        ("vnpus.hamiVnpuCore", True, "true is not supported"),
        ("vnpus.configs.0.resourceName", "huawei.com/npu", '"huawei.com/Ascend910A"'),
        ("vnpus.configs.1.memoryFactor", 1024, "1024 is not supported"),
        ("vnpus.configs.5.superPod", False, "false is not supported"),
        ("vnpus.configs.6.templates.0.memory", 4096, "vir01 (4096 MiB)"),
        ("vnpus.configs.6.templates", [], "vir01 (3072 MiB)"),
        ("vnpus.configs.6.templates", 7, "is not a list"),
        ("vnpus.configs.6.templates", [7], "is not an object"),
        ("vnpus", 7, "is not a list"),
    ],
)
def test_F6_what_would_be_otherwise_is_refused_by_its_key(
    path: str, value: object, says: str
) -> None:
    """If HAMi supports a key's value and Apportion does not, the configuration is refused. The
    error has the key's path."""
    with pytest.raises(ManifestError) as caught:
        read_configuration(changed(path, value))
    assert says in str(caught.value)
