"""Tests of reading a pod's annotations: device constraints and policies, and the errors for invalid
ones."""

from typing import Any

import pytest

from apportion.core.workloads.dialects.node_annotations import unhealthy_indexes
from apportion_schemas import DeviceConstraints, DeviceWeights
from tests.support.golden import Golden
from tests.support.manifests import container, draft, pod, refused

GPU = {"nvidia.com/gpu": 1}
NPU = {"huawei.com/Ascend310P": 1}
VCUDA = {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4}


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        ({"volcano.sh/vgpu-mode": "mig"}, {"modes": ("mig",)}),
        ({"nvidia.com/vgpu-mode": "mps"}, {"modes": ("mps",)}),
        ({"nvidia.com/vgpu-mode": "mig,hami-core"}, {"modes": ("hami-core", "mig")}),
        ({"nvidia.com/vgpu-mode": "mig", "volcano.sh/vgpu-mode": "mig"}, {"modes": ("mig",)}),
        ({"nvidia.com/use-gputype": "V100, A100,V100"}, {"use_types": ("A100", "V100")}),
        ({"nvidia.com/nouse-gputype": "T4"}, {"nouse_types": ("T4",)}),
        ({"nvidia.com/use-gpuuuid": "GPU-b,GPU-a"}, {"use_ids": ("GPU-a", "GPU-b")}),
        ({"volcano.sh/vgpu-use-gpuuuid": "GPU-a"}, {"use_ids": ("GPU-a",)}),
        ({"nvidia.com/nouse-gpuuuid": "GPU-a"}, {"nouse_ids": ("GPU-a",)}),
        ({"volcano.sh/vgpu-nouse-gpuuuid": "GPU-a"}, {"nouse_ids": ("GPU-a",)}),
        ({"volcano.sh/gpu-index": "10,2"}, {"indexes": (2, 10)}),
        ({"nvidia.com/numa-bind": "true"}, {"numa_bind": True}),
        ({"nvidia.com/numa-bind": "false"}, {}),
        ({"someone.example/else": "x"}, {}),
    ],
)
def test_gpu_constraints(annotations: dict[str, str], wanted: dict[str, Any]) -> None:
    """Both HAMi's and Volcano's names of a GPU constraint are read. Lists are sorted, so that equal
    pods have one shape."""
    assert draft(pod(GPU, annotations)).shape.devices == DeviceConstraints(**wanted, plugin="hami")


def test_npu_constraints() -> None:
    """HAMi's annotation for NPUs has the device family in its name, and constrains that family."""
    notes = {"hami.io/use-Ascend310P-uuid": "b,a", "hami.io/no-use-Ascend310P-uuid": "c"}
    assert draft(pod(NPU, notes)).shape.devices == DeviceConstraints(
        use_ids=("a", "b"), nouse_ids=("c",), plugin="hami"
    )


@pytest.mark.parametrize(
    ("models", "lists", "field"),
    [
        (("910A",), ("310P",), "310P"),
        (("310P", "910A"), ("310P",), "310P"),
        (("310P", "910A"), ("910A",), "910A"),
        (("310P", "910A"), ("310P", "910A"), ""),
    ],
)
def test_a_list_for_another_model_of_npu_is_refused(
    models: tuple[str, ...], lists: tuple[str, ...], field: str
) -> None:
    """HAMi has a list for each model. All lists of a pod apply to all its NPUs here, so a model
    without a list would never fit."""
    containers = [
        container(each.lower(), limits={f"huawei.com/Ascend{each}": 1}) for each in models
    ]
    notes = {f"hami.io/use-Ascend{each}-uuid": each for each in lists}
    made = pod(None, notes, containers=containers)
    if field:
        assert refused(made).field == f'metadata.annotations["hami.io/use-Ascend{field}-uuid"]'
    else:
        assert set(draft(made).shape.devices.use_ids) == set(lists)


def test_policies() -> None:
    """HAMi's two policy annotations are read. They override the cluster's policies for this pod."""
    notes = {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"}
    shape = draft(pod(GPU, notes)).shape
    assert (shape.node_policy, shape.device_policy) == ("spread", "binpack")
    bare = draft(pod(GPU)).shape
    assert (bare.node_policy, bare.device_policy, bare.device_weights) == ("", "", None)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("binpack,numa", "binpack,numa"),
        (" numa , binpack,numa", "numa,binpack"),
        ("mutex", "mutex"),
        ("topology-aware,spread", "topology-aware,spread"),
    ],
)
def test_policy_chains(value: str, wanted: str) -> None:
    """A policy annotation may list several policies. Spaces and repetitions are ignored."""
    assert draft(pod(GPU, {"hami.io/gpu-scheduler-policy": value})).shape.device_policy == wanted


def test_scoring_weights() -> None:
    """The annotation with scoring weights may list slots, cores and memory in any order."""
    notes = {"hami.io/device-scoring-weights": "memory=3, slot=0 ,core=1"}
    assert draft(pod(GPU, notes)).shape.device_weights == DeviceWeights(slots=0, cores=1, memory=3)


def test_B4_a_core_limit_binds_no_decision() -> None:
    """gpu-manager's annotation for a core limit is accepted. It does not affect placement."""
    for limit in ("50", "100", "150", " "):  # more than 100 counts as 100, as in gpu-manager
        limited = draft(pod(VCUDA, {"tencent.com/vcuda-core-limit": limit}))
        assert limited == draft(pod(VCUDA))


WRONG = [
    (GPU, "volcano.sh/vgpu-mode", "shared"),
    (GPU, "nvidia.com/vgpu-mode", "vnpu"),
    (GPU, "nvidia.com/use-gputype", " , "),
    (GPU, "nvidia.com/use-gputype", "x" * 300),
    (GPU, "nvidia.com/use-gpuuuid", ",".join(map(str, range(300)))),
    (GPU, "volcano.sh/gpu-index", "0,two"),
    (GPU, "volcano.sh/gpu-index", "64"),
    (GPU, "volcano.sh/gpu-index", "-1"),
    (GPU, "volcano.sh/gpu-index", "²"),
    (GPU, "nvidia.com/numa-bind", "yes"),
    (GPU, "hami.io/node-scheduler-policy", "random"),
    (GPU, "hami.io/node-scheduler-policy", "binpack,spread"),
    (GPU, "hami.io/gpu-scheduler-policy", "binpack,best"),
    (GPU, "hami.io/gpu-scheduler-policy", "price"),
    (GPU, "hami.io/device-scoring-weights", "slot=1"),
    (GPU, "hami.io/device-scoring-weights", "slot=1,slot=2,core=1,memory=3"),
    (GPU, "hami.io/device-scoring-weights", "slot=1,core=-1,memory=3"),
    (GPU, "hami.io/device-scoring-weights", "slot=1,core=1,memory=1001"),
    (GPU, "hami.io/device-scoring-weights", f"slot={'9' * 5000},core=1,memory=1"),
    (GPU, "hami.io/device-scoring-weights", "slot=0,core=0,memory=0"),
    (GPU, "volcano.sh/vgpu-podgroup-policy", "apart"),
    (GPU, "tencent.com/vcuda-core-limit", "10"),
    (VCUDA, "docker.com/vcuda-core-limit", "10"),
    (VCUDA, "tencent.com/vcuda-core-limit", "101%"),
    (VCUDA, "tencent.com/vcuda-core-limit", "0"),
    (VCUDA, "tencent.com/vcuda-core-limit", "half"),
    (GPU, "hami.io/use-Ascend310P-uuid", "a"),
    (NPU, "huawei.com/vnpu-mode", "template"),
    (NPU, "huawei.com/vnpu-mode", "enpu"),
    (GPU, "huawei.com/vnpu-mode", "hami-core"),
    (NPU, "nvidia.com/use-gputype", "A100"),
]


def test_refusals(golden: Golden) -> None:
    """An invalid annotation is refused with its path and a fix."""
    errors = []
    for limits, key, value in WRONG:
        errors.append(refused(pod(limits, {key: value})))
        assert errors[-1].field == f'metadata.annotations["{key}"]'
    golden({"each names its annotation": "\n".join(map(str, errors))})


@pytest.mark.parametrize(
    ("notes", "key", "says"),
    [
        (
            {"nvidia.com/use-gputype": "a100", "nvidia.com/nouse-gputype": "A100,T4"},
            "nvidia.com/nouse-gputype",
            "excludes 'a100', which is also selected",
        ),
        (
            {"nvidia.com/use-gpuuuid": "GPU-a", "volcano.sh/vgpu-nouse-gpuuuid": "GPU-a"},
            "volcano.sh/vgpu-nouse-gpuuuid",
            "excludes",
        ),
        (
            {"nvidia.com/vgpu-mode": "mig", "volcano.sh/vgpu-mode": "mps"},
            "nvidia.com/vgpu-mode",
            "differs from volcano.sh/vgpu-mode",
        ),
        (
            {"nvidia.com/use-gpuuuid": "GPU-a", "volcano.sh/vgpu-use-gpuuuid": "GPU-b"},
            "volcano.sh/vgpu-use-gpuuuid",
            "keep one of them",
        ),
    ],
)
def test_contradictions(notes: dict[str, str], key: str, says: str) -> None:
    """A pod that requests a device and excludes the same device is refused."""
    error = refused(pod(GPU, notes))
    assert error.field == f'metadata.annotations["{key}"]'
    assert says in str(error)


@pytest.mark.parametrize(
    ("value", "indexes"),
    [("1,3", (1, 3)), (" 3 ,1,3", (1, 3)), ("0", (0,)), ("", ()), ("one,-1,64,9999,²,2", (2,))],
)
def test_unhealthy_indexes(value: str, indexes: tuple[int, ...]) -> None:
    """If a node's list of unhealthy device indexes cannot be read, no device counts as
    unhealthy."""
    assert unhealthy_indexes({"volcano.sh/gpu-unhealthy-ids": value}) == indexes
    assert unhealthy_indexes({}) == ()


def test_a_pod_without_devices_may_say_anything() -> None:
    """If a pod requests no devices, its device annotations are not checked."""
    assert (
        draft(pod({"cpu": 1}, {"volcano.sh/vgpu-mode": "?"})).shape.devices == DeviceConstraints()
    )
