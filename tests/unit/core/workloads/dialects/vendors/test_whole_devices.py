"""Tests of Biren GPUs and VastAI accelerators, which HAMi's plugins hand out whole."""

from typing import NamedTuple

import pytest

from apportion.core.workloads.dialects.listing import SECTIONS
from apportion.core.workloads.dialects.node_annotations import registration
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask, DeviceConstraints
from tests.support.manifests import asks, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, ledger, place, sample, written


class Kind(NamedTuple):
    """A vendor's names, and the model and memory that its plugin registers."""

    name: str
    number: str
    register: str
    word: str
    model: str
    memory_mib: int


KINDS = (
    Kind("biren", "birentech.com/gpu", "hami.io/node-biren-register", "Biren", "Biren106B", 65024),
    Kind("vastai", "vastaitech.com/va", "hami.io/node-va-register", "Vastai", "VA16", 0),
)
pytestmark = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def test_a_number_of_whole_devices(kind: Kind) -> None:
    """A container requests a number of whole devices, which no other pod shares."""
    wanted = Ask(container="main", family=kind.name, count=3, cores=100)
    assert asks(pod({kind.number: 3})) == (wanted,)
    assert asks(pod({kind.number: 0})) == ()
    assert "65" in str(refused(pod({kind.number: 65})))


def test_devices_are_chosen_by_id(kind: Kind) -> None:
    """Pods choose and exclude devices by id only."""
    domain = kind.number.partition("/")[0]
    lists = {f"{domain}/use-gpuuuid": "a,b", f"{domain}/nouse-gpuuuid": "b"}
    assert draft(pod({kind.number: 1}, lists)).shape.devices == DeviceConstraints(
        use_ids=("a", "b"), nouse_ids=("b",), plugin="hami"
    )
    error = refused(pod({"hygon.com/dcunum": 1}, lists))
    assert error.field == f'metadata.annotations["{domain}/use-gpuuuid"]'


def test_the_annotations_of_the_sample(kind: Kind) -> None:
    """The annotations of the sample pod have 0 as memory and cores of each device, as HAMi writes
    them."""
    here = place(ledger(VENDORS[kind.name].node), "p", sample(kind.name))
    text = "".join(f"{device},{kind.word},0,0:" for device in here.devices("p")) + ";"
    assert len(here.devices("p")) == 2
    assert written(here, "p") == BOUND | {
        f"hami.io/{kind.word}-devices-to-allocate": text,
        f"hami.io/{kind.word}-devices-allocated": text,
    }


def test_a_registration(kind: Kind) -> None:
    """A registered device is offered whole, with its memory and 100 cores. Its registration has no
    cores."""
    found = registration(VENDORS[kind.name].node)
    assert (found.plugin, found.problem, len(found.devices)) == ("hami", "", 4)
    device = found.devices[1]
    assert (device.index, device.model, device.mode) == (1, kind.model, "exclusive")
    amounts = (device.memory_mib, device.cores, device.slots, device.healthy)
    assert amounts == (kind.memory_mib, 100, 1, True)


def test_a_registration_that_cannot_be_read(kind: Kind) -> None:
    """A malformed registration, or one whose plugin does not run, offers no device."""
    for text, offered, says in (
        ("[{]", {kind.number: 1}, kind.register),
        ("a,1,1:", {kind.number: 1}, "3 fields"),
        ('[{"id":"a"}]', {}, kind.number),
    ):
        found = registration(vendor_node({kind.register: text}, offered))
        assert found.devices == ()
        assert says in found.problem


def test_the_section_of_hamis_chart(kind: Kind) -> None:
    """The vendor's section in HAMi's configuration is accepted only if `resourceCountName` is the
    vendor's usual resource name."""
    SECTIONS[kind.name]({"resourceCountName": kind.number}, kind.name)
    with pytest.raises(ManifestError) as caught:
        SECTIONS[kind.name]({"resourceCountName": "a/b"}, kind.name)
    assert caught.value.field == f"{kind.name}.resourceCountName"
