"""Read which devices a pod uses from annotations that another system's scheduler wrote.

This is the inverse of each dialect's `render`. Some systems write only the index of a device; the
amounts then come from the pod's requests and the node's devices. Invariant: all devices of a pod
are understood, or none is recorded."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from apportion.core.devices.catalogue import FAMILIES, counts_cores, mig_profiles
from apportion.core.devices.demand import (
    Demand,
    Geometries,
    demand,
    generated,
    groups_of,
    laid_out,
    memory_charged_mib,
)
from apportion.core.workloads.dialects.dialect import BoundPod, Held, Unclear
from apportion.core.workloads.dialects.listing import RECOVERS
from apportion_schemas import Ask, Device, MigInstance, Share
from apportion_schemas.quantities import TEXT_MAX as EVIDENCE_MAX
from apportion_schemas.quantities import WHOLE

TEXT_MAX = 1 << 18


class Recovered(NamedTuple):
    """The devices that a pod uses, and the keys of the annotations that name them."""

    evidence: str
    held: tuple[Held, ...]


def recover(pod: BoundPod) -> Recovered | None:
    """Return the devices in the pod's annotations; None if none can be read.

    If several annotations have devices of one family, the first readable one counts. If a pod has
    devices of several vendors, the annotations of all of them must be readable."""
    found: list[Held] = []
    evidence: list[str] = []
    for key, read in RECOVERS.items():
        text = pod.annotations.get(key, "")
        if not text or len(text) > TEXT_MAX:
            continue
        try:
            held = tuple(read(pod, text))
        except (Unclear, msgspec.MsgspecError, LookupError):
            continue
        if held and {each.family for each in held}.isdisjoint(each.family for each in found):
            found += held
            evidence.append(key)
    asked = {ask.family for ask in pod.asks}
    if not found or (len(asked) > 1 and not asked <= {each.family for each in found}):
        return None
    return Recovered(", ".join(evidence)[:EVIDENCE_MAX], tuple(found))


def shares_of(
    held: Iterable[Held], asks: Sequence[Ask], devices: Mapping[str, Device], known: Geometries = ()
) -> tuple[Share, ...] | None:
    """Return the pod's shares of the node's devices; None if one of them cannot be determined."""
    by_index = {(device.family, device.index): device for device in devices.values()}
    wanted = {ask.container: ask for ask in asks}
    shares = []
    for listed in held:
        each = listed
        found = devices.get(each.device) or by_index.get((each.family, each.number))
        if found is None and not each.device:
            return None
        if found is not None and found.mode == "exclusive":  # some annotations have 0, or a mask
            each = listed._replace(memory_mib=found.memory_mib, cores=found.cores, instance=None)
        if found is not None and found.mode == "mig" and not (each.place or each.instance):
            return None  # an instance, but it is not known which
        if each.place is not None:
            share = _placed(each, each.place, found, known)
            if share is None:
                return None
            shares.append(share)
            continue
        amounts = _amounts(each, wanted.get(each.container), found)
        if amounts is None:
            return None
        memory_mib, cores, template = amounts
        shares.append(
            Share(
                container=each.container, device=found.id if found else each.device,
                memory_mib=memory_mib, cores=cores, instance=each.instance, template=template,
            )
        )  # fmt: skip
    return tuple(shares)


def _placed(
    each: Held, place: tuple[str, int], device: Device | None, known: Geometries
) -> Share | None:
    if device is None:
        return None
    sizes = device.mig_sizes
    # Without configured groups, Volcano uses default ones, and the ledger has no group.
    configured = groups_of(known, device.family, device.model, sizes)
    groups = configured or [
        laid_out(group, 1, device.model, sizes) for group in generated(device.model)
    ]
    for found in (found for group in groups for found in group):
        if (found.group, found.position) == place:
            group, position = place if configured else ("", 0)
            return Share(
                container=each.container,
                device=device.id,
                memory_mib=memory_charged_mib(found.profile, device),
                cores=0,
                instance=MigInstance(
                    profile=found.profile.name,
                    start=found.start,
                    size=found.profile.size,
                    group=group,
                    position=position,
                ),
            )
    return None


def _amounts(
    each: Held, ask: Ask | None, device: Device | None
) -> tuple[int, int, str | None] | None:
    memory_mib, cores, template = each.memory_mib, each.cores, None
    if memory_mib is None or cores is None:
        if ask is None or device is None:
            return None
        needed = demand(ask, device)
        if not isinstance(needed, Demand):
            return None
        return needed.memory_mib, needed.cores, needed.template
    if each.instance is not None:
        if device is None:
            return memory_mib, 0, None
        profiles = mig_profiles(device.family, device.model, device.mig_sizes)
        charged = (
            memory_charged_mib(p, device) for p in profiles if p.name == each.instance.profile
        )
        return next(charged, memory_mib), 0, None
    family = FAMILIES.get(each.family)
    split_softly = device is not None and device.mode == "hami-core"
    if family is not None and family.templates and not split_softly:
        cut = next((t for t in family.templates if t.memory_mib == memory_mib), None)
        if cut is None:  # a whole device
            return memory_mib, device.cores if device else cores, None
        return memory_mib, cut.cores, cut.name
    if cores == WHOLE and device is not None and not counts_cores(each.family):
        cores = device.cores if memory_mib >= device.memory_mib else min(device.cores, WHOLE)
    return memory_mib, cores, template
