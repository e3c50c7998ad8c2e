"""What a bound pod is charged of which nobody says, or nobody who may, which devices it has.

It asked for so many, so it can have no more: the rest of as many cards of its node is charged to
it, those with the most room first. Closing all of them would let one pod close a node. Invariant: a
pod of which nothing is known takes at most as many devices out of use as it asked for.
"""

from collections.abc import Iterable, Iterator

from msgspec import structs

from apportion.core.devices.demand import Demand, Known, demand
from apportion.core.devices.shares import DeviceState
from apportion.core.ledger.state import NodeState
from apportion.core.manifests.claims import Claim, Wanted
from apportion_schemas import Ask, MigInstance, PodAdopted, PodSubmitted, Share
from apportion_schemas.quantities import TEXT_MAX

EVIDENCE = "what it asks for; nobody says what it has"


def taken(claim: Claim, node: NodeState, known: Known = ()) -> PodAdopted | None:
    """The event that holds so many devices for the pod; None while the node has told of none.

    `known` are the ways in which cards may be cut (`knownMigGeometries`).
    """
    devices = {
        family: sorted(_of(node, family), key=lambda each: -each.memory_free_mib)
        for family in claim.families
    }
    if not any(devices.values()):
        return None
    shares = tuple(
        share
        for wanted in claim.wanted
        for device in _next(devices.get(wanted.family, []), wanted.devices)
        for share in _rest(device, wanted, known)
    )
    return PodAdopted(
        pod=claim.submitted.uid, node=node.name, submitted=_asking(claim),
        shares=shares, evidence=_evidence(claim), running=True,
    )  # fmt: skip


def _evidence(claim: Claim) -> str:
    doubted = f": {claim.doubted[0]} is its author's word" if claim.doubted else ""
    return f"{EVIDENCE}{doubted}"[:TEXT_MAX]


def _of(node: NodeState, family: str) -> Iterator[DeviceState]:
    return (each for each in node.devices if each.present and each.device.family == family)


def _next(devices: list[DeviceState], count: int) -> Iterable[DeviceState]:
    """So many of them, which are none of the others' any more."""
    found = devices[:count]
    del devices[:count]
    return found


def _rest(state: DeviceState, wanted: Wanted, known: Known) -> Iterator[Share]:
    """All that is free of the device; of a card that is cut, its largest instance that is free."""
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
    for place, charge in whole.free_places(state.slices, state.group, state.memory_free_mib):
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
