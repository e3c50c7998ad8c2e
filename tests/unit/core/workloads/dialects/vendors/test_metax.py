"""Tests of MetaX GPUs, whole and shared."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from apportion.core.configuration.hami_volcano_keys import without_foreign
from apportion.core.workloads.dialects.inventory import UNHEALTHY
from apportion.core.workloads.dialects.node_annotations import Registration, registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.vendor_nodes import METAX_CARDS, VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, NOW_S, annotations, ledger, place

SAMPLES = Path(__file__).resolve().parents[6] / "examples" / "vendors"
GPU = "metax-tech.com/gpu"
COUNT, MEMORY, CORES = "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"
REGISTER = "metax-tech.com/node-gpu-devices"
QOS, APP_CLASS = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class"
TOPOLOGY = "metax-tech.com/sgpu-topology-aware"
NODE = VENDORS["metax-sgpu"].node


def sgpu(count: object = 1, memory: object = None, cores: object = None) -> dict[str, Any]:
    amounts = {COUNT: count, MEMORY: memory, CORES: cores}
    return pod({name: amount for name, amount in amounts.items() if amount is not None})


def ask(**fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", family="metax-sgpu", **fields),)


def registered(*cards: object) -> Registration:
    return registration(vendor_node({REGISTER: json.dumps(cards)}, {COUNT: 64}))


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (sgpu(1, 4, 60), ask(memory_mib=4096, cores=60)),
        (sgpu(1, "4", 60), ask(memory_mib=4096, cores=60)),
        (sgpu(1, "2048Mi", 60), ask(memory_mib=2048, cores=60)),
        (sgpu(1, "2G", 60), ask(memory_mib=1907, cores=60)),
        (sgpu(2, "1.5Gi"), ask(count=2, memory_mib=1536, cores=100)),
        (sgpu(1), ask(cores=100)),
        (sgpu(1, 0), ask(cores=100)),
        (sgpu(1, 4, 0), ask(memory_mib=4096)),
        (sgpu(0, 4), ()),
    ],
)
def test_asks_for_sgpus(document: dict[str, Any], wanted: tuple[Ask, ...]) -> None:
    """Memory without a unit is in GiB. A request without memory gets all of the memory, and a
    request without cores gets the sGPU exclusively."""
    assert asks(document) == wanted


@pytest.mark.parametrize(
    ("document", "resource", "fact"),
    [
        (sgpu(65), COUNT, "64"),
        (sgpu(1, 4, 101), CORES, "100"),
        (sgpu(1, "512Ki"), MEMORY, "MiB"),
        (sgpu(1, "20Ti"), MEMORY, "16777216Mi"),
        (sgpu(1, 16385), MEMORY, "16384"),
        (sgpu(1, "0.5"), MEMORY, "fraction"),
    ],
)
def test_refused_amounts_of_sgpus(document: dict[str, Any], resource: str, fact: str) -> None:
    """An amount that no sGPU can have is refused, and the error states the limit."""
    error = refused(document)
    assert error.field == f'spec.containers[0].resources.limits["{resource}"]'
    assert fact in str(error)


@pytest.mark.parametrize("resource", [COUNT, MEMORY, CORES])
def test_sgpus_are_requested_in_limits(resource: str) -> None:
    """HAMi reads amounts of sGPUs from limits alone, so a request without a limit is refused."""
    limits = {COUNT: 1, MEMORY: 4, CORES: 60}
    request = {resource: limits.pop(resource)}
    main = {"name": "main", "resources": {"limits": limits, "requests": request}}
    error = refused(pod(containers=[main]))
    assert error.field == f'spec.containers[0].resources.requests["{resource}"]'


def test_whole_gpus() -> None:
    """A count of GPUs requests whole GPUs. A count of zero requests no GPU."""
    assert asks(pod({GPU: 2})) == (Ask(container="main", family="metax-gpu", count=2, cores=100),)
    assert asks(pod({GPU: 0})) == ()


def test_choice_by_id() -> None:
    """Lists of ids choose among sGPUs. On a pod with whole GPUs, such a list is refused, because
    HAMi would ignore it."""
    notes = {"metax-tech.com/use-gpuuuid": "GPU-a,GPU-b", "metax-tech.com/nouse-gpuuuid": "GPU-c"}
    assert draft(pod({COUNT: 1}, notes)).shape.devices == DeviceConstraints(
        use_ids=("GPU-a", "GPU-b"), nouse_ids=("GPU-c",), plugin="hami"
    )
    error = refused(pod({GPU: 1}, notes))
    assert error.field == 'metadata.annotations["metax-tech.com/use-gpuuuid"]'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (QOS, "fixed-share"),
        (QOS, "burst-share"),
        (QOS, "other"),
        (APP_CLASS, "online"),
        (APP_CLASS, "offline"),
        (TOPOLOGY, "true"),
        (TOPOLOGY, "maybe"),
    ],
)
def test_refused_annotations(key: str, value: str) -> None:
    """A pod is refused if its annotations set another policy than `best-effort`, a class of pods,
    or topology awareness."""
    error = refused(pod({COUNT: 1}, {key: value}))
    assert (error.field, error.value) == (f'metadata.annotations["{key}"]', value)


def test_annotations_without_effect() -> None:
    """Annotations of a pod with sGPUs are accepted if they set the policy `best-effort`, switch a
    function off, or are empty. On pods without sGPUs, they are refused."""
    notes = {QOS: "best-effort", APP_CLASS: "", TOPOLOGY: "false"}
    assert draft(pod({COUNT: 1}, notes)).shape.asks == ask(cores=100)
    for key, value in notes.items():
        assert key in refused(pod({"nvidia.com/gpu": 1}, {key: value})).field


def test_annotations_of_shared_gpus() -> None:
    """A placed pod gets HAMi's annotations, and MetaX's annotation: JSON with one list per
    container."""
    document = pod(
        containers=[
            container("a", {COUNT: 1, MEMORY: 4, CORES: 60}),
            container("b"),
            container("c", {COUNT: 2, MEMORY: "2048Mi", CORES: 0}),
        ]
    )
    notes = annotations(NODE, document)
    segments = notes["hami.io/metax-sgpu-devices-allocated"]
    first, second, third = segments.removesuffix(";").split(";")
    one = first.split(",")[0]
    two, other = (each.split(",")[0] for each in third.removesuffix(":").split(":"))
    assert first == f"{one},Metax-SGPU,4096,60:"
    assert second == ""
    assert third == f"{two},Metax-SGPU,2048,0:{other},Metax-SGPU,2048,0:"
    assert json.loads(notes.pop("metax-tech.com/gpu-devices-allocated")) == [
        [{"uuid": one, "compute": 60, "vRam": 4096}],
        [],
        [{"uuid": two, "vRam": 2048}, {"uuid": other, "vRam": 2048}],
    ]
    assert notes == BOUND | {
        "hami.io/metax-sgpu-devices-to-allocate": segments,
        "hami.io/metax-sgpu-devices-allocated": segments,
        "metax-tech.com/predicate-time": f"{NOW_S}000000000",
        QOS: "best-effort",
    }


def test_annotations_of_whole_gpus() -> None:
    """A pod with a whole GPU gets HAMi's annotations, with the memory that HAMi assumes."""
    notes = annotations(VENDORS["metax-gpu"].node, pod({GPU: 1}))
    segment = notes["hami.io/metax-gpu-devices-allocated"]
    assert segment.startswith("n1-metax-")
    assert segment.endswith(",Metax-GPU,65536,100:;")
    assert notes == BOUND | {
        "hami.io/metax-gpu-devices-to-allocate": segment,
        "hami.io/metax-gpu-devices-allocated": segment,
    }


def test_two_containers_with_whole_gpus() -> None:
    """If two containers request whole GPUs, each container gets GPUs of its own. HAMi's filter
    never allows such a pod."""
    both = pod(containers=[container("a", {GPU: 1}), container("b", {GPU: 2})])
    shares = place(ledger(VENDORS["metax-gpu"].node), "p", both).shares("p")
    assert [share.container for share in shares] == ["a", "b", "b"]
    assert len({share.device for share in shares}) == 3


def test_registered_cards() -> None:
    """A registered card has MetaX's model, memory and cores. A missing number counts as 0, and a
    card without `health` counts as unhealthy."""
    plugin, (found, sick), problem = registered(
        METAX_CARDS[2] | {"qosPolicy": ""}, {"uuid": "x", "totalCompute": 100}
    )
    assert (plugin, problem) == ("hami", "")
    assert (found.id, found.index, found.family, found.model) == (
        "GPU-mx-2", 0, "metax-sgpu", "MXC500",
    )  # fmt: skip
    assert (found.memory_mib, found.cores, found.slots, found.numa) == (65536, 100, 16, 1)
    assert (found.mode, found.healthy) == ("hami-core", True)
    assert (sick.model, sick.memory_mib, sick.healthy) == ("Metax-SGPU", 0, False)
    assert sick.health_reason == UNHEALTHY


@pytest.mark.parametrize(
    ("policy", "available", "healthy"),
    [
        ("best-effort", 3, True),
        ("", 3, True),
        ("fixed-share", 16, True),
        ("fixed-share", 3, False),
        ("burst-share", 0, False),
    ],
)
def test_cards_with_another_policy(policy: str, available: int, healthy: bool) -> None:
    """A card with another policy than `best-effort` is unhealthy while pods use it. An idle card is
    healthy, because its policy can still change."""
    card = METAX_CARDS[0] | {"qosPolicy": policy, "availableDevCount": available}
    _, (found,), _ = registered(card)
    assert found.healthy is healthy
    assert healthy or (QOS in found.health_reason and policy in found.health_reason)


@pytest.mark.parametrize(
    "text", ["[{", '{"uuid": "a"}', '[{"uuid": 1}]', '[{"uuid": "a", "totalVRam": -1}]']
)
def test_malformed_registrations(text: str) -> None:
    """If a registration cannot be read, the node offers no cards, and `registration` returns a
    problem."""
    found = registration(vendor_node({REGISTER: text}, {COUNT: 64}))
    assert found.devices == ()
    assert found.problem


def test_an_annotation_that_remains() -> None:
    """If the annotation remains but the kubelet reports no sGPUs, the node offers no devices. An
    annotation with an empty list counts as no registration."""
    found = registration(vendor_node(NODE.annotations, {COUNT: 0}))
    assert found.devices == ()
    assert COUNT in found.problem
    assert registration(vendor_node({REGISTER: "[]"}, {})) == Registration()


def test_counted_gpus() -> None:
    """The vendor's plugin only counts whole GPUs. Apportion gives them the ids and the memory that
    HAMi would give them."""
    plugin, devices, problem = registration(vendor_node({}, {GPU: 2}))
    assert (plugin, problem) == ("vendor", "")
    assert [each.id for each in devices] == ["n1-metax-0", "n1-metax-1"]
    assert {(each.memory_mib, each.slots, each.mode) for each in devices} == {
        (65536, 1, "exclusive")
    }


def test_the_section_of_the_chart() -> None:
    """In HAMi's configuration, only MetaX's usual resource names are accepted, and topology
    awareness must be off."""
    section = {
        "resourceCountName": GPU, "resourceVCountName": COUNT, "resourceVMemoryName": MEMORY,
        "resourceVCoreName": CORES, "sgpuTopologyAware": False,
    }  # fmt: skip
    left, passed = without_foreign({"metax": section})
    assert (left, passed[0].path) == ({}, "metax")
    for key, value in (("resourceVCountName", "x/y"), ("sgpuTopologyAware", True)):
        with pytest.raises(ManifestError) as caught:
            without_foreign({"metax": section | {key: value}})
        assert caught.value.field == f"metax.{key}"


@pytest.mark.parametrize("kind", ["gpu", "sgpu"])
def test_the_samples(kind: str) -> None:
    """Each sample manifest is placed on a suitable node, and its pod gets annotations."""
    document = yaml.safe_load((SAMPLES / f"metax-{kind}.yaml").read_text("utf-8"))
    assert draft(document).dialect == f"metax-{kind}"
    assert annotations(VENDORS[f"metax-{kind}"].node, document).keys() > BOUND.keys()
