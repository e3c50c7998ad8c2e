"""Tests of VastAI accelerators, from manifest and registration to annotations."""

import pytest

from apportion.core.workloads.dialects.listing import SECTIONS
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints
from tests.support.manifests import asks, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, ledger, place, sample, written

COUNT, REGISTER = "vastaitech.com/va", "hami.io/node-va-register"
NODE = VENDORS["vastai"].node


def test_a_number_of_whole_devices() -> None:
    """The only resource is a number of devices, which the pod does not share."""
    assert asks(pod({COUNT: 3})) == (Ask(container="main", family="vastai", count=3, cores=100),)
    assert asks(pod({COUNT: 0})) == ()
    assert "65" in str(refused(pod({COUNT: 65})))


def test_devices_are_chosen_by_id() -> None:
    """Pods choose and exclude devices by id only."""
    lists = {"vastaitech.com/use-gpuuuid": "a,b", "vastaitech.com/nouse-gpuuuid": "b"}
    assert draft(pod({COUNT: 1}, lists)).shape.devices == DeviceConstraints(
        use_ids=("a", "b"), nouse_ids=("b",), plugin="hami"
    )
    assert (
        refused(pod({"hygon.com/dcunum": 1}, lists)).field
        == 'metadata.annotations["vastaitech.com/use-gpuuuid"]'
    )


def test_the_annotations_of_the_sample() -> None:
    """HAMi writes 0 as memory and cores of each device, and so do we."""
    here = place(ledger(NODE), "p", sample("vastai"))
    text = "".join(f"{device},Vastai,0,0:" for device in here.devices("p")) + ";"
    assert len(here.devices("p")) == 2
    assert written(here, "p") == BOUND | {
        "hami.io/Vastai-devices-to-allocate": text,
        "hami.io/Vastai-devices-allocated": text,
    }


def test_a_registration() -> None:
    """A registered device is whole, with its memory and 100 cores, although it has none there."""
    found = registration(NODE)
    assert (found.plugin, found.problem, len(found.devices)) == ("hami", "", 4)
    device = found.devices[1]
    assert (device.index, device.model, device.mode) == (1, "VA16", "exclusive")
    assert (device.memory_mib, device.cores, device.slots, device.healthy) == (0, 100, 1, True)


@pytest.mark.parametrize(
    ("text", "offered", "says"),
    [
        ("[{]", {COUNT: 1}, REGISTER),
        ("a,1,1:", {COUNT: 1}, "3 fields"),
        ('[{"id":"a"}]', {}, COUNT),
    ],
)
def test_a_registration_that_cannot_be_read(text: str, offered: dict[str, int], says: str) -> None:
    """A malformed registration, or one whose plugin does not run, offers no device."""
    found = registration(vendor_node({REGISTER: text}, offered))
    assert found.devices == ()
    assert says in found.problem


def test_the_section_of_hamis_chart() -> None:
    """HAMi's configuration may have the section with the usual name only."""
    SECTIONS["vastai"]({"resourceCountName": COUNT}, "vastai")
    with pytest.raises(ManifestError) as caught:
        SECTIONS["vastai"]({"resourceCountName": "a/b"}, "vastai")
    assert caught.value.field == "vastai.resourceCountName"


def test_mutex_is_refused_by_name() -> None:
    """The policy `mutex` would reserve whole cards of several dies, which is not supported."""
    error = refused(pod({COUNT: 1}, {"hami.io/gpu-scheduler-policy": "binpack,mutex"}))
    assert error.field == 'metadata.annotations["hami.io/gpu-scheduler-policy"]'
    assert draft(pod({COUNT: 1}, {"hami.io/gpu-scheduler-policy": "binpack"})).shape.asks
