"""Tests that devices are published as ResourceSlices, and that placements become allocations of
ResourceClaims."""

from typing import Any

import msgspec
import pytest

from apportion.core.dra.names import DRIVER, container_of, device_of, share_id
from apportion.core.dra.requests import NotOfClaim, allocation, is_allocated, read_resource_claim
from apportion.core.dra.slices import COUNTERS_MAX, DEVICES_MAX, pool
from apportion_schemas import DeviceHealthChanged, MigInstance, Share
from tests.support.fleet import A100_80, gpu, node, npu
from tests.support.kube_claims import request, resource_claim
from tests.support.ledger_of import Ledger


def specs(*devices: Any) -> list[dict[str, Any]]:
    return pool("n1", Ledger(node("n1", *devices)).state.nodes["n1"].devices)


def devices_of(slices: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for each in slices for device in each.get("devices", ())}


def test_a_shared_card_is_one_device_with_capacity_to_consume() -> None:
    """In a ResourceSlice, a shared device has capacity that several claims can consume. An
    exclusive device has none."""
    found = devices_of(specs(gpu("g0"), gpu("g1", mode="exclusive")))
    shared = found["gpu-0"]
    assert shared["allowMultipleAllocations"] is True
    assert shared["capacity"]["memory"] == {"value": "81920Mi"}
    assert shared["capacity"]["slots"]["value"] == "10"
    assert shared["attributes"]["uuid"] == {"string": "g0"}
    assert "allowMultipleAllocations" not in found["gpu-1"]


def test_a_cut_card_is_every_instance_at_every_place() -> None:
    """A ResourceSlice lists every MIG instance that a device could have: each profile at each start
    slice. Shared counters keep Kubernetes from allocating overlapping instances."""
    counters, devices = specs(gpu("g0", mode="mig"))
    (counted,) = counters["sharedCounters"]
    assert len(counted["counters"]) == 8
    found = {device["name"]: device for device in devices["devices"]}
    assert len(found) == 7 + 3 + 2 + 1
    taken = found["gpu-0-mig-2g-20gb-4"]["consumesCounters"]
    assert taken == [
        {
            "counterSet": "gpu-0",
            "counters": {"memory-slice-4": {"value": "1"}, "memory-slice-5": {"value": "1"}},
        }
    ]


def test_a_pool_stays_within_what_one_slice_may_have() -> None:
    """If a node has too many devices for one ResourceSlice, the devices are spread over several.

    Each ResourceSlice states the number of ResourceSlices that the node has."""
    found = specs(*(gpu(f"g{index}", mode="mig") for index in range(16)))
    assert all(len(each.get("devices", ())) <= DEVICES_MAX for each in found)
    assert all(len(each.get("sharedCounters", ())) <= COUNTERS_MAX for each in found)
    assert {each["pool"]["resourceSliceCount"] for each in found} == {len(found)}
    assert len(devices_of(found)) == 16 * 13


def test_a_device_that_takes_nothing_new_is_left_out() -> None:
    """The ResourceSlices of a node contain only its healthy NVIDIA GPUs."""
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1"), npu("npu2")))
    ledger.play(DeviceHealthChanged(node="n1", device="g1", healthy=False, reason="XID 79"))
    found = pool("n1", ledger.state.nodes["n1"].devices)
    assert set(devices_of(found)) == {"gpu-0"}
    assert pool("n1", []) == []


CLAIM = read_resource_claim(
    msgspec.json.encode(
        resource_claim("mine", request("a", count=2, memory="1Gi"), request("b", memory="2Gi"))
        | {"metadata": {"name": "mine", "namespace": "default", "uid": "c-1"}}
    )
)
CARDS = {each.id: each for each in (gpu("g0"), gpu("g1"), gpu("g2", mode="mig", model=A100_80))}


def held(device: str, memory_mib: int, instance: MigInstance | None = None) -> Share:
    """Return a share of this device that was allocated for claim `c-1`."""
    return Share(
        container=container_of("c-1"),
        device=device,
        memory_mib=memory_mib,
        cores=0,
        instance=instance,
    )


def test_a_placement_is_the_allocation_of_its_claim() -> None:
    """A placement becomes the claim's allocation, with device, consumed capacity and node for every
    request."""
    instance = MigInstance(profile="2g.20gb", start=4, size=2)
    shares = [held("g0", 1024), held("g1", 1024), held("g2", 19968, instance)]
    found = allocation(CLAIM, shares, CARDS, node="n1", attempt=3)
    first, second, cut = found["devices"]["results"]
    assert [each["request"] for each in (first, second, cut)] == ["a", "a", "b"]
    assert [each["device"] for each in (first, second, cut)] == [
        "gpu-0", "gpu-1", "gpu-2-mig-2g-20gb-4",
    ]  # fmt: skip
    assert first["consumedCapacity"] == {"memory": "1024Mi", "cores": "0", "slots": "1"}
    assert first["shareID"] != second["shareID"]
    assert not {"shareID", "consumedCapacity"} & set(cut)
    (term,) = found["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ["n1"]
    assert device_of(shares[2], CARDS["g2"]) in devices_of(specs(CARDS["g2"]))


def test_whether_an_allocation_is_there_can_be_seen() -> None:
    """A claim counts as allocated only if its allocation is from the pod's current attempt. An
    allocation of an earlier attempt does not count, even with the same devices."""
    shares = [held("g0", 1024), held("g1", 1024), held("g0", 2048)]
    made = allocation(CLAIM, shares, CARDS, node="n1", attempt=1)
    raw = resource_claim("mine") | {
        "metadata": {"name": "mine", "uid": "c-1"},
        "status": {"allocation": made},
    }
    there = read_resource_claim(msgspec.json.encode(raw))
    assert is_allocated(there, made)
    assert not is_allocated(there, allocation(CLAIM, shares, CARDS, node="n1", attempt=2))
    assert all(each.driver == DRIVER for each in there.results)


def test_shares_of_another_number_are_not_of_the_claim() -> None:
    """A placement is refused if its number of shares differs from the number of devices that the
    claim requests.

    That happens if the claim was deleted and created again under the same name."""
    with pytest.raises(NotOfClaim, match="requests 3 devices"):
        allocation(CLAIM, [held("g0", 1024)], CARDS, node="n1", attempt=1)


def test_the_id_of_a_share_is_a_uuid_of_claim_attempt_and_position() -> None:
    """A share's id is computed from claim, attempt and position, so that binder and agent get the
    same id."""
    assert share_id("c-1", 1, 0) == share_id("c-1", 1, 0)
    others = {share_id("c-1", 1, 1), share_id("c-1", 2, 0), share_id("c-2", 1, 0)}
    assert len({share_id("c-1", 1, 0), *others}) == 4
    assert [len(part) for part in share_id("c-1", 1, 0).split("-")] == [8, 4, 4, 4, 12]
