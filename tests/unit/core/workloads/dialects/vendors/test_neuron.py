"""Tests of AWS Neuron, from manifest and node to the annotations of a placed pod."""

from typing import Any

import pytest

from apportion.core.placement.feasibility.evaluator import Room
from apportion.core.workloads.adoption.recovery import recover, shares_of
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.dialect import BoundPod
from apportion.core.workloads.dialects.inventory import NodeFacts
from apportion.core.workloads.dialects.listing import SECTIONS
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints, RefusalCode
from tests.support.manifests import asks, container, draft, pod, refused
from tests.support.vendor_nodes import ALLOWED, VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, NOW_S, ledger, place, sample, written

COUNT, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
ALLOCATED = "hami.io/aws-neuron-devices-allocated"
NODE = VENDORS["neuron"].node
TIMED = BOUND | {
    "NEURON_ALLOC_TIME": str(NOW_S * 10**9),
    "NEURON_ALLOCATED": "false",
    "aws.amazon.com/predicate-node": "n1",
}


def node(kind: str, devices: int, cores: int) -> NodeFacts:
    """Return a node of this instance type with Neuron devices that have `cores` cores each."""
    labels = {"node.kubernetes.io/instance-type": kind} if kind else {}
    return vendor_node({}, {COUNT: devices, CORES: devices * cores}, labels=labels | ALLOWED)


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({COUNT: 1}, {"cores": 100}),
        ({COUNT: 4}, {"count": 4, "cores": 100}),
        ({CORES: 1}, {"memory_mib": 16384, "cores": 50}),
        ({CORES: 2}, {"memory_mib": 32768, "cores": 100}),
        ({CORES: 8}, {"count": 4, "memory_mib": 32768, "cores": 100}),
    ],
)
def test_asks(limits: dict[str, int], wanted: dict[str, Any]) -> None:
    """A container requests a number of whole devices, one core, or both cores of one or more
    devices."""
    assert asks(pod(limits)) == (Ask(container="main", family="neuron", **wanted),)


@pytest.mark.parametrize(
    ("limits", "name"),
    [({COUNT: 0}, COUNT), ({CORES: 0}, CORES), ({CORES: 3}, CORES), ({COUNT: 17}, COUNT),
     ({CORES: 130}, CORES), ({COUNT: 1, CORES: 2}, CORES)],
)  # fmt: skip
def test_refusals(limits: dict[str, int], name: str) -> None:
    """Zero cores, and odd numbers of cores above one, are refused, as by HAMi's webhook. A
    container cannot request both devices and cores."""
    assert refused(pod(limits)).field == f'spec.containers[0].resources.limits["{name}"]'


def test_devices_are_chosen_by_id() -> None:
    """Pods choose and exclude devices by id only."""
    lists = {"aws.amazon.com/use-neuron-uuid": "a", "aws.amazon.com/nouse-neuron-uuid": "b"}
    found = draft(pod({COUNT: 1}, lists)).shape.devices
    assert found == DeviceConstraints(use_ids=("a",), nouse_ids=("b",), plugin="hami")


def test_what_a_node_offers() -> None:
    """A node offers as many devices as the vendor's plugin counts. A device with two cores can be
    divided. Without the node's label, the registration's problem names the label."""
    found = registration(NODE)
    assert (found.plugin, found.problem, len(found.devices)) == ("vendor", "", 16)
    one = found.devices[3]
    assert (one.id, one.index, one.model) == ("n1-AWSNeuron-3", 3, "AWSNeuron trn1")
    assert (one.mode, one.memory_mib, one.cores, one.slots) == ("mig", 32768, 2, 2)
    assert registration(vendor_node({}, {CORES: 2}, labels=ALLOWED)).devices == ()
    assert registration(vendor_node({}, {CORES: 2})).problem == ""
    without = registration(vendor_node({}, {COUNT: 1, CORES: 2}))
    assert without.devices == ()
    assert "apportion.dev/device-plugin=vendor" in without.problem


@pytest.mark.parametrize(
    ("kind", "cores", "wanted"),
    [
        ("trn2.48xlarge", 4, ("AWSNeuron trn2", "exclusive", 98304, 4)),
        ("inf1.24xlarge", 4, ("AWSNeuron inf1", "exclusive", 8192, 4)),
        ("inf2.48xlarge", 0, ("AWSNeuron inf2", "exclusive", 32768, 1)),
        ("", 2, ("AWSNeuron", "mig", 32768, 2)),
    ],
)
def test_devices_with_another_number_of_cores_are_whole(
    kind: str, cores: int, wanted: tuple[object, ...]
) -> None:
    """Only a device with two cores can be divided, whatever the instance type."""
    one, _ = registration(node(kind, 2, cores)).devices
    assert (one.model, one.mode, one.memory_mib, one.cores) == wanted


def test_cores_are_those_of_devices_with_two() -> None:
    """A pod that requests cores is refused on devices with four cores. A pod that requests a device
    may get such a device."""
    here = ledger(node("trn2.48xlarge", 16, 4))
    for number in (1, 2, 8):
        place(here, f"c{number}", pod({CORES: number}))
        assert here.reasons(f"c{number}") == {RefusalCode.MODE_MISMATCH: 1}
    place(here, "p", pod({COUNT: 1}))
    assert written(here, "p")[ALLOCATED] == "n1-AWSNeuron-0,AWSNeuron,0,15:;"


def test_two_pods_share_a_device() -> None:
    """If two pods share a device, each gets one of its cores. The annotations have the core's
    number and its mask on the device."""
    here = ledger(NODE)
    for uid in ("p", "q", "r"):
        place(here, uid, sample("neuron"))
    for uid, device, mask, core in (("p", 0, 1, "0"), ("q", 0, 2, "1"), ("r", 1, 1, "2")):
        assert written(here, uid) == TIMED | {
            ALLOCATED: f"n1-AWSNeuron-{device},AWSNeuron,0,{mask}:;",
            "AWS_NEURON_IDS": core,
            "NEURON_RESOURCE_TYPE": CORES,
        }


def test_several_devices_and_their_cores() -> None:
    """The annotation has the numbers of devices if the pod requests devices, and the numbers of
    cores if the pod requests cores."""
    here = place(ledger(NODE), "p", pod({COUNT: 4}))
    place(here, "q", pod({CORES: 8}))
    text = "".join(f"n1-AWSNeuron-{at},AWSNeuron,0,3:" for at in range(4)) + ";"
    assert written(here, "p") == TIMED | {ALLOCATED: text, "AWS_NEURON_IDS": "0,1,2,3"}
    assert written(here, "q")["AWS_NEURON_IDS"] == "8,9,10,11,12,13,14,15"


def test_the_containers_of_a_pod() -> None:
    """The core numbers of all containers are in one annotation, in the order of the containers."""
    two = pod(containers=[container("a", {CORES: 1}), container("b", {CORES: 1}), container("c")])
    here = place(ledger(NODE), "p", two)
    found = written(here, "p")
    assert found["AWS_NEURON_IDS"] == "0,1"
    assert found[ALLOCATED] == "n1-AWSNeuron-0,AWSNeuron,0,1:;n1-AWSNeuron-0,AWSNeuron,0,2:;;"


def test_numbers_of_devices_by_instance_type() -> None:
    """A pod that requests several devices gets a ring of 4, 8 or 16 on Trainium, and any number of
    adjacent devices on Inferentia."""
    three = pod({COUNT: 3})
    trainium = place(ledger(NODE), "p", three)
    assert trainium.reasons("p") == {RefusalCode.MODULES_IN_USE: 1}
    assert not Room(trainium.state).holds(draft(three).shape, trainium.node())
    inferentia = place(ledger(node("inf2.48xlarge", 12, 2)), "p", three)
    assert inferentia.devices("p") == [f"n1-AWSNeuron-{at}" for at in range(3)]


def test_a_set_that_is_used_is_awaited() -> None:
    """A pod for four devices waits until a whole ring of four is free."""
    here = ledger(node("trn1.32xlarge", 4, 2))
    place(here, "p", pod({CORES: 1}))
    place(here, "q", pod({COUNT: 4}))
    assert here.where("q") == ""
    here.gone("p").settle()
    assert len(here.devices("q")) == 4


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n1-AWSNeuron-1,AWSNeuron,0,2:;", ("1c", 1, 1)),
        ("n1-AWSNeuron-1,AWSNeuron,0,3:;", ("2c", 0, 2)),
    ],
)
def test_cores_are_read_back(text: str, wanted: tuple[str, int, int]) -> None:
    """The cores of a bound pod are read from the mask in its annotation."""
    devices = {each.id: each for each in registration(NODE).devices}
    found = draft(pod({CORES: wanted[2]})).shape.asks
    back = recover(BoundPod({ALLOCATED: text}, (), ("main",), found, DialectConfig()))
    assert back is not None
    (share,) = shares_of(back.held, found, devices) or ()
    assert share.instance is not None
    assert (share.instance.profile, share.instance.start, share.instance.size) == wanted
    assert share.memory_mib == 16384 * wanted[2]


def test_whole_devices_are_read_back() -> None:
    """A device that cannot be divided is read back as a whole device, whatever mask HAMi wrote."""
    devices = {each.id: each for each in registration(node("trn2.48xlarge", 2, 4)).devices}
    found = draft(pod({COUNT: 1})).shape.asks
    bound = BoundPod(
        {ALLOCATED: "n1-AWSNeuron-1,AWSNeuron,0,3:;"}, (), ("main",), found, DialectConfig()
    )
    back = recover(bound)
    assert back is not None
    (share,) = shares_of(back.held, found, devices) or ()
    assert (share.memory_mib, share.cores, share.instance) == (98304, 4, None)


def test_the_section_of_hamis_chart() -> None:
    """AWS Neuron's section in HAMi's configuration is accepted only with AWS's usual resource
    names."""
    SECTIONS["awsneuron"]({"resourceCountName": COUNT, "resourceCoreName": CORES}, "awsneuron")
    with pytest.raises(ManifestError) as caught:
        SECTIONS["awsneuron"]({"resourceCoreName": "a/b"}, "awsneuron")
    assert caught.value.field == "awsneuron.resourceCoreName"
