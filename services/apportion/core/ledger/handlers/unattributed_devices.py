"""Charge devices to a bound pod when no trusted source reports which ones it uses.

The pod is charged all that is free on as many devices as it requested, the emptiest first. If it
were charged all devices, one pod could fill a node. On a MIG device, the pod may use any instance,
even one that looks free. Invariants: such a pod fills at most as many devices as it requested. The
pod is charged every free MIG instance that it may use."""

from collections.abc import Iterator, Sequence

from msgspec import structs

from apportion.core.devices.demand import (
    Demand,
    FleetFacts,
    Geometries,
    Place,
    demand,
    groups_of,
    memory_charged_mib,
)
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import NodeState
from apportion.core.workloads.adoption.claims import Claim, Wanted
from apportion_schemas import Ask, MigInstance, PodAdopted, Share
from apportion_schemas.quantities import TEXT_MAX

EVIDENCE = "what it asks for; nobody says what it has"


def taken(claim: Claim, node: NodeState, geometries: Geometries = ()) -> PodAdopted | None:
    """Return the event that charges devices to the pod; None while that is not possible.

    The node must have reported its devices, and the instances of a MIG device must be known. Until
    the event, the node offers no device of the pod's families (`NodeObserved.unnamed_families`),
    like HAMi."""
    cut = {each.device.id: each.device for each in node.devices if each.device.mode == "mig"}
    on_unreported_slices = (
        any(device.family in claim.families for device in cut.values())
        if claim.unclear
        else any(held.device in cut and not (held.instance or held.place) for held in claim.held)
    )
    if on_unreported_slices:
        return None
    present = sorted(
        (each for each in node.devices if each.present), key=lambda each: -each.memory_free_mib
    )
    devices = {
        family: [each for each in present if each.device.family == family]
        for family in claim.families
    }
    if not any(devices.values()):
        return None
    shares: list[Share] = []
    for wanted in claim.wanted:
        left = devices.get(wanted.family, [])
        for device in left[: wanted.devices]:
            rest = list(_rest(device, wanted, FleetFacts(geometries)))
            if not rest and device.device.mode == "mig":
                return None
            shares += rest
        del left[: wanted.devices]  # charged to one container only
    submitted = claim.submitted
    if not submitted.shape.asks:  # they could not be parsed
        asks = tuple(
            Ask(container=each.container, family=each.family, count=each.devices)
            for each in claim.wanted
        )
        submitted = structs.replace(submitted, shape=structs.replace(submitted.shape, asks=asks))
    doubted = f": {claim.doubted[0]} is its author's word" if claim.doubted else ""
    return PodAdopted(
        pod=submitted.uid, node=node.name, submitted=submitted,
        shares=tuple(shares), evidence=f"{EVIDENCE}{doubted}"[:TEXT_MAX], running=True,
    )  # fmt: skip


def _rest(state: DeviceState, wanted: Wanted, fleet: FleetFacts) -> Iterator[Share]:
    """Yield one share with all that is free on a device, or a share per free MIG instance."""
    device = state.device
    if state.slots_free < 1 or state.memory_free_mib < 1:
        return
    if device.mode != "mig":
        memory_mib, cores = state.memory_free_mib, max(state.cores_free, 0)
        yield Share(
            container=wanted.container, device=device.id, memory_mib=memory_mib, cores=cores
        )
        return
    taken, group, memory_mib = state.taken, state.group, state.memory_free_mib
    for place in _instances(Ask(container=wanted.container, family=wanted.family), state, fleet):
        charge = memory_charged_mib(place.profile, device)
        if place.mask & taken or (taken and place.group != group) or charge > memory_mib:
            continue
        taken, group, memory_mib = taken | place.mask, place.group, memory_mib - charge
        instance = MigInstance(
            profile=place.profile.name, start=place.start, size=place.profile.size,
            group=place.group, position=place.position,
        )  # fmt: skip
        yield Share(
            container=wanted.container, device=device.id, memory_mib=charge, cores=0,
            instance=instance,
        )  # fmt: skip


def _instances(whole: Ask, state: DeviceState, fleet: FleetFacts) -> Sequence[Place]:
    """Return the MIG instances that are the whole device: its largest, or all of one group."""
    device = state.device
    groups = groups_of(fleet.geometries, device.family, device.model, device.mig_sizes)
    if groups:
        return next((each for each in groups if each[0].group == state.group), groups[0])
    found = demand(whole, device, fleet)
    return found.options if isinstance(found, Demand) else ()
