"""Shares that are charged to a bound pod when no trusted source says which devices it has.

It asked for so many, so it can have no more: the rest of as many cards of its node is charged to
it, those with the most room first. Closing all of them would let one pod close a node. A card that
is cut (MIG) is another matter: such a pod may run on any of its slices, also on one that looks free
by now. Invariants: a pod of which nothing is known takes at most as many devices out of use as it
asked for; and no slice is offered on which a pod may run that is charged with none."""

from collections.abc import Iterator

from msgspec import structs

from apportion.core.devices.demand import Demand, Known, demand
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import NodeState
from apportion.core.workloads.adoption.claims import Claim, Wanted
from apportion_schemas import Ask, MigInstance, PodAdopted, PodSubmitted, Share
from apportion_schemas.quantities import TEXT_MAX

EVIDENCE = "what it asks for; nobody says what it has"


def taken(claim: Claim, node: NodeState, known: Known = ()) -> PodAdopted | None:
    """The event that holds so many devices for the pod; None while that cannot be told.

    It cannot while the node has reported none, nor for a pod on a cut card whose slices are not
    told: as long as it is in no ledger, the node offers no device of its families
    (`NodeObserved.unnamed_families`). HAMi fails closed there as well. `known` are the ways in
    which cards may be cut (`knownMigGeometries`)."""
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
            rest = list(_rest(device, wanted, known))
            if not rest and device.device.mode == "mig":
                return None
            shares += rest
        del left[: wanted.devices]  # no other container is charged with them
    doubted = f": {claim.doubted[0]} is its author's word" if claim.doubted else ""
    return PodAdopted(
        pod=claim.submitted.uid, node=node.name, submitted=_asking(claim),
        shares=tuple(shares), evidence=f"{EVIDENCE}{doubted}"[:TEXT_MAX], running=True,
    )  # fmt: skip


def _rest(state: DeviceState, wanted: Wanted, known: Known) -> Iterator[Share]:
    """All that is free of the device; of a cut card the whole, or nothing if it is in use."""
    device = state.device
    if state.slots_free < 1 or state.memory_free_mib < 1:
        return
    if device.mode != "mig":
        memory_mib, cores = state.memory_free_mib, max(state.cores_free, 0)
        yield Share(
            container=wanted.container, device=device.id, memory_mib=memory_mib, cores=cores
        )
        return
    whole = demand(Ask(container=wanted.container, family=wanted.family), device, known)
    if not isinstance(whole, Demand):
        return
    for place, charge in whole.free_places(state.taken, state.group, state.memory_free_mib):
        instance = MigInstance(
            profile=place.profile.name, start=place.start, size=place.profile.size,
            group=place.group, position=place.position,
        )  # fmt: skip
        yield Share(
            container=wanted.container, device=device.id, memory_mib=charge, cores=0,
            instance=instance,
        )  # fmt: skip
        return


def _asking(claim: Claim) -> PodSubmitted:
    """The pod with an ask for each container; of one that cannot be read they are made up."""
    about = claim.submitted
    if about.shape.asks:
        return about
    asks = tuple(
        Ask(container=each.container, family=each.family, count=each.devices)
        for each in claim.wanted
    )
    return structs.replace(about, shape=structs.replace(about.shape, asks=asks))
