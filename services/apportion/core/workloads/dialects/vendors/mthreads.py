"""The dialect of Moore Threads GPUs: `mthreads.com/vgpu`, `sgpu-memory`, and `sgpu-core`.

The rules are those of HAMi's Moore Threads device and its webhook. A GPU has 16 cores. Memory is in
units of 512 MiB: 2, 4, 8, 16, 32, 64 or 96. Without memory a container gets the whole GPU, and
without cores any free ones. Several GPUs are whole ones; amounts in their request must be the sum
over all of them, with 96 units and 16 cores per GPU. Other amounts are refused; HAMi's webhook
replaces them. The plugin has one list of GPUs for a pod. So HAMi puts all of its containers on one
GPU, and a second container with GPUs is refused here. The plugin only counts cores and units, so
HAMi makes up the ids. It needs no lock."""

from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import PlacedPod, Selecting, commas, of_family
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

COUNT = "mthreads.com/vgpu"
MEMORY, CORES = "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
UNIT_MIB = 512
GPU_CORES, GPU_UNITS = 16, 96
SIZES = (2, 4, 8, 16, 32, 64, 96)
INDEXES, NODE = "mthreads.com/gpu-index", "mthreads.com/predicate-node"
TIME, GPUS = "mthreads.com/predicate-time", "mthreads.com/request-gpu-num"
GPU = HamiDevice(
    family="mthreads",
    devices="Moore Threads GPUs",
    names=Names(COUNT, MEMORY, CORES),
    word="mthreads-vgpu",
    type="Mthreads",
    selecting=Selecting(
        use_ids=("mthreads.ai/use-gpuuuid",), nouse_ids=("mthreads.ai/nouse-gpuuuid",)
    ),
    unit_mib=UNIT_MIB,
    to_allocate=False,
)

RESOURCES = of_family(GPU.family, GPU.names, unit_mib=UNIT_MIB, clamps=False)


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, memory, cores = (amounts.get(name) for name in GPU.names)
    if count is None:
        return None
    devices = count.devices()  # HAMi's webhook rejects 0
    if devices > 1 or memory is None:
        for amount, each in ((memory, GPU_UNITS), (cores, GPU_CORES)):
            if amount and amount.value != devices * each:
                fix = f"remove it, or set {COUNT}: 1 and {MEMORY}"
                raise amount.refusal("is part of a GPU, but whole ones are requested", fix)
        return container.ask(GPU.family, count=devices, cores=WHOLE)
    if memory.value not in SIZES:
        fix = f"write one of {commas(SIZES)}"
        raise memory.refusal(f"is not a size of a share (the unit is {UNIT_MIB} MiB)", fix)
    used = cores.value if cores else 0
    if cores and used > GPU_CORES:
        raise cores.refusal("is more than a GPU has", f"write at most {GPU_CORES}")
    if (memory.value, used) == (GPU_UNITS, GPU_CORES):
        return container.ask(GPU.family, cores=WHOLE)
    # rounded up to percent, so that the same number of cores results
    percent = -(-used * WHOLE // GPU_CORES)
    return container.ask(GPU.family, memory_mib=memory.memory_mib(UNIT_MIB), cores=percent)


def _render(it: PlacedPod) -> dict[str, str]:
    notes = GPU.allocated(it) | {NODE: it.placed.node, TIME: str(it.now_ns)}
    for name in (*it.init_containers, *it.containers):
        if held := [s for s in it.shares(name) if it.devices[s.device].family == GPU.family]:
            notes[INDEXES] = commas(map(it.index_of, held))
            if len(held) > 1:
                notes[GPUS] = str(len(held))  # HAMi's webhook writes it
    return notes


DIALECT = GPU.dialect(
    "mthreads",
    section=GPU.names.section,
    resources=lambda _: RESOURCES,
    read=_read,
    render=_render,
    fills=lambda ask: (
        {CORES: GPU_CORES * ask.count, MEMORY: GPU_UNITS * ask.count} if ask.whole else {}
    ),
    inventory=GPU.in_amounts("mthreads", device_cores=GPU_CORES),
    locks={},
    writes=(INDEXES, NODE, TIME, GPUS),
    one_container=(GPU.family,),
)
