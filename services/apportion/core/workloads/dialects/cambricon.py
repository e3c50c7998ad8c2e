"""The dialect of Cambricon MLUs: `cambricon.com/vmlu`, memory per 256 MiB, percent of cores.

The rules are those of HAMi's Cambricon device. A count alone requests whole MLUs. Memory and cores
are per MLU; either without a count requests one MLU. A request without cores gets the MLU
exclusively. Names contain `smlu`, the vendor's own way of sharing."""

from functools import partial
from itertools import chain

from apportion.core.workloads.dialects import chart, hami
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Dialect,
    PlacedPod,
    Selecting,
    of_family,
    record,
    segments,
    selected,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

FAMILY = "cambricon"
TYPE = "MLU"
UNIT_MIB = 256
COUNT = "cambricon.com/vmlu"
MEMORY = "cambricon.com/mlu.smlu.vmemory"
CORES = "cambricon.com/mlu.smlu.vcore"
TO_ALLOCATE = "hami.io/cambricon-mlu-devices-to-allocate"
ALLOCATED = "hami.io/cambricon-mlu-devices-allocated"
_NO_COUNT = f"has no number of MLUs: one for Apportion, none for HAMi; write {COUNT}: 1"
SELECTING = Selecting(
    use_types=("cambricon.com/use-mlutype",),
    nouse_types=("cambricon.com/nouse-mlutype",),
    use_ids=("cambricon.com/use-gpuuuid",),
    nouse_ids=("cambricon.com/nouse-gpuuuid",),
)
RESOURCES = of_family(FAMILY, (COUNT, MEMORY, CORES), unit_mib=UNIT_MIB, clamps=True)


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, memory, cores = (amounts.get(name) for name in (COUNT, MEMORY, CORES))
    deciding = (count,) if count else (memory, cores)
    if not any(amount and amount.value for amount in deciding):
        return None
    memory_mib = memory.memory_mib(UNIT_MIB) if memory else None
    percent = cores.cores_percent(clamp=True) if cores else WHOLE
    return container.ask(
        FAMILY,
        count=count.devices() if count else 1,
        memory_mib=memory_mib,
        cores=percent if memory_mib or percent else WHOLE,
    )


def _render(it: PlacedPod) -> dict[str, str]:
    text = segments(it, lambda s: record(s.device, TYPE, s.memory_mib, s.cores))
    # The plugin cuts one share per pod: the profile is that of the first.
    first = it.placed.shares[0]
    profile = (it.index_of(first), first.cores, first.memory_mib // UNIT_MIB)
    return hami.bound(it) | {
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        "CAMBRICON_DSMLU_PROFILE": "_".join(map(str, profile)),
        TO_ALLOCATE: text,
        ALLOCATED: text,
    }


def _check_section(section: object, path: str) -> str:
    names = {"resourceCountName": COUNT, "resourceMemoryName": MEMORY, "resourceCoreName": CORES}
    chart.same(chart.an_object(section, path), names, path)
    return "these names are fixed"


DIALECT = Dialect(
    name="cambricon",
    devices="MLUs",
    resources=lambda _: RESOURCES,
    read=_read,
    choose=partial(selected, keys=SELECTING),
    reserved=dict.fromkeys(chain(*SELECTING), "selects MLUs, but the pod requests {devices}"),
    render=_render,
    recover={ALLOCATED: hami.segments_of(FAMILY)},
    needs=dict.fromkeys((MEMORY, CORES), (COUNT, _NO_COUNT)),
    sections={"cambricon": _check_section},
)
