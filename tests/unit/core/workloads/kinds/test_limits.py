"""Tests of reading Queue and ResourceQuota documents, and of the errors for their invalid
fields."""

from typing import Any

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.lint.ignored_fields import QUEUE_FIELDS
from apportion_schemas import QueueObserved, QuotaObserved


def queue(name: str = "ml", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": {"volcano.sh/card.quota": '{"A100": 2}'}},
        "spec": spec,
    }


def quota(hard: object, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", **metadata},
        "spec": {"hard": hard},
    }


def test_a_queue_is_what_the_watcher_would_say() -> None:
    """A Queue document is read like a queue from the watcher: CPU in millicores, memory in MiB, and
    all other resources in units."""
    document = queue(weight=3, capability={"cpu": "500m", "memory": "2Gi", "nvidia.com/gpu": 4})
    assert limit_of(document) == QueueObserved(
        queue="ml",
        weight=3,
        capability={"cpu": 500, "memory": 2048, "nvidia.com/gpu": 4},
        cards={"A100": 2},
    )


def test_keys_that_decide_nothing_are_no_part_of_a_limit() -> None:
    """Fields of a Queue that have no effect are ignored when it is read."""
    dead: dict[str, Any] = {
        "type": "x", "extendClusters": [{"name": "a"}],
        "affinity": {"nodeGroupAffinity": {"preferred": ["a"]}},
    }  # fmt: skip
    assert dead.keys() == set(QUEUE_FIELDS)
    assert limit_of(queue(**dead)) == limit_of(queue())
    assert limit_of(queue(weight=3, **dead)) == limit_of(queue(weight=3))


@pytest.mark.parametrize(("state", "is_open"), [("Open", True), ("Closed", False)])
def test_a_queue_has_its_state_where_kubernetes_has_it(state: str, is_open: bool) -> None:
    """A queue's state, Open or Closed, is read from the status of the Queue document."""
    said = limit_of(queue() | {"status": {"state": state}})
    assert isinstance(said, QueueObserved)
    assert said.open == is_open


def test_a_state_in_the_spec_is_refused_with_where_it_belongs() -> None:
    """A queue that is set to Closed in its spec is refused, and the error names the right field.
    Open is accepted there."""
    with pytest.raises(ManifestError, match=r"status: \{state: Closed\}") as refused:
        limit_of(queue(state="Closed"))
    assert refused.value.field == "spec.state"
    assert limit_of(queue(state="Open")) == limit_of(queue())


def test_a_quota_is_of_devices_alone() -> None:
    """Only device resources of a ResourceQuota are read. The API server enforces the others."""
    document = quota({"cpu": "4", "requests.nvidia.com/gpu": "2"}, namespace="team")
    assert limit_of(document) == QuotaObserved(
        namespace="team", quota="q", hard={"requests.nvidia.com/gpu": 2}
    )


@pytest.mark.parametrize(
    "of",
    [
        quota,
        lambda limits: queue(capability=limits),
        lambda limits: queue(deserved=limits),
        lambda limits: queue(guarantee={"resource": limits}),
    ],
)
@pytest.mark.parametrize(
    ("name", "amount", "said"),
    [
        ("nvidia.com/gpumem", "16Gi", "the unit is 1 MiB; write 16384"),
        ("volcano.sh/vgpu-memory", "512Mi", "write 512"),
        ("volcano.sh/vgpu-memory", "4Mi", "write 4$"),
        ("volcano.sh/vgpu-memory", "16Ki", "write 16384$"),
        ("tencent.com/vcuda-memory", "1Gi", "the unit is 256 MiB; write 4"),
        ("nvidia.com/gpu", 1.5, "is a fraction; write a whole number"),
        ("example.com/nic", "500m", "is a fraction"),
    ],
)
def test_what_no_pod_could_ask_for_is_no_limit(of: Any, name: str, amount: Any, said: str) -> None:
    """A limit with a unit such as Gi, or on a fraction of a device, is refused. The error has the
    number to write instead."""
    with pytest.raises(ManifestError, match=said):
        limit_of(of({name: amount}))


def test_a_quota_names_claims_of_memory_and_large_numbers_are_meant() -> None:
    """A quota's resource names may begin with `requests.` or `limits.`. Amounts with a unit such as
    Gi are refused; large plain numbers are accepted."""
    with pytest.raises(ManifestError, match="write 16384"):
        limit_of(quota({"limits.nvidia.com/gpumem": "16Gi"}))
    said = limit_of(quota({"requests.nvidia.com/gpumem": "640k", "nvidia.com/gpumem": 1 << 34}))
    assert isinstance(said, QuotaObserved)
    assert said.hard == {"requests.nvidia.com/gpumem": 640_000, "nvidia.com/gpumem": 1 << 34}


@pytest.mark.parametrize("amount", [20_000_000, "20000000", "20M", "2e7"])
def test_a_limit_of_a_fleet_is_taken_as_kubernetes_writes_it(amount: object) -> None:
    """A large limit may be written in any notation of Kubernetes, such as 20M."""
    of_queue = limit_of(queue(capability={"volcano.sh/vgpu-memory": amount}))
    of_quota = limit_of(quota({"requests.nvidia.com/gpumem": amount}))
    assert isinstance(of_queue, QueueObserved)
    assert isinstance(of_quota, QuotaObserved)
    assert of_queue.capability == {"volcano.sh/vgpu-memory": 20_000_000}
    assert of_quota.hard == {"requests.nvidia.com/gpumem": 20_000_000}


def test_the_unit_of_memory_is_that_of_the_configuration() -> None:
    """The configured unit of GPU memory also applies to amounts in ResourceQuotas."""
    of = DialectConfig(memory_factor=256)
    with pytest.raises(ManifestError, match="write 64"):
        limit_of(quota({"limits.nvidia.com/gpumem": "16Gi"}), of)


def test_other_documents_are_not_ours() -> None:
    """Only Queue and ResourceQuota documents are read as limits."""
    assert limit_of({"apiVersion": "v1", "kind": "Pod"}) is None
    assert limit_of(["v1"]) is None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (queue(weight=-1), "spec.weight"),
        (queue(weight="3"), "spec.weight"),
        (queue(weight=0), "spec.weight"),
        (queue(weight=65_536), "spec.weight"),
        (queue(capability=["cpu"]), "spec.capability"),
        (queue(capability={"cpu": "lots"}), 'spec.capability["cpu"]'),
        (queue(capability={"cpu": "-1"}), 'spec.capability["cpu"]'),
        (queue(capability={"cpu": 1 << 60}), 'spec.capability["cpu"]'),
        (queue(capability={"": 1}), 'spec.capability[""]'),
        (queue(capability={f"a.b/{n}": 1 for n in range(257)}), "spec.capability"),
        (queue(deserved={"cpu": "lots"}), 'spec.deserved["cpu"]'),
        (queue(guarantee=[1]), "spec.guarantee"),
        (queue(guarantee={"resource": "4"}), "spec.guarantee.resource"),
        (queue(guarantee={"resource": {"cpu": -1}}), 'spec.guarantee.resource["cpu"]'),
        (queue(parent="ml"), "spec.parent"),
        (queue(parent="Not A Name"), "spec.parent"),
        (queue(parent=7), "spec.parent"),
        (queue(priority=-1), "spec.priority"),
        (queue(priority=1 << 31), "spec.priority"),
        (queue(reclaimable="no"), "spec.reclaimable"),
        (queue(dequeueStrategy="lifo"), "spec.dequeueStrategy"),
        (queue("Not A Name"), "metadata.name"),
        (quota({"cpu": "4"}), "spec.hard"),
        (quota(["cpu"]), "spec.hard"),
        (quota({"requests.nvidia.com/gpu": 1}, namespace="No.Label"), "metadata.namespace"),
        (queue() | {"spec": "none"}, "spec"),
        (queue() | {"status": "Closed"}, "status"),
        (queue() | {"status": {"state": "closed"}}, "status.state"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_its_field(
    document: dict[str, Any], field: str
) -> None:
    """A limit with a field that Apportion cannot enforce is refused with a fix."""
    with pytest.raises(ManifestError) as refused:
        limit_of(document)
    assert refused.value.field == field
    assert refused.value.fix
