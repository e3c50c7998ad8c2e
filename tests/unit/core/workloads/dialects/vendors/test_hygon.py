"""Tests of Hygon DCUs, from manifest and registration to the annotations of a placed pod."""

from typing import Any

import pytest

from apportion.core.workloads.dialects.node_annotations import registration
from apportion_schemas import Ask, DeviceConstraints
from tests.support.manifests import asks, draft, pod, refused
from tests.support.vendor_nodes import VENDORS, vendor_node
from tests.support.vendor_placements import BOUND, ledger, place, sample, written

COUNT, MEMORY, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"
NODE = VENDORS["hygon"].node


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({COUNT: 2}, {"count": 2, "cores": 100}),
        ({COUNT: 1, MEMORY: 2000}, {"memory_mib": 2000, "cores": 100}),
        ({COUNT: 1, MEMORY: 2000, CORES: 0}, {"memory_mib": 2000, "cores": 0}),
        ({COUNT: 1, CORES: 300}, {"cores": 100}),
    ],
)
def test_memory_is_in_mib_and_cores_are_all_by_default(
    limits: dict[str, object], wanted: dict[str, Any]
) -> None:
    """Memory is in MiB. Cores are in percent: more than 100 count as 100, and the default is
    100."""
    assert asks(pod(limits)) == (Ask(container="main", family="hygon", **wanted),)


@pytest.mark.parametrize("limits", [{COUNT: 0}, {MEMORY: 2000}, {CORES: 30}])
def test_no_number_requests_no_dcu(limits: dict[str, object]) -> None:
    """A container without a number of DCUs requests no DCU, as in HAMi."""
    assert asks(pod(limits)) == ()


def test_dcus_are_chosen_by_type_and_id() -> None:
    """Pods choose and exclude DCUs by their registered type and by id."""
    lists = {
        "hygon.com/use-dcutype": "K100_AI", "hygon.com/nouse-dcutype": "Z100",
        "hygon.com/use-gpuuuid": "a", "hygon.com/nouse-gpuuuid": "b",
    }  # fmt: skip
    assert draft(pod({COUNT: 1}, lists)).shape.devices == DeviceConstraints(
        use_types=("K100_AI",), nouse_types=("Z100",), use_ids=("a",), nouse_ids=("b",),
        plugin="hami",
    )  # fmt: skip
    error = refused(pod({"birentech.com/gpu": 1}, lists))
    assert error.field == 'metadata.annotations["hygon.com/use-dcutype"]'


def test_the_annotations_of_the_sample() -> None:
    """The annotations for HAMi's plugin have the share's memory in MiB and its cores in percent."""
    here = place(ledger(NODE), "p", sample("hygon"))
    (device,) = here.devices("p")
    text = f"{device},DCU,16384,25:;"
    assert written(here, "p") == BOUND | {
        "hami.io/dcu-devices-to-allocate": text,
        "hami.io/dcu-devices-allocated": text,
    }


def test_a_registration() -> None:
    """HAMi's plugin registers DCUs in HAMi's older encoding. Up to four pods may share each DCU."""
    found = registration(NODE)
    assert (found.plugin, found.problem, len(found.devices)) == ("hami", "", 4)
    device = found.devices[1]
    assert (device.index, device.model, device.mode) == (1, "DCU-K100_AI", "hami-core")
    assert (device.memory_mib, device.cores, device.slots, device.healthy) == (65536, 100, 4, True)


@pytest.mark.parametrize(
    ("text", "offered", "says"),
    [
        ("a,1,1:", {COUNT: 1}, "3 fields"),
        ("a,4,x,100,DCU-Z100,0,true,0,hami-core:", {COUNT: 1}, "'x'"),
        ("a,4,1,100,DCU-Z100,0,true,0,hami-core:", {}, COUNT),
    ],
)
def test_a_registration_that_cannot_be_read(text: str, offered: dict[str, int], says: str) -> None:
    """A malformed registration, or one whose plugin does not run, offers nothing."""
    found = registration(vendor_node({REGISTER: text}, offered))
    assert (found.plugin, found.devices) == ("hami", ())
    assert says in found.problem
