"""Ascend: `huawei.com/Ascend310P` and its sisters, each with a `-memory`.

Memory is cut by templates, which the device catalogue knows: a vNPU is the smallest template that
holds the amount, else the whole device. Several devices at once are whole ones, and the dies of a
910C are handed out in pairs (HAMi's Ascend device). The names are also taken in lower case. Its
device plugin takes a placement from the pod's annotations, family by family.

A pod with `huawei.com/vnpu-mode: hami-core` wants its NPUs split softly instead, by any amount of
memory and by percent of their cores, of as many devices as it says. It gets NPUs that their agent
reports in the mode `hami-core`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import structs

from apportion.core.devices.catalogue import FAMILIES, module_of
from apportion.core.workloads.dialects import chart, hami
from apportion.core.workloads.dialects.amounts import Amount, Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Dialect,
    Notes,
    PlacedPod,
    Resource,
    Resources,
    name_list,
    of_family,
    one,
    record,
    some_left,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError, below
from apportion_schemas import Ask, DeviceConstraints, Mode, Share
from apportion_schemas.quantities import WHOLE

VNPU_MODE = "huawei.com/vnpu-mode"
SOFT: Mode = "hami-core"
PAIR = 2
MINDCLUSTER = "huawei.com/npu-core"
"""The MindCluster way to ask; claimed so that it is refused by name."""
_encode = msgspec.json.Encoder().encode


class Npu(msgspec.Struct, frozen=True):
    """One family of NPUs, by the word that its resources and annotations are made of."""

    word: str

    @property
    def family(self) -> str:
        """What the catalogue calls it."""
        return self.word.lower()

    @property
    def paired(self) -> bool:
        """Whether its dies come two to a module and are handed out in pairs."""
        return module_of(self.family) == PAIR

    @property
    def count(self) -> str:
        """The name under which pods ask for devices of this kind."""
        return f"huawei.com/{self.word}"

    @property
    def memory(self) -> str:
        """The resource of memory, in MiB."""
        return f"huawei.com/{self.word}-memory"

    @property
    def cores(self) -> str:
        """The resource of AI cores, in percent, of devices that are split softly."""
        return f"huawei.com/{self.word}-core"

    @property
    def use_ids(self) -> str:
        """The annotation of the devices that will do."""
        return f"hami.io/use-{self.word}-uuid"

    @property
    def nouse_ids(self) -> str:
        """The annotation of the devices that will not."""
        return f"hami.io/no-use-{self.word}-uuid"

    @property
    def to_allocate(self) -> str:
        """The annotation that the plugin takes segments from."""
        return f"hami.io/{self.word}-devices-to-allocate"

    @property
    def allocated(self) -> str:
        """The annotation that keeps them."""
        return f"hami.io/{self.word}-devices-allocated"


Read = Callable[[Container, Amounts, Npu], Ask | None]
NPUS = (
    Npu("Ascend910A"),
    Npu("Ascend910B2"),
    Npu("Ascend910B3"),
    Npu("Ascend910B4"),
    Npu("Ascend910B4-1"),
    Npu("Ascend910C"),
    Npu("Ascend310P"),
)
"""One plugin serves them all, so they are one dialect."""


def _resources(_: DialectConfig) -> Resources:
    found: dict[str, Resource] = {MINDCLUSTER: Resource(tuple(npu.family for npu in NPUS))}
    for npu in NPUS:
        own = of_family(npu.family, (npu.count, npu.memory, npu.cores), clamps=False)
        found |= own | {name.lower(): resource for name, resource in own.items()}
    return found


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    return _read_any(container, amounts, _read_family)


def _read_soft(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    return _read_any(container, amounts, _read_part)


def _read_any(container: Container, amounts: Amounts, read: Read) -> Ask | None:
    if mindcluster := amounts.get(MINDCLUSTER):
        raise mindcluster.refusal(
            "is not implemented yet", "ask by family, as in huawei.com/Ascend310P"
        )
    asks = [ask for npu in NPUS if (ask := read(container, amounts, npu))]
    if len(asks) > 1:
        raise ManifestError(
            f"{container.field}.resources",
            None,
            f"asks for {asks[0].family} and {asks[1].family} in one container",
            "keep one family per container",
        )
    return asks[0] if asks else None


def _read_family(container: Container, amounts: Amounts, npu: Npu) -> Ask | None:
    count, memory = _either(amounts, npu.count), _either(amounts, npu.memory)
    if (cores := _either(amounts, npu.cores)) and cores.value:
        raise cores.refusal(
            "is for NPUs that are split softly; a template brings its own cores",
            f"remove it and ask by {npu.memory}, or annotate the pod with {VNPU_MODE}: {SOFT}",
        )
    deciding = count or memory
    if deciding is None or deciding.value == 0:
        return None
    memory_mib = _memory_mib(memory, npu) if memory else None
    whole = memory_mib is None or memory_mib > _largest_template_mib(npu)
    devices = count.devices() if count else 1
    if memory and devices > 1 and not whole:
        raise memory.refusal(
            f"is a part of a device, and {devices} devices are asked for, which are whole ones",
            f"set {npu.count} to 1, or remove {npu.memory}",
        )
    return Ask(
        container=container.name,
        family=npu.family,
        count=_paired(devices, count) if npu.paired and whole else devices,
        memory_mib=memory_mib,
        cores=WHOLE if memory_mib is None else 0,
        init=container.role == "init",
    )


def _read_part(container: Container, amounts: Amounts, npu: Npu) -> Ask | None:
    """Of a pod that wants its NPUs split softly: HAMi's webhook lets any amount through."""
    count, memory, cores = (_either(amounts, n) for n in (npu.count, npu.memory, npu.cores))
    deciding = count or memory or cores
    if deciding is None or deciding.value == 0:
        return None
    devices = count.devices() if count else 1
    return Ask(
        container=container.name,
        family=npu.family,
        count=_paired(devices, count) if npu.paired else devices,
        memory_mib=memory.memory_mib(1) if memory else None,
        cores=cores.cores_percent(clamp=True) if cores else 0,
        init=container.role == "init",
    )


def _memory_mib(memory: Amount, npu: Npu) -> int | None:
    """The amount; None, which is the whole device, where it is what is printed on the device, or
    as much of it as no template has (`trimMemory` of HAMi and Volcano: up to `memoryCapacity`).
    """
    wanted, family = memory.memory_mib(1), FAMILIES.get(npu.family)
    printed = family.printed_mib if family else 0
    if wanted is not None and _largest_template_mib(npu) < wanted <= printed:
        return None
    return wanted


def _paired(devices: int, count: Amount | None) -> int:
    if devices == 1:
        return PAIR
    if count and devices % PAIR:
        raise count.refusal(
            "is odd, and the dies of this family come in pairs",
            f"write {devices - 1} or {devices + 1}",
        )
    return devices


def _either(amounts: Amounts, name: str) -> Amount | None:
    exact, lower = amounts.get(name), amounts.get(name.lower())
    if exact and lower:
        raise lower.refusal(f"is written beside {name}", "keep one of the two spellings")
    return exact or lower


def _largest_template_mib(npu: Npu) -> int:
    family = FAMILIES.get(npu.family)
    return max((template.memory_mib for template in family.templates), default=0) if family else 0


def _choose(notes: Notes) -> DeviceConstraints:
    """Ids are wanted and unwanted family by family."""
    use_ids: dict[str, None] = {}
    nouse_ids: dict[str, None] = {}
    for npu in NPUS:
        use = one(notes, (npu.use_ids,), name_list) or ()
        nouse = one(notes, (npu.nouse_ids,), name_list) or ()
        some_left(notes, (npu.nouse_ids,), use, nouse)
        use_ids |= dict.fromkeys(use)
        nouse_ids |= dict.fromkeys(nouse)
    return DeviceConstraints(use_ids=tuple(use_ids), nouse_ids=tuple(nouse_ids))


def _choose_soft(notes: Notes) -> DeviceConstraints:
    return structs.replace(_choose(notes), modes=(SOFT,))


def _variant(dialect: Dialect, notes: Notes) -> Dialect:
    if one(notes, (VNPU_MODE,), _mode) is None:
        return dialect
    return structs.replace(dialect, read=_read_soft, choose=_choose_soft)


def _mode(notes: Notes, key: str) -> str:
    if notes.values[key].strip() != SOFT:
        raise notes.refusal(key, "is no way to split an NPU", f'write "{SOFT}", or remove it')
    return SOFT


def _render(it: PlacedPod) -> dict[str, str]:
    """What HAMi's scheduler writes on a pod of this placement."""
    notes = hami.bound(it) | {"predicate-time": it.seconds}
    soft = it.pod.shape.devices.modes == (SOFT,)
    for npu in NPUS:
        shares = [s for s in it.placed.shares if it.devices[s.device].family == npu.family]
        if not shares:
            continue
        segments = "".join(
            "".join(
                record(share.device, npu.word, share.memory_mib, share.cores if soft else 0)
                for share in it.shares(name)
                if it.devices[share.device].family == npu.family
            )
            + ";"
            for name in (*it.init_containers, *it.containers)
        )
        notes[npu.to_allocate] = segments
        notes[npu.allocated] = segments
        given = [_part(share) if soft else _cut(share) for share in shares]
        notes[npu.count] = _encode(given).decode()
    return notes


def _cut(share: Share) -> dict[str, str]:
    """A device, and the template that it is cut by where it is not taken whole."""
    return {"UUID": share.device, **({"temp": share.template} if share.template else {})}


def _part(share: Share) -> dict[str, str | int]:
    """A device, and what of it is given where it is split softly: what is 0 is left out."""
    amounts = {"memory": share.memory_mib, "core": share.cores}
    return {"UUID": share.device, **{name: much for name, much in amounts.items() if much}}


def _check_section(section: object, path: str) -> str:
    """HAMi's section is an object with `configs`; older files have the list itself."""
    if isinstance(section, dict):
        soft = section.get("hamiVnpuCore", False)
        at = below(path, "hamiVnpuCore")
        chart.expect(soft, (False,), at, "remove it: which NPUs are split softly, their agent says")
        section, path = section.get("configs", []), f"{path}.configs"
    known = {npu.word: npu for npu in NPUS}
    for position, each in enumerate(chart.a_list(section, path)):
        here = f"{path}[{position}]"
        chip = chart.an_object(each, here)
        by_chip = known.get(f"Ascend{chip.get('chipName')}")
        word = chip.get("commonWord", by_chip.word if by_chip else None)
        npu = known.get(str(word))
        if npu is not None:
            _check_npu(chip, npu, here)
        elif by_chip is not None:
            fix = f"write {by_chip.word}, and {by_chip.count} in pods; or remove this entry"
            raise ManifestError(f"{here}.commonWord", word, "is not obeyed here", fix)
    return "names, templates and pairs of dies are those of the catalogue"


def _check_npu(chip: dict[str, Any], npu: Npu, path: str) -> None:
    names = {
        "resourceName": npu.count,
        "resourceMemoryName": npu.memory,
        "resourceCoreName": npu.cores,
        "memoryFactor": 1,
        "overwriteEnv": False,
        "runtimeClassName": "",
        "superPod": npu.paired,
    }
    chart.same(chip, names, path)
    templates = [
        {"name": each.name, "memory": each.memory_mib, "aiCore": each.cores, "aiCPU": each.cpu}
        for each in FAMILIES[npu.family].templates
    ]
    listed = chart.a_list(chip.get("templates", templates), f"{path}.templates")
    written = [{"aiCPU": 0} | chart.an_object(each, f"{path}.templates") for each in listed]
    if sorted(map(_sorted, written)) != sorted(map(_sorted, templates)):
        raise ManifestError(
            f"{path}.templates", _templates(written),
            f"are not the templates of {npu.word}, {_templates(templates)}",
            "remove templates: the catalogue has them",
        )  # fmt: skip


def _templates(listed: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each.get('name')} ({each.get('memory')} MiB)" for each in listed)


def _sorted(template: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((str(key), str(value)) for key, value in template.items())


_NODE_KEYS: Mapping[str, tuple[tuple[object, ...], str]] = {
    "name": ((), ""),
    "hami-vnpu-core": ((False,), "remove it: which NPUs are split softly, their agent says"),
    "vDeviceCount": ((), ""),  # a node reports itself how many pods share an NPU
    "filterDevices": (
        ({}, {"uuid": [], "index": []}, {"uuid": []}, {"index": []}, None),  # it leaves out none
        "write it in nodeconfig: {name: NODE, filterdevices: {index: [0]}}",
    ),
}
"""Keys that are nothing here, for which values, and what to do about others."""


def _check_nodes(section: object, path: str) -> str:
    """`nodes` of the file of HAMi's plugin for NPUs, the ConfigMap `hami-device-node-config`."""
    for position, each in enumerate(chart.a_list(section, path)):
        here = f"{path}[{position}]"
        node = chart.an_object(each, here)
        for key, (nothing, fix) in _NODE_KEYS.items():
            if key in node:
                chart.expect(node[key], nothing, below(here, key), fix)
        for key, value in node.items():
            if key not in _NODE_KEYS:
                fix = "write the keys of a node in nodeconfig"
                raise ManifestError(
                    below(here, key), value, "is under a key that is not known", fix
                )
    return "a node reports itself which NPUs it has, and how they are split"


DIALECT = Dialect(
    name="ascend",
    devices="NPUs",
    resources=_resources,
    read=_read,
    choose=_choose,
    reserved=dict.fromkeys(
        (VNPU_MODE, *(key for npu in NPUS for key in (npu.use_ids, npu.nouse_ids))),
        "selects NPUs in a pod that asks for {devices}",
    ),
    variant=_variant,
    render=_render,
    recover={
        key: hami.segments_of(npu.family)
        for npu in NPUS
        for key in (npu.allocated, npu.to_allocate)
    },
    sections={"vnpus": _check_section, "nodes": _check_nodes},
)
