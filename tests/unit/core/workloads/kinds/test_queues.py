"""Tests of reading the Queues of Volcano and KAI: their position in the tree of queues, and their
amounts."""

from typing import Any

import msgspec
import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX
from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion.core.workloads.document import cleaned
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.kinds.queues import (
    CARD_DESERVED,
    CARD_GUARANTEE,
    CARDS,
    KAI_QUEUE,
    VOLCANO_QUEUE,
    read_queue,
)
from apportion_schemas import QueueObserved


def volcano(notes: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Volcano Queue with these annotations and fields of its spec."""
    version, kind = VOLCANO_QUEUE
    meta = {"name": "ml", "annotations": notes or {}}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def kai(gpu: object = None, **spec: Any) -> dict[str, Any]:
    """Return a KAI Queue without limits of CPU and memory."""
    version, kind = KAI_QUEUE
    free = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    resources = {"cpu": free, "memory": free, "gpu": free if gpu is None else gpu}
    spec = {"resources": resources} | spec
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "ml"}, "spec": spec}


def read(document: dict[str, Any]) -> QueueObserved:
    """Read the document as a file, and check that the watcher reads the same."""
    found = limit_of(document)
    assert isinstance(found, QueueObserved)
    assert read_queue(cleaned(document)) == found
    return found


def test_C6_a_volcano_queue_has_its_place_in_the_tree() -> None:
    """The parent, the priority, and the deserved and guaranteed amounts of a Volcano Queue are
    read. The amounts have the same units as its capability."""
    notes = {CARD_DESERVED: '{"NVIDIA-A100": 4}', CARD_GUARANTEE: '{"NVIDIA-A100": 1}'}
    spec: dict[str, Any] = {
        "parent": "research", "priority": 3, "weight": 2, "reclaimable": False,
        "deserved": {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": 4},
        "guarantee": {"resource": {"nvidia.com/gpu": "1"}}, "dequeueStrategy": "fifo",
    }  # fmt: skip
    assert read(volcano(notes, **spec)) == QueueObserved(
        queue="ml", parent="research", priority=3, weight=2, reclaimable=False, fifo=True,
        deserved={"cpu": 1500, "memory": 2048, "nvidia.com/gpu": 4},
        guarantee={"nvidia.com/gpu": 1},
        cards_deserved={"NVIDIA-A100": 4}, cards_guarantee={"NVIDIA-A100": 1},
    )  # fmt: skip


def test_the_defaults_of_volcano_are_those_of_the_event() -> None:
    """A Queue with Volcano's default values is read like one without fields."""
    spec: dict[str, Any] = {
        "weight": 1,
        "reclaimable": True,
        "parent": "root",
        "dequeueStrategy": "traverse",
    }
    assert read(volcano(**spec, priority=0, guarantee={})) == QueueObserved(queue="ml")
    assert read(volcano(reclaimable=None, parent="")) == QueueObserved(queue="ml")


@pytest.mark.parametrize("key", CARDS)
@pytest.mark.parametrize("written", ["8", '{"A100": 1.5}', '{"A100": -1}', '{"": 1}', 8])
def test_cards_that_cannot_be_read_are_refused_by_their_annotation(
    key: str, written: object
) -> None:
    """An unreadable amount by device model is refused, and the error names the annotation."""
    with pytest.raises(ManifestError) as refused:
        limit_of(volcano({key: written}))
    assert key in refused.value.field


@pytest.mark.parametrize(
    ("gpu", "deserved", "capability"),
    [
        ({"quota": 2, "limit": -1}, 2000, None),
        ({"quota": 1.5, "limit": 4}, 1500, 4000),
        ({"quota": 0.7}, 700, 700),
        ({"quota": 2, "limit": 0}, 2000, 2000),
        ({"quota": 4, "limit": 1}, 4000, 1000),
        ({"limit": 3}, None, 3000),
        ({"quota": -1, "limit": -1}, AMOUNT_MAX, None),
        ({"quota": -1}, AMOUNT_MAX, None),
        ({}, None, 0),
    ],
)
def test_F22_quota_and_limit_of_a_kai_queue(
    gpu: dict[str, float], deserved: int | None, capability: int | None
) -> None:
    """The quota of a KAI Queue is its deserved amount, and -1 means unlimited. Without a limit, the
    quota is also the limit. GPUs are counted in thousandths."""
    found = read(kai(gpu))
    assert found.deserved == ({} if deserved is None else {GPU_MILLI: deserved})
    assert found.capability == ({} if capability is None else {GPU_MILLI: capability})
    assert msgspec.json.decode(msgspec.json.encode(found), type=QueueObserved) == found


def test_F22_cpu_and_memory_of_a_kai_queue() -> None:
    """A KAI Queue counts CPU in thousandths and memory in MB. The memory is converted to MiB."""
    amounts = {"quota": 2000, "limit": 4000}
    found = read(kai(resources={"cpu": amounts, "memory": {"quota": 4096, "limit": 8192}}))
    assert found.deserved == {"cpu": 2000, "memory": 3906}
    assert found.capability == {"cpu": 4000, "memory": 7812, GPU_MILLI: 0}


def test_F22_the_place_of_a_kai_queue_in_the_tree() -> None:
    """Parent, priority, weight and minimum runtime of a KAI Queue are read. The weight is
    `overQuotaWeight` of the GPUs. Without this field, the weight is 0, and the queue gets no
    surplus."""
    spec = {"parentQueue": "research", "priority": 7, "reclaimMinRuntime": "1h30m"}
    found = read(kai({"limit": -1, "overQuotaWeight": 3}, **spec))
    assert found == QueueObserved(queue="ml", parent="research", priority=7, weight=3, safe_s=5400)
    plain = read(kai({"limit": -1}, parentQueue="root"))
    assert (plain.parent, plain.priority, plain.weight, plain.safe_s) == ("root", 100, 0, 0)
    assert read(kai({"limit": -1, "overQuotaWeight": 0.2})).weight == 1


@pytest.mark.parametrize(
    ("runtime", "seconds"),
    [("0", 0), ("0s", 0), ("500ms", 1), ("1.5m", 90), ("10m0s", 600), ("100h", 360_000)],
)
def test_a_minimum_runtime(runtime: str, seconds: int) -> None:
    """A duration is read as Go writes it, and rounded up to seconds."""
    assert read(kai(reclaimMinRuntime=runtime)).safe_s == seconds


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (kai({"quota": "2"}), "spec.resources.gpu.quota"),
        (kai({"quota": True}), "spec.resources.gpu.quota"),
        (kai({"quota": -2}), "spec.resources.gpu.quota"),
        (kai({"quota": 1e300}), "spec.resources.gpu.quota"),
        (kai({"quota": (1 << 1024) - 1}), "spec.resources.gpu.quota"),
        (kai({"limit": float("nan")}), "spec.resources.gpu.limit"),
        (kai({"limit": -0.5}), "spec.resources.gpu.limit"),
        (kai({"limit": 1 << 50}), "spec.resources.gpu.limit"),
        (kai({"overQuotaWeight": -1}), "spec.resources.gpu.overQuotaWeight"),
        (kai({"overQuotaWeight": 65_536}), "spec.resources.gpu.overQuotaWeight"),
        (kai([2]), "spec.resources.gpu"),
        (kai(resources=None), "spec.resources"),
        (kai(resources=[1]), "spec.resources"),
        (kai(parentQueue="ml"), "spec.parentQueue"),
        (kai(priority=1.5), "spec.priority"),
        (kai(reclaimMinRuntime="soon"), "spec.reclaimMinRuntime"),
        (kai(reclaimMinRuntime="5"), "spec.reclaimMinRuntime"),
        (kai(reclaimMinRuntime="-5s"), "spec.reclaimMinRuntime"),
        (kai(reclaimMinRuntime=f"{'9' * 60}h"), "spec.reclaimMinRuntime"),
        (kai(reclaimMinRuntime=60), "spec.reclaimMinRuntime"),
    ],
)
def test_what_a_kai_queue_cannot_mean_is_refused_by_its_field(
    document: dict[str, Any], field: str
) -> None:
    """A field of a KAI Queue with an invalid value is refused with a fix."""
    with pytest.raises(ManifestError) as refused:
        limit_of(document)
    assert refused.value.field == field
    assert refused.value.fix
