"""The dialect of Cambricon MLUs: `cambricon.com/vmlu`, units of 256 MiB, percent of cores.

The rules are those of HAMi's Cambricon device. A count alone requests whole MLUs. Memory and cores
are per MLU; a request for either without a count gets one MLU. A request without cores gets the MLU
exclusively. Names contain `smlu`, the vendor's own way of sharing. The vendor's plugin only counts
percent and units of memory, so HAMi makes up the ids of the node's MLUs."""

from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import Lock, PlacedPod, Selecting
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

COUNT = "cambricon.com/vmlu"
MEMORY = "cambricon.com/mlu.smlu.vmemory"
CORES = "cambricon.com/mlu.smlu.vcore"
UNIT_MIB = 256
_NO_COUNT = f"has no number of MLUs: Apportion allocates one, HAMi none; write {COUNT}: 1"
MLU = HamiDevice(
    family="cambricon",
    devices="MLUs",
    names=Names(COUNT, MEMORY, CORES),
    word="cambricon-mlu",
    type="MLU",
    selecting=Selecting(
        use_ids=("cambricon.com/use-gpuuuid",), nouse_ids=("cambricon.com/nouse-gpuuuid",)
    ),
    unit_mib=UNIT_MIB,
)


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, memory, cores = (amounts.get(name) for name in MLU.names)
    deciding = (count,) if count else (memory, cores)
    if not any(amount and amount.value for amount in deciding):
        return None
    memory_mib = memory.memory_mib(UNIT_MIB) if memory else None
    percent = cores.cores_percent(clamp=True) if cores else WHOLE
    return container.ask(
        MLU.family,
        count=count.devices() if count else 1,
        memory_mib=memory_mib,
        cores=percent if memory_mib or percent else WHOLE,
    )


def _render(it: PlacedPod) -> dict[str, str]:
    # The plugin cuts one share per pod: the profile is that of the first.
    first = MLU.shares(it)[0]
    profile = (it.index_of(first), first.cores, first.memory_mib // UNIT_MIB)
    return MLU.allocated(it) | {
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_PROFILE": "_".join(map(str, profile)),
    }


DIALECT = MLU.dialect(
    "cambricon",
    section=MLU.names.section,
    read=_read,
    render=_render,
    needs=dict.fromkeys((MEMORY, CORES), (COUNT, _NO_COUNT)),
    inventory=MLU.in_amounts(MLU.word, rounds_up=False),
    locks={"hami": Lock("cambricon.com/dsmlu.lock", names_pod=False, expires_s=120)},
)
