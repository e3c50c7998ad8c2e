"""Tests of Biren GPUs, from manifest and registration to the annotations of a placed pod."""

import pytest

from apportion.core.workloads.dialects.listing import SECTIONS
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints
from tests.support.manifests import asks, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, ledger, place, sample, written

COUNT, REGISTER = "birentech.com/gpu", "hami.io/node-biren-register"
NODE = VENDORS["biren"].node


def test_a_number_of_whole_gpus() -> None:
    """The only resource is a number of GPUs, which the pod does not share."""
    assert asks(pod({COUNT: 3})) == (Ask(container="main", family="biren", count=3, cores=100),)
    assert asks(pod({COUNT: 0})) == ()
    assert "65" in str(refused(pod({COUNT: 65})))


def test_gpus_are_chosen_by_id() -> None:
    """Pods choose and exclude GPUs by id only."""
    lists = {"birentech.com/use-gpuuuid": "a,b", "birentech.com/nouse-gpuuuid": "b"}
    assert draft(pod({COUNT: 1}, lists)).shape.devices == DeviceConstraints(
        use_ids=("a", "b"), nouse_ids=("b",), plugin="hami"
    )
    assert (
        refused(pod({"hygon.com/dcunum": 1}, lists)).field
        == 'metadata.annotations["birentech.com/use-gpuuuid"]'
    )


def test_the_annotations_of_the_sample() -> None:
    """HAMi writes 0 as memory and cores of each GPU, and so do we."""
    here = place(ledger(NODE), "p", sample("biren"))
    text = "".join(f"{device},Biren,0,0:" for device in here.devices("p")) + ";"
    assert len(here.devices("p")) == 2
    assert written(here, "p") == BOUND | {
        "hami.io/Biren-devices-to-allocate": text,
        "hami.io/Biren-devices-allocated": text,
    }


def test_a_registration() -> None:
    """A registered GPU is whole, with its memory and 100 cores, although it has none there."""
    found = registration(NODE)
    assert (found.plugin, found.problem, len(found.devices)) == ("hami", "", 4)
    device = found.devices[1]
    assert (device.index, device.model, device.mode) == (1, "Biren106B", "exclusive")
    assert (device.memory_mib, device.cores, device.slots, device.healthy) == (65024, 100, 1, True)


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
    SECTIONS["biren"]({"resourceCountName": COUNT}, "biren")
    with pytest.raises(ManifestError) as caught:
        SECTIONS["biren"]({"resourceCountName": "a/b"}, "biren")
    assert caught.value.field == "biren.resourceCountName"
