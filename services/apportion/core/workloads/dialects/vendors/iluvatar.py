"""The dialects of Iluvatar GPUs, with one set of resource names for each chip since HAMi 2.7.

Names are `iluvatar.ai/BI-V150-vgpu`, `.vMem` in units of 256 MiB, and `.vCore` in percent; up to
HAMi 2.6, `iluvatar.ai/vgpu`, `vcuda-memory` and `vcuda-core` for all chips. Memory and cores are
per GPU. A request without cores gets any free ones. Several GPUs are exclusive: HAMi's webhook sets
the cores to 100 percent times their number, so another amount is refused. The webhook also sets
`SOL_CONTINER_NAME`. HAMi 2.7 reads the GPUs that the plugin registers. HAMi 2.6 makes up the GPUs
from the amounts that the plugin counts; that plugin needs no lock."""

from functools import partial

from msgspec import structs

from apportion.core.workloads.dialects import chart
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import Dialect, PlacedPod, Selecting, commas
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import in_annotation
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

UNIT_MIB = 256
CHIPS = {
    word: HamiDevice(
        family=f"iluvatar-{word.lower()}",
        devices=f"{word} GPUs",
        names=Names(
            f"iluvatar.ai/{word}-vgpu", f"iluvatar.ai/{word}.vMem", f"iluvatar.ai/{word}.vCore"
        ),
        word=word,
        type=word,
        selecting=Selecting(
            use_ids=(f"hami.io/use-{word}-uuid",), nouse_ids=(f"hami.io/no-use-{word}-uuid",)
        ),
        unit_mib=UNIT_MIB,
        default_cores=0,
    )
    for word in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
}
ANY_CHIP = HamiDevice(
    family="iluvatar",
    devices="Iluvatar GPUs",
    names=Names("iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory", "iluvatar.ai/vcuda-core"),
    word="iluvatar-vgpu",
    type="Iluvatar",
    selecting=Selecting(
        use_ids=("iluvatar.ai/use-gpuuuid",), nouse_ids=("iluvatar.ai/nouse-gpuuuid",)
    ),
    unit_mib=UNIT_MIB,
    default_cores=0,
)
ASSIGNED, TIME = "iluvatar.ai/gpu-assigned", "iluvatar.ai/predicate-time"
INDEXES = "iluvatar.ai/predicate-gpu-idx-"
CONTAINER = "SOL_CONTINER_NAME"  # spelled as in HAMi's webhook


def _read(
    gpu: HamiDevice, container: Container, amounts: Amounts, config: DialectConfig
) -> Ask | None:
    ask = gpu.read(container, amounts, config)
    if ask is None or ask.count == 1:
        return ask
    cores = amounts.get(gpu.names.cores)
    if cores and cores.value != ask.count * WHOLE:
        problem = f"is not {WHOLE} percent for each of {ask.count} GPUs, which are exclusive"
        raise cores.refusal(problem, f"remove it, or set {gpu.names.number} to 1")
    return structs.replace(ask, cores=WHOLE)


def _fills(gpu: HamiDevice, ask: Ask) -> dict[str, int]:
    return {gpu.names.cores: ask.count * WHOLE} if ask.count > 1 else {}


def _render_any(it: PlacedPod) -> dict[str, str]:
    chosen = {}
    for at, name in enumerate((*it.init_containers, *it.containers)):
        shares = [s for s in it.shares(name) if it.devices[s.device].family == ANY_CHIP.family]
        if shares:
            chosen[f"{INDEXES}{at}"] = commas(map(it.index_of, shares))
    return ANY_CHIP.allocated(it) | {ASSIGNED: "false", TIME: str(it.now_ns)} | chosen


def _check_chips(section: object, path: str) -> str:
    for position, each in enumerate(chart.a_list(section, path)):
        here = f"{path}[{position}]"
        chip = chart.an_object(each, here)
        word = chip.get("commonWord", chip.get("chipName"))
        if word not in CHIPS:
            fix = f"remove the entry, or write one of {', '.join(CHIPS)}"
            raise ManifestError(f"{here}.commonWord", word, "is not a known chip", fix)
        same = {"chipName": word, "commonWord": word, **CHIPS[word].names.section}
        chart.same(chip, same, here)
    return "these names are fixed"


def _chip(gpu: HamiDevice) -> Dialect:
    return gpu.dialect(
        gpu.family,
        read=partial(_read, gpu),
        fills=partial(_fills, gpu),
        env=lambda ask: {CONTAINER: ask.container},
        inventory=in_annotation(f"hami.io/node-{gpu.word}-register", gpu.family, gpu.names.number),
        sections={"iluvatars": _check_chips},
    )


DIALECTS = (
    *map(_chip, CHIPS.values()),
    ANY_CHIP.dialect(
        "iluvatar",
        section=ANY_CHIP.names.section,
        read=partial(_read, ANY_CHIP),
        fills=partial(_fills, ANY_CHIP),
        render=_render_any,
        inventory=ANY_CHIP.in_amounts("iluvatar"),
        locks={},
        writes=(ASSIGNED, TIME, INDEXES),
    ),
)
