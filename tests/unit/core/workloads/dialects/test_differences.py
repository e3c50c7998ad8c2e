"""Tests of pods that Apportion treats differently from the systems that it replaces, such as HAMi
and Volcano. Apportion either runs such a pod or refuses it with a reason.

The test names refer to the differences section of docs/reference/compatibility.md."""

import re
from typing import Any

import pytest
from msgspec import structs

from apportion.core.workloads.adoption.placement_annotations import annotations_for
from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.dialect import BoundPod
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import read_document
from apportion_schemas import (
    Ask,
    Configuration,
    Device,
    DeviceConstraints,
    NodeReported,
    PolicyChanged,
    RefusalCode,
)
from apportion_schemas.operations import Policy
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, A100_80, gpu, node, npu, rack
from tests.support.ledger_of import Ledger
from tests.support.manifests import asks, container, draft, pod, read, refused, task, volcano_job
from tests.support.pods import ask as own
from tests.support.pods import pod as submitted
from tests.support.pods import shape

GPU = {"nvidia.com/gpu": 1}
TESLA = "Tesla V100-PCIE-32GB"


def hami(**amounts: object) -> dict[str, Any]:
    """Return a pod with these amounts of HAMi's resources, such as `gpumem_percentage`."""
    return pod({f"nvidia.com/{name.replace('_', '-')}": n for name, n in amounts.items()})


def ask(**fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", **{"family": "nvidia", **fields}),)


def placed(document: dict[str, Any], *before: Payload) -> Ledger:
    """Fold these events, submit the manifest as pod `p`, and let the scheduler decide it."""
    found = draft(document)
    pod_p = submitted(
        "p", shape=found.shape, dialect=found.dialect, borrowing=found.borrowing,
        init_containers=found.init_containers, containers=found.containers,
    )  # fmt: skip
    return Ledger(*before, pod_p).settle()


def on(device: str) -> DeviceConstraints:
    return DeviceConstraints(use_ids=(device,))


def annotations(ledger: Ledger) -> dict[str, str]:
    """Return the annotations that the binder writes to pod `p`."""
    at = ledger.placement("p")
    return annotations_for(
        ledger.pod("p").submitted,
        at,
        revision=1,
        devices={name: state.device for name, state in ledger.node(at.node).by_id.items()},
        now_ns=0,
        configuration=Configuration(),
    )


# ---------------------------------------------------------------- HAMi and Volcano, NVIDIA


@pytest.mark.parametrize("name", [f"NVIDIA-{TESLA}", "NVIDIA", "nvidia-tesla", TESLA, "V100"])
def test_F2_a_type_is_also_known_as_the_plugin_registers_it(name: str) -> None:
    """A requested GPU type may begin with `NVIDIA-`, as HAMi's and Volcano's plugins write it."""
    fleet = rack("v", 1, model=TESLA)
    assert placed(pod(GPU, {"nvidia.com/use-gputype": name}), fleet).where("p") == "v"
    banned = placed(pod(GPU, {"nvidia.com/nouse-gputype": name}), fleet)
    assert banned.reasons("p") == {RefusalCode.TYPE_MISMATCH: 1}


@pytest.mark.parametrize("name", ["NVIDIA-NVIDIA A100-SXM4-80GB", "nvidia-nvidia"])
def test_F2_a_type_is_known_with_the_prefix_twice(name: str) -> None:
    """A requested GPU type may begin with `NVIDIA` twice, as HAMi up to 2.7 and Volcano register
    it."""
    fleet = rack("a", 1, model=A100_80)
    assert placed(pod(GPU, {"nvidia.com/use-gputype": name}), fleet).where("p") == "a"
    banned = placed(pod(GPU, {"nvidia.com/nouse-gputype": name}), fleet)
    assert banned.reasons("p") == {RefusalCode.TYPE_MISMATCH: 1}


def test_F2_a_prefix_makes_no_other_model() -> None:
    """A requested type must still match the model after the prefix: `NVIDIA-A10` matches neither a
    V100 nor an A100."""
    fleet = (rack("v", 1, model=TESLA), rack("a", 1, model=A100_80))
    ledger = placed(pod(GPU, {"nvidia.com/use-gputype": "NVIDIA-Tesla T4,A10"}), *fleet)
    assert ledger.reasons("p") == {RefusalCode.TYPE_MISMATCH: 2}


@pytest.mark.parametrize(("priority", "high"), [(0, ("main",)), (1, ()), (5, ())])
def test_F3_any_number_is_a_priority(priority: int, high: tuple[str, ...]) -> None:
    """A container's priority may be any number, as in HAMi's webhook. 0 is the highest."""
    found = draft(hami(gpu=1, gpumem=3000, priority=priority))
    assert found.high_priority == high
    assert found.shape.asks == ask(memory_mib=3000)


@pytest.mark.parametrize("value", ["", " ", "\t\n"])
@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (GPU, "nvidia.com/use-gputype"),
        (GPU, "nvidia.com/nouse-gputype"),
        (GPU, "nvidia.com/use-gpuuuid"),
        (GPU, "nvidia.com/nouse-gpuuuid"),
        (GPU, "volcano.sh/vgpu-use-gpuuuid"),
        (GPU, "volcano.sh/vgpu-nouse-gpuuuid"),
        (GPU, "volcano.sh/gpu-index"),
        (GPU, "nvidia.com/numa-bind"),
        (GPU, "hami.io/gpu-scheduler-policy"),
        ({"huawei.com/Ascend310P": 1}, "hami.io/use-Ascend310P-uuid"),
        ({"huawei.com/Ascend310P": 1}, "hami.io/no-use-Ascend310P-uuid"),
        ({"cambricon.com/vmlu": 1}, "cambricon.com/use-gpuuuid"),
    ],
)
def test_F5_a_blank_value_is_no_constraint(limits: dict[str, int], key: str, value: str) -> None:
    """An annotation with a blank value counts as absent, because Helm renders unset values as
    blank."""
    assert draft(pod(limits, {key: value})) == draft(pod(limits))


def test_F5_a_blank_value_differs_from_no_other_spelling() -> None:
    """If an annotation is set under two names, a blank value of one of them is ignored."""
    notes = {"nvidia.com/use-gpuuuid": "", "volcano.sh/vgpu-use-gpuuuid": "GPU-b"}
    assert draft(pod(GPU, notes)).shape.devices == DeviceConstraints(
        use_ids=("GPU-b",), plugin="hami"
    )


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (hami(gpu=1, gpumem_percentage=0), ask()),
        (hami(gpu=1, gpumem=3000, gpumem_percentage=0), ask(memory_mib=3000)),
        (hami(gpu=1, gpumem=0), ask()),
        (hami(gpu=1, gpumem=3000, gpucores=150), ask(memory_mib=3000, cores=100)),
        (hami(gpu=1, gpumem=3000, gpumem_percentage=50), ask(memory_mib=3000)),
        (hami(gpu=1, gpumem=3000, gpumem_percentage=100), ask(memory_mib=3000, cores=100)),
        (hami(gpu=1, gpumem=0, gpumem_percentage=50), ask(memory_percent=50)),
        (
            pod({"volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-memory-percentage": 50}),
            ask(memory_percent=50),
        ),
        (hami(gpu=0, gpumem=3000, gpucores=10), ()),
        (pod({"volcano.sh/vgpu-number": 0, "volcano.sh/vgpu-memory": 3000}), ()),
        (
            pod({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-core": 0}),
            ask(family="ascend310p", cores=100),
        ),
    ],
)
def test_F11_amounts_at_the_edge(document: dict[str, Any], wanted: tuple[Ask, ...]) -> None:
    """Amounts that are zero, too large or set twice are read as in HAMi or Volcano."""
    assert asks(document) == wanted


@pytest.mark.parametrize(
    ("value", "binds"),
    [("True", True), ("1", True), ("t", True), ("False", False), ("0", False), ("F", False)],
)
def test_F11_numa_bind_as_go_reads_it(value: str, *, binds: bool) -> None:
    """The values of the annotation `numa-bind` are read like Go's `strconv.ParseBool`."""
    wanted = DeviceConstraints(numa_bind=binds, plugin="hami")
    assert draft(pod(GPU, {"nvidia.com/numa-bind": value})).shape.devices == wanted


def test_F11_what_is_wanted_and_ruled_out_is_ruled_out_and_the_rest_serves() -> None:
    """If a pod both selects and excludes a device, the device is excluded. If no selected device
    remains, the pod is refused."""
    notes = {"nvidia.com/use-gpuuuid": "n1-g0,n1-g1", "nvidia.com/nouse-gpuuuid": "n1-g0"}
    assert placed(pod(GPU, notes), rack("n1", 3)).devices("p") == ["n1-g1"]
    error = refused(pod(GPU, notes | {"nvidia.com/nouse-gpuuuid": "n1-g1,n1-g0"}))
    assert error.field == 'metadata.annotations["nvidia.com/nouse-gpuuuid"]'


@pytest.mark.parametrize(("policy", "devices"), [("spread", 2), ("binpack", 1)])
def test_F7_two_pods_of_a_group_share_no_card_where_they_are_spread(
    policy: str, devices: int
) -> None:
    """If a gang has Volcano's policy `spread`, its pods do not share devices with each other
    (Volcano's `deviceHasPodFromSameGroup`)."""
    notes = {"volcano.sh/vgpu-podgroup-policy": policy, "scheduling.k8s.io/group-name": "job"}
    document = pod({"volcano.sh/vgpu-memory": 3000}, notes)
    found = draft(document)
    other = submitted("q", shape=found.shape, dialect=found.dialect)
    cluster = PolicyChanged(by="ann", node_policy="binpack", device_policy="binpack")
    ledger = placed(document, cluster, rack("n1", 3), other)
    assert len({*ledger.devices("p"), *ledger.devices("q")}) == devices


def test_F7_a_group_that_is_spread_has_cards_of_its_own() -> None:
    """If a gang has Volcano's policy `spread`, its pods use only idle devices. In Volcano, they may
    share with pods of other gangs."""
    notes = {"volcano.sh/vgpu-podgroup-policy": "spread", "hami.io/gpu-scheduler-policy": "numa"}
    document = pod({"volcano.sh/vgpu-memory": 3000}, notes)
    assert draft(document).shape.device_policy == "numa,mutex"
    ledger = placed(document, rack("n1", 1), submitted("q", own(1000)))
    assert ledger.reasons("p") == {RefusalCode.DEVICE_IN_USE: 1}


# ---------------------------------------------------------------- several containers


CARD = node("n1", gpu("g0", memory_mib=8000))


def shares(names: str, **amounts: int) -> list[dict[str, Any]]:
    """Return one container per keyword: its name, and its amount of the resource `names`."""
    return [container(name, {names: amount}) for name, amount in amounts.items()]


def test_F4_an_init_container_that_wants_more_is_placed_on_a_card_that_holds_it() -> None:
    """If an init container needs more memory than the main container, the pod's share has the
    larger amount. Each container keeps its own limit, as in HAMi."""
    document = pod(
        initContainers=shares("nvidia.com/gpumem", i=6000),
        containers=shares("nvidia.com/gpumem", main=3000),
    )
    ledger = placed(document, CARD)
    assert [(s.device, s.memory_mib) for s in ledger.shares("p")] == [("g0", 6000)]
    told = annotations(ledger)["hami.io/vgpu-devices-allocated"]
    assert told == "g0,NVIDIA,6000,0:;g0,NVIDIA,3000,0:;"


def test_F4_two_init_containers_use_the_same_memory() -> None:
    """Init and main containers use the same memory in turn, so only the largest amount counts."""
    document = pod(
        initContainers=shares("nvidia.com/gpumem", a=5000, b=6000),
        containers=shares("nvidia.com/gpumem", main=3000),
    )
    ledger = placed(document, CARD)
    assert [s.memory_mib for s in ledger.shares("p")] == [6000]
    told = annotations(ledger)["hami.io/vgpu-devices-allocated"]
    assert told == "g0,NVIDIA,5000,0:;g0,NVIDIA,6000,0:;g0,NVIDIA,3000,0:;"


def test_F4_init_containers_alone_use_the_same_memory() -> None:
    """If only init containers request memory, only the largest of their amounts counts."""
    document = pod(
        initContainers=shares("nvidia.com/gpumem", a=5000, b=6000), containers=[container("main")]
    )
    ledger = placed(document, CARD)
    assert [s.memory_mib for s in ledger.shares("p")] == [6000]
    told = annotations(ledger)["hami.io/vgpu-devices-allocated"]
    assert told == "g0,NVIDIA,5000,0:;g0,NVIDIA,6000,0:;;"


def test_F9_hami_counts_instances_of_cards_that_are_cut() -> None:
    """In a pod with HAMi's resource names, a count on MIG devices means instances.

    A request for two instances of 4000 MiB therefore fits on one A100."""
    document = hami(gpu=2, gpumem=4000)
    document["metadata"]["annotations"]["nvidia.com/vgpu-mode"] = "mig"
    ledger = placed(document, rack("n1", 1, model=A100_40, mode="mig"))
    assert ledger.devices("p") == ["n1-g0", "n1-g0"]
    starts = [s.instance.start for s in ledger.shares("p") if s.instance]
    assert len(set(starts)) == 2
    told = annotations(ledger)["hami.io/vgpu-devices-allocated"]
    assert told == "n1-g0,NVIDIA,4864,14:n1-g0,NVIDIA,4864,14:;"


def test_F9_volcano_counts_cards() -> None:
    """With Volcano's resource names, a count on a MIG node means devices, not instances.

    The rule is Volcano's `checkNodeGPUSharingPredicateAndScore`."""
    limits = {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 4000}
    ledger = placed(
        pod(limits, {"volcano.sh/vgpu-mode": "mig"}), rack("n1", 1, model=A100_40, mode="mig")
    )
    assert ledger.reasons("p") == {RefusalCode.DEVICES_TOO_FEW: 1}


def test_F9_instances_of_an_init_container_are_lent() -> None:
    """An init container reuses one of the main container's MIG instances."""
    document = hami()
    document["spec"] |= {
        "initContainers": [container("i", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000})],
        "containers": [container("main", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4000})],
    }
    document["metadata"]["annotations"]["nvidia.com/vgpu-mode"] = "mig"
    ledger = placed(document, rack("n1", 1, model=A100_40, mode="mig"))
    one = "n1-g0,NVIDIA,4864,14:"
    assert annotations(ledger)["hami.io/vgpu-devices-allocated"] == f"{one};{one}{one};"


def test_F13_the_memory_of_a_pod_is_of_one_card() -> None:
    """In Volcano's older sharing, all containers of a pod share one device, even with the policy
    `spread`."""
    document = pod(containers=shares("volcano.sh/gpu-memory", a=1000, b=3000))
    document["metadata"]["annotations"]["hami.io/gpu-scheduler-policy"] = "spread"
    ledger = placed(document, rack("n1", 2))
    assert [(s.device, s.memory_mib) for s in ledger.shares("p")] == [("n1-g0", 4000)]
    assert annotations(ledger)["volcano.sh/gpu-index"] == "0"
    assert [(ask.container, ask.memory_mib) for ask in draft(document).borrowing] == [
        ("a", 1000), ("b", 3000),
    ]  # fmt: skip


def test_F13_a_pod_of_more_than_one_card_has_no_place() -> None:
    """In Volcano's older sharing, a pod is refused if its containers together need more memory than
    one device has."""
    two = node("n1", *(gpu(f"g{n}", memory_mib=3500) for n in range(2)))
    document = pod(containers=shares("volcano.sh/gpu-memory", a=1000, b=3000))
    assert placed(document, two).reasons("p") == {RefusalCode.MEMORY_INSUFFICIENT: 1}
    document = pod(
        initContainers=shares("volcano.sh/gpu-memory", i=3500),
        containers=shares("volcano.sh/gpu-memory", a=1000, b=2000),
    )
    assert [s.memory_mib for s in placed(document, two).shares("p")] == [3500]


# ---------------------------------------------------------------- gpu-manager


@pytest.mark.parametrize("policy", ["binpack", "spread", "price"])
def test_F10_a_share_is_of_the_card_with_the_fewest_free_cores(policy: Policy) -> None:
    """Under every policy, a vcuda share is placed on the device with the fewest free cores, because
    gpu-manager's plugin chooses that one."""
    held = ((10, 70_000), (50, 1000), (50, 5000), (0, 0))
    before = (
        submitted(f"f{n}", shape=shape(own(memory_mib, cores=cores), devices=on(f"n1-g{n}")))
        for n, (cores, memory_mib) in enumerate(held)
    )
    cluster = PolicyChanged(by="ann", node_policy=policy, device_policy=policy)
    document = pod({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4})
    ledger = placed(document, cluster, rack("n1", 4), *before)
    assert ledger.devices("p") == ["n1-g2"]


def test_F10_what_a_pod_says_itself_counts() -> None:
    """If a pod with vcuda names has a policy annotation, that policy decides instead of
    gpu-manager's order."""
    limits = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}
    found = draft(pod(limits, {"hami.io/gpu-scheduler-policy": "spread"})).shape
    assert (found.device_policy, found.device_weights) == ("spread", None)


# ---------------------------------------------------------------- Ascend


@pytest.mark.parametrize("amounts", [{}, {"huawei.com/Ascend310P": 1}])
@pytest.mark.parametrize("memory_mib", [12289, 21527, 24576])
def test_F12_what_is_printed_on_a_device_is_the_whole_of_it(
    amounts: dict[str, int], memory_mib: int
) -> None:
    """An NPU offers less memory than its data sheet says (21527 of 24576 MiB). A request for the
    data sheet's memory gets the whole NPU."""
    document = pod(amounts | {"huawei.com/Ascend310P-memory": memory_mib})
    (share,) = placed(document, node("n1", npu("u0"))).shares("p")
    assert (share.template, share.memory_mib, share.cores) == (None, 21527, 8)


def test_F12_more_than_is_printed_fits_nowhere() -> None:
    """A request that exceeds the data sheet memory of an NPU fits no device.

    HAMi's webhook rejects such a pod."""
    document = pod({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 24577})
    ledger = placed(document, node("n1", npu("u0")))
    assert ledger.reasons("p") == {RefusalCode.TEMPLATE_NONE_FITS: 1}


DIES = pod({"huawei.com/Ascend910C": 2})


def dies(*indexes: int) -> NodeReported:
    """Return node n1 with these dies of Ascend 910C modules: dies 0 and 1 are one module, and so
    on."""
    kind: dict[str, Any] = {"model": "Ascend910C", "memory_mib": 65536, "cores": 20}
    return node("n1", *(npu(f"d{n}", family="ascend910c", **kind) for n in indexes))


@pytest.mark.parametrize(("free", "chosen"), [((0, 2, 3), ["d2", "d3"]), ((0, 1, 2), ["d0", "d1"])])
def test_F1_dies_of_a_910c_are_those_of_one_module(
    free: tuple[int, ...], chosen: list[str]
) -> None:
    """An Ascend 910C module has two dies. A pod gets both dies of one module (HAMi's
    `computeBestCombination910C`)."""
    assert placed(DIES, dies(*free)).devices("p") == chosen


def test_F1_two_dies_of_two_modules_are_no_pair() -> None:
    """If the only free dies belong to different modules, a pod that needs a pair is refused."""
    ledger = placed(DIES, dies(0, 2))
    assert ledger.reasons("p") == {RefusalCode.MODULES_IN_USE: 1}
    ledger.report(dies(0, 2, 3)).settle()
    assert ledger.devices("p") == ["d2", "d3"]


def test_F1_two_containers_have_a_module_each() -> None:
    """If two containers request a pair of dies each, each gets a module, so the pod needs two free
    modules."""
    both = pod(containers=[container(name, {"huawei.com/Ascend910C": 2}) for name in "ab"])
    assert placed(both, dies(0, 1, 3, 4, 5)).devices("p") == ["d0", "d1", "d4", "d5"]
    ledger = placed(both, dies(0, 1, 2, 4))
    assert ledger.reasons("p") == {RefusalCode.CONTAINERS_COLLIDE: 1}


WORD = "huawei.com/Ascend310P"
SPLIT_SOFTLY = {"huawei.com/vnpu-mode": "hami-core"}


def soft(name: str = "u0", **fields: Any) -> Device:
    """Return an Ascend 310P whose memory and cores can be split into any amounts."""
    return gpu(
        name, family="ascend310p", model="Ascend310P3", memory_mib=21527, mode="hami-core", **fields
    )


def test_F8_an_npu_that_is_split_softly_is_shared_by_memory_and_cores() -> None:
    """A pod that requests soft splitting gets exactly its memory and cores, without a template."""
    document = pod({WORD: 1, f"{WORD}-memory": 5000, f"{WORD}-core": 60}, SPLIT_SOFTLY)
    found = draft(document)
    second = submitted("q", shape=found.shape, dialect=found.dialect)
    ledger = placed(document, node("n0", npu("v0")), node("n1", soft())).submit(second).settle()
    (share,) = ledger.shares("p")
    assert (share.device, share.memory_mib, share.cores, share.template) == ("u0", 5000, 60, None)
    assert ledger.reasons("q") == {
        RefusalCode.MODE_MISMATCH: 1, RefusalCode.CORES_INSUFFICIENT: 1,
    }  # fmt: skip
    told = annotations(ledger)
    assert told["hami.io/Ascend310P-devices-allocated"] == "u0,Ascend310P,5000,60:;"
    assert told[WORD] == '[{"UUID":"u0","memory":5000,"core":60}]'


@pytest.mark.parametrize(
    ("amounts", "wanted"),
    [
        ({WORD: 2, f"{WORD}-memory": 5000}, ask(family="ascend310p", count=2, memory_mib=5000)),
        ({WORD: 1}, ask(family="ascend310p")),
        ({WORD: 1, f"{WORD}-core": 150}, ask(family="ascend310p", cores=100)),
        ({f"{WORD}-core": 10}, ask(family="ascend310p", cores=10)),
        ({"huawei.com/Ascend910C": 1}, ask(family="ascend910c", count=2)),
        ({WORD: 0, f"{WORD}-memory": 5000}, ()),
    ],
)
def test_F8_amounts_of_npus_that_are_split_softly(
    amounts: dict[str, int], wanted: tuple[Ask, ...]
) -> None:
    """With soft splitting, a pod may request parts of several NPUs. Cores are a percentage, as in
    HAMi."""
    assert asks(pod(amounts, SPLIT_SOFTLY)) == wanted


def test_F8_a_template_is_of_no_npu_that_is_split_softly() -> None:
    """A pod that needs a vNPU template is refused on a soft-split NPU.

    A pod that requests a whole NPU may get a soft-split one."""
    template = placed(pod({WORD: 1, f"{WORD}-memory": 6144}), node("n1", soft()))
    assert template.reasons("p") == {RefusalCode.MODE_MISMATCH: 1}
    whole = placed(pod({WORD: 1}), node("n1", soft()))
    assert [(s.memory_mib, s.cores) for s in whole.shares("p")] == [(21527, 100)]


def test_F8_what_hami_bound_to_such_an_npu_is_held() -> None:
    """A pod that HAMi bound to a soft-split NPU is adopted with its annotation's amounts.

    The pod's share has no vNPU template, even if a template has the same amounts."""
    notes = {"hami.io/Ascend310P-devices-allocated": "u0,Ascend310P,6144,30:;"}
    found = recover(BoundPod(notes, (), ("main",), (), DialectConfig()))
    assert found is not None
    (share,) = shares_of(found.held, (), {"u0": soft()}) or ()
    assert (share.memory_mib, share.cores, share.template) == (6144, 30, None)


# ---------------------------------------------------------------- other pod fields


def test_G1_a_privileged_pod_is_placed_and_charged() -> None:
    """A privileged pod is placed and gets a share like other pods, although HAMi rejects it."""
    main = container(limits=GPU, securityContext={"privileged": True})
    document = pod(containers=[main])
    assert draft(document) == draft(pod(GPU))
    (share,) = placed(document, rack("n1", 1)).shares("p")
    assert share.device == "n1-g0"


def test_G2_a_runtime_class_is_the_pods_own_business() -> None:
    """A runtime class does not affect placement."""
    assert draft(pod(GPU, runtimeClassName="nvidia")) == draft(pod(GPU))


def test_G3_a_gang_of_another_api_is_a_gang_with_its_api_in_its_name() -> None:
    """A pod may name its gang by the label or field of another API. The gang's name then contains
    that API.

    Volcano's annotation wins over the label, and a pod in two gangs is refused."""
    document = pod(GPU)
    document["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "job"}
    assert draft(document).group == "default/scheduling.x-k8s.io/job"
    native = pod(GPU, schedulingGroup={"podGroupName": "job"})
    assert draft(native).group == "default/scheduling.k8s.io/job"
    document["spec"]["schedulingGroup"] = {"podGroupName": "job"}
    assert refused(document).field == "spec.schedulingGroup.podGroupName"
    del document["spec"]["schedulingGroup"]
    document["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "job"}
    assert draft(document).group == "default/job"
    assert refused(pod(GPU, workloadRef={"name": "job"})).field == "spec.workloadRef"
    document["metadata"] = {"name": "p", "labels": {"scheduling.x-k8s.io/pod-group": "My_Job"}}
    assert "pod-group" in refused(document).field
    assert read_document(document, ManifestConfig(gangs=False)).pods[0].group == ""


@pytest.mark.parametrize(
    ("policy", "taken"), [("restricted", False), ("single-numa-node", False), ("best-effort", True)]
)
def test_G4_a_numa_node_for_the_cpus_is_refused(policy: str, *, taken: bool) -> None:
    """If Volcano would enforce a pod's NUMA policy, the pod is refused. If Volcano would only
    prefer it, the policy is ignored."""
    document = pod(GPU, {"volcano.sh/numa-topology-policy": policy})
    if taken:
        assert draft(document) == draft(pod(GPU))
    else:
        assert "nvidia.com/numa-bind" in refused(document).fix


@pytest.mark.parametrize(
    "key",
    [
        "sla-waiting-time",
        "volcano.sh/revocable-zone",
        "volcano.sh/task-topology-affinity",
        "volcano.sh/resource-strategy-scoring-type",
        "scheduling.volcano.sh/queue-allocation-gate",
    ],
)
def test_G4_what_volcano_only_prefers_has_no_effect(key: str) -> None:
    """Annotations that Volcano treats only as preferences have no effect."""
    assert draft(pod(GPU, {key: "x"})) == draft(pod(GPU))


@pytest.mark.parametrize(("value", "evictable"), [("false", False), ("", False), ("true", True)])
def test_G4_a_pod_that_is_not_preemptable_is_evicted_for_nobody(
    value: str, evictable: bool
) -> None:
    """The scheduler does not evict a pod with `volcano.sh/preemptable: false`."""
    assert draft(pod(GPU, {"volcano.sh/preemptable": value})).evictable is evictable
    assert draft(pod(GPU)).evictable
    error = refused(pod(GPU, {"volcano.sh/preemptable": "x"}))
    assert error.field == 'metadata.annotations["volcano.sh/preemptable"]'


@pytest.mark.parametrize(
    ("policy", "taken"),
    [("none", True), ("best-effort", True), ("restricted", False), ("single-numa-node", False)],
)
def test_G4_a_numa_policy_of_a_task_is_read_as_that_of_a_pod(policy: str, *, taken: bool) -> None:
    """In a Volcano Job, a task's `topologyPolicy` is refused if Volcano would enforce it."""
    document = volcano_job(task(GPU, topologyPolicy=policy))
    if taken:
        assert read(document).pods == read(volcano_job(task(GPU))).pods
    else:
        error = refused(document)
        assert error.field == "spec.tasks[0].topologyPolicy"
        assert "nvidia.com/numa-bind" in error.fix


def test_G6_a_name_of_ascend_that_is_none_of_ours_is_an_extended_resource() -> None:
    """An Ascend resource name that no dialect knows counts as an extended resource of the node, not
    as a device."""
    limits = {"huawei.com/Ascend910B": 1, "huawei.com/Ascend910B-memory": 2000}
    found = draft(pod(limits)).shape
    assert (found.asks, found.node.extended) == ((), limits)


def test_G7_a_pod_on_a_card_that_is_cut_without_its_instances_is_not_understood() -> None:
    """If HAMi's annotation names a MIG device but no instance, the pod's shares on the device
    cannot be read."""
    notes = {"hami.io/vgpu-devices-allocated": "g0,NVIDIA,5120,14:;"}
    found = recover(BoundPod(notes, (), ("main",), (), DialectConfig()))
    assert found is not None
    cut = gpu("g0", model=A100_40, mode="mig", slots=7)
    assert shares_of(found.held, (), {"g0": cut}) is None
    assert shares_of(found.held, (), {"g0": gpu("g0")}) is not None


@pytest.mark.parametrize(
    "document",
    [
        pod(GPU, {"nvidia.com/numa-bind": "notabool"}),
        pod({"cpu": 1, "nvidia.com/priority": 1}),
        pod({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 0}),
        pod({"tencent.com/vcuda-core": 150}),
        pod({"tencent.com/vcuda-core": 30}),
        pod({"tencent.com/vcuda-memory": 4}),
    ],
)
def test_G9_what_the_others_pass_over_is_refused(document: dict[str, Any]) -> None:
    """A pod that another system would run with a different share than requested is refused.

    The refusal suggests a fix."""
    assert refused(document).fix


def test_G9_an_unknown_policy_is_refused() -> None:
    """An unknown policy is refused, although HAMi and Volcano silently use their default."""
    error = refused(pod(GPU, {"hami.io/gpu-scheduler-policy": "bestfit"}))
    assert {"binpack", "spread"} <= set(re.findall(r"\w+", error.fix))


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({"nvidia.com/use-gpuuuid": "elsewhere"}, RefusalCode.UUID_MISMATCH),
        ({"nvidia.com/nouse-gpuuuid": "n1-g0"}, RefusalCode.UUID_MISMATCH),
        (
            {"nvidia.com/use-gpuuuid": "elsewhere", "nvidia.com/use-gputype": "T4"},
            RefusalCode.TYPE_MISMATCH,
        ),
        (
            {"nvidia.com/use-gpuuuid": "elsewhere", "nvidia.com/vgpu-mode": "mig"},
            RefusalCode.MODE_MISMATCH,
        ),
    ],
)
def test_G10_a_card_that_was_chosen_by_uuid(
    annotations: dict[str, object], code: RefusalCode
) -> None:
    """If a pod's UUID constraint alone excludes a device, the refusal says so."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
    ledger = placed(pod(limits, annotations), rack("n1", 1))
    assert ledger.reasons("p") == {code: 1}


def test_G10_a_node_of_too_few_cards_is_named_as_that() -> None:
    """If a node has fewer devices than requested, the refusal says so, even if the pod's
    constraints exclude them too."""
    document = pod({"nvidia.com/gpu": 2}, {"nvidia.com/use-gpuuuid": "elsewhere"})
    ledger = placed(document, rack("n1", 1))
    assert ledger.reasons("p") == {RefusalCode.DEVICES_TOO_FEW: 1}


def test_F5_a_list_of_commas_alone_is_refused() -> None:
    """A list that consists of commas only is refused."""
    error = refused(pod(GPU, {"nvidia.com/use-gpuuuid": " , ,"}))
    assert error.field == 'metadata.annotations["nvidia.com/use-gpuuuid"]'
    assert "is empty" in str(error)


@pytest.mark.parametrize(
    ("text", "containers"),
    [
        ("g0,NVIDIA,3000,30:;", ["gpu"]),
        (";g0,NVIDIA,3000,30:;;", ["gpu"]),
        ("g0,NVIDIA,6000,0:;g0,NVIDIA,3000,30:;", ["init", "gpu"]),
    ],
)
def test_F17_containers_without_devices_may_be_left_out(text: str, containers: list[str]) -> None:
    """HAMi 2.10 writes no segment for a container without devices. Earlier versions write an empty
    segment."""
    main = draft(pod({"nvidia.com/gpu": 1}, containers=[container("gpu", {"nvidia.com/gpu": 1})]))
    init = ("init",) if "init" in containers else ()
    borrowing = [structs.replace(main.shape.asks[0], container=name, init=True) for name in init]
    notes = {"hami.io/vgpu-devices-allocated": text}
    bound = BoundPod(
        notes, init, ("proxy", "gpu", "log"), main.shape.asks, DialectConfig(), borrowing
    )
    found = recover(bound)
    assert found is not None
    assert [each.container for each in found.held] == containers


@pytest.mark.parametrize(
    "text", [";g1,NVIDIA,12000,0:", "g1,NVIDIA,12000,0:;", "g1,NVIDIA,12000,0:"]
)
def test_F17_volcanos_segments_of_no_devices_are_passed_over(text: str) -> None:
    """Volcano writes an empty segment for a container whose number of GPUs is 0. The other
    container keeps its GPU."""
    number = "volcano.sh/vgpu-number"
    main = container("gpu", {number: 1, "volcano.sh/vgpu-memory": 12_000})
    found = draft(pod(containers=[container("none", {number: 0}), main]))
    notes = {"volcano.sh/vgpu-ids-new": text}
    bound = recover(BoundPod(notes, (), ("none", "gpu"), found.shape.asks, DialectConfig()))
    assert bound is not None
    assert [(each.container, each.device) for each in bound.held] == [("gpu", "g1")]


def test_F11_a_type_that_volcano_chooses_is_not_excluded() -> None:
    """With Volcano's names, excluded types have no effect on a pod that also chooses types."""
    types = {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "A100-SXM4-80GB"}
    ours = draft(pod({"volcano.sh/vgpu-number": 1}, types)).shape.devices
    assert (ours.use_types, ours.nouse_types) == (("A100",), ())
    hamis = draft(pod(GPU, types)).shape.devices
    assert hamis.nouse_types == ("A100-SXM4-80GB",)
    alone = {"nvidia.com/nouse-gputype": "A100", "nvidia.com/use-gputype": " "}
    assert draft(pod({"volcano.sh/vgpu-number": 1}, alone)).shape.devices.nouse_types == ("A100",)


def test_G17_more_memory_than_a_gpu_has_is_all_of_it() -> None:
    """With Volcano's names, a request for more memory than a GPU has gets all of its memory. An
    unhealthy GPU is not used."""
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 20_000}
    small = gpu("g0", memory_mib=15_360, physical_memory_mib=15_360)
    ledger = placed(pod(limits), node("n1", small))
    assert [each.memory_mib for each in ledger.shares("p")] == [15_360]
    failed = structs.replace(small, healthy=False)
    assert placed(pod(limits), node("n1", failed)).reasons("p") == {RefusalCode.DEVICE_UNHEALTHY: 1}


def test_G17_memory_is_capped_at_the_largest_gpu_of_the_cluster() -> None:
    """With Volcano's names, a request for too much memory is capped at the memory of the largest
    GPU in the cluster. A smaller GPU is used only once the cluster has no larger GPU."""
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 100_000}
    small = gpu("small", memory_mib=15_360, physical_memory_mib=15_360)
    large = gpu("large", memory_mib=40_960, physical_memory_mib=40_960)
    ledger = placed(pod(limits), node("n1", small, large))
    assert [(each.device, each.memory_mib) for each in ledger.shares("p")] == [("large", 40_960)]
    ledger.submit(submitted("later", own(100_000, cap_memory=True))).settle()
    assert ledger.reasons("later") == {RefusalCode.MEMORY_INSUFFICIENT: 1}
    ledger.gone("p").play(node("n1", small)).settle()
    assert [(each.device, each.memory_mib) for each in ledger.shares("later")] == [
        ("small", 15_360)
    ]


@pytest.mark.parametrize("percent", [101, -1])
def test_G17_a_percentage_that_is_none_is_refused(percent: int) -> None:
    """A percentage of memory above 100 or below 0 is refused with a fix."""
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": percent}
    assert refused(pod(limits)).fix
