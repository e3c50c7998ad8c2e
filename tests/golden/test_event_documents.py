"""Tests with one committed example document of each event, which later builds must still read.

When an event type gets a new version, its old document is kept, for example as `PodPlaced.1.json`.
"""

import json
from pathlib import Path

import msgspec
import pytest

from apportion_schemas import CATALOGUE, Event, decode, encode

DOCUMENTS = Path(__file__).parent / "events"
OLDER = {f"{row.name}.{version}" for row in CATALOGUE for version in range(1, row.version)}
NAMES = sorted({path.stem for path in DOCUMENTS.glob("*.json")} - OLDER)
POD = "2f1d0c6e-7a51-4c4b-9d5e-0a8f6f1b2c3d"
NODE = "node-1%2Eexample"
SUBJECTS = {
    name: f"apportion.v1.{subject}"
    for names, subject in (
        ("NodeReported DeviceHealthChanged", f"inventory.{NODE}"),
        ("SharesAllocated AllocationFailed ShareBreached", f"allocation.{NODE}"),
        ("UsageRecorded", f"usage.{NODE}"),
        ("PodSubmitted PodChanged PodRejected PodGone", f"workload.{POD}"),
        ("PodAdopted", f"adoption.{NODE}.{POD}"),
        ("DifferenceFound", "cluster.difference.research%2Ftrainer-0"),
        ("LedgerRebuilt", "operator.ledger"),
        ("FormatEnabled", "operator.reading.format.PodPlaced"),
        ("RevisionSetAside", "operator.reading.aside.4711"),
        ("NodeObserved NodeGone", f"cluster.node.{NODE}"),
        ("DevicesRegistered", f"cluster.devices.{NODE}"),
        ("PodGroupObserved PodGroupGone", "cluster.group.research%2Ftrainer"),
        ("QueueObserved", "cluster.queue.training"),
        ("QuotaObserved QuotaGone", "cluster.quota.research.gpus"),
        ("NamespaceObserved NamespaceGone", "cluster.namespace.research"),
        ("VolumeClaimObserved VolumeClaimGone", "cluster.volume-claim.research.data"),
        ("BudgetObserved BudgetGone", "cluster.budget.research.trainers"),
        ("PodPlaced PlacementVoided PodEvicted PodResized", f"placement.{NODE}"),
        ("PodRefused ResizeRefused", f"pending.{POD}"),
        ("LimitsChecked", "limits.queue.research"),
        ("NodesReserved", "limits.reservation"),
        ("PodBound BindFailed", f"binding.{NODE}"),
        ("DeviceCordoned DeviceUncordoned DeviceCordonLifted", "operator.device.GPU-5d0f"),
        ("NodeCordoned NodeUncordoned NodeCordonLifted", f"operator.node.{NODE}"),
        ("ResizeAsked", f"operator.resize.{POD}"),
        ("PolicyChanged", "operator.policy"),
        ("ConfigurationChanged", "operator.configuration"),
        ("PricesLearnt", "policy.prices"),
        ("ReportRefused", f"intake.{NODE}"),
        ("NodeSilent NodeHeard", f"presence.{NODE}"),
    )
    for name in names.split()
}


def document(name: str) -> bytes:
    """Return a committed document, without the final newline that editors add."""
    return (DOCUMENTS / f"{name}.json").read_bytes().rstrip(b"\n")


def event(name: str) -> Event:
    """Return the event in a committed document."""
    return decode(document(name), subject=SUBJECTS[name.partition(".")[0]])


def test_every_event_has_a_document() -> None:
    """Every event type has a committed document. Without one, its format could change unnoticed."""
    assert sorted(row.name for row in CATALOGUE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_event_reencodes_to_the_same_bytes(name: str) -> None:
    """An event that is decoded and encoded again keeps its bytes, as the hash chain requires."""
    found = event(name)
    assert type(found.data).__name__ == name
    assert encode(found) == document(name)


def test_every_older_version_has_a_document_that_is_lifted() -> None:
    """A document of an older version is read as an event of the newest version."""
    for name in OLDER:
        written, told = json.loads(document(name)), json.loads(encode(event(name)))
        newest = json.loads(document(name.partition(".")[0]))
        assert f"{written['schemaversion']}" == name.partition(".")[2]
        assert told["schemaversion"] == newest["schemaversion"]
        assert {**told, "data": 0} == {**written, "data": 0, "schemaversion": told["schemaversion"]}


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_used(name: str) -> None:
    """No field in a committed event has its default value. Otherwise the tests would not notice
    that a field is lost."""
    data = event(name).data
    for field in msgspec.structs.fields(data):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        assert getattr(data, field.name) != default, field.name
