"""The dialect of AWS Neuron: `aws.amazon.com/neuron`, whole devices, or `neuroncore`, their cores.

The rules are those of HAMi's device for Neuron. Cores are 1, or an even number: whole devices with
two cores. HAMi ignores cores next to devices; both in one container are refused. Several devices
are 4, 8 or 16 in a ring on Trainium, and neighbours on Inferentia. A core has half of the memory of
a device with two cores. On devices with another number of cores, pods request whole devices only.
The vendor's plugin only counts devices and cores, so HAMi makes up the ids of devices."""

from collections.abc import Iterator, Mapping
from functools import partial

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.workloads.dialects import hami
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    SHARES,
    Bound,
    BoundPod,
    Held,
    PlacedPod,
    Resource,
    Selecting,
    commas,
    record,
)
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import Inventory, NodeFacts, alike, devices_of
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, Device, MigInstance, Share
from apportion_schemas.quantities import WHOLE

COUNT = "aws.amazon.com/neuron"
CORES = "aws.amazon.com/neuroncore"
TYPE = "AWSNeuron"
DEVICE = HamiDevice(
    family="neuron",
    devices="Neuron devices",
    names=Names(COUNT),
    word="aws-neuron",
    type=TYPE,
    selecting=Selecting(
        use_ids=("aws.amazon.com/use-neuron-uuid",), nouse_ids=("aws.amazon.com/nouse-neuron-uuid",)
    ),
    to_allocate=False,
)
PAIR = 2
MOST = 16  # devices of the largest node
PROFILES = mig_profiles(DEVICE.family, TYPE)  # of one core, and of two
INSTANCE_TYPE = "node.kubernetes.io/instance-type"  # label of a node, as in trn1.32xlarge
# memory of a device with another number of cores than two, by the family of the instance type
MEMORY_MIB: Mapping[str, int] = {"inf1": 8192, "trn2": 98304}


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, cores = amounts.get(COUNT), amounts.get(CORES)
    if count is not None and cores is not None:
        fix = "request only one of the two resources"
        raise cores.refusal(f"is requested together with {COUNT} in one container", fix)
    if count is not None:
        if count.value > MOST:
            raise count.refusal("is more than a node has", f"write at most {MOST}")
        return container.ask(DEVICE.family, count=count.devices(DEVICE.family), cores=WHOLE)
    if cores is None:
        return None
    one, both = PROFILES
    if cores.value == 1:
        return container.ask(DEVICE.family, memory_mib=one.memory_mib, cores=one.cores)
    if cores.value % PAIR:
        raise cores.refusal("is neither 1 nor a multiple of 2", f"write {cores.value + 1}")
    devices = cores._replace(value=cores.value // PAIR).devices(DEVICE.family)
    return container.ask(DEVICE.family, count=devices, memory_mib=both.memory_mib, cores=both.cores)


def _cores(it: PlacedPod, share: Share) -> range:
    """Return the numbers of the share's cores on its device."""
    part = share.instance
    cores = it.devices[share.device].cores
    return range(part.start, part.start + part.size) if part else range(cores)


def _render(it: PlacedPod) -> dict[str, str]:
    ids: list[int] = []
    of_cores = False
    for name in (*it.init_containers, *it.containers):
        for share in it.shares(name):
            if it.devices[share.device].family != DEVICE.family:
                continue
            index = it.index_of(share)
            if it.ask(name).memory_mib is None:
                ids.append(index)
            else:
                of_cores = True
                ids += [PAIR * index + core for core in _cores(it, share)]

    def recorded(share: Share) -> str:
        return record(share.device, TYPE, 0, sum(1 << core for core in _cores(it, share)))

    return (
        DEVICE.allocated(it, recorded)
        | {
            "AWS_NEURON_IDS": commas(ids),
            "NEURON_ALLOC_TIME": str(it.now_ns),
            "NEURON_ALLOCATED": "false",
            "aws.amazon.com/predicate-node": it.placed.node,
        }
        | ({"NEURON_RESOURCE_TYPE": CORES} if of_cores else {})
    )


def _recover(pod: BoundPod, text: str) -> Iterator[Held]:
    one, both = PROFILES
    parts = {1: (one, 0), 2: (one, 1), 3: (both, 0)}  # by mask
    for held in hami.segments_of(DEVICE.family)(pod, text):
        profile, start = parts.get(held.cores or 0, (None, 0))
        if profile is None:
            yield held
            continue
        part = MigInstance(profile=profile.name, start=start, size=profile.size)
        yield held._replace(instance=part)


def _offered(node: NodeFacts) -> Iterator[Device]:
    number, cores = node.counted(COUNT), node.counted(CORES)
    if not number:
        return
    node.allowed(COUNT)
    each, kind = max(cores // number, 1), node.labels.get(INSTANCE_TYPE, "").partition(".")[0]
    mode, memory = "exclusive", MEMORY_MIB.get(kind, PROFILES[-1].memory_mib)
    if each == PAIR:
        mode, memory = "mig", PROFILES[-1].memory_mib
    found = alike(node, number, TYPE, devmem=memory, type=f"{TYPE} {kind}".strip(), devcore=each)
    yield from devices_of(found, DEVICE.family, mode=mode, slots=PAIR if mode == "mig" else 1)


DIALECT = DEVICE.dialect(
    "neuron",
    resources=lambda _: {
        COUNT: Resource((DEVICE.family,), Bound(SHARES, DEVICE.family)),
        CORES: Resource((DEVICE.family,)),
    },
    sections={
        "awsneuron": partial(
            DEVICE.check_section, {"resourceCountName": COUNT, "resourceCoreName": CORES}
        )
    },
    read=_read,
    render=_render,
    recover={DEVICE.allocated_key: _recover},
    inventory=Inventory("vendor", (COUNT,), _offered),
    locks={},
)
