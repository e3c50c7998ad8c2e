"""The dialect of Ascend NPUs: `huawei.com/Ascend310P` and others, each with a `-memory`.

Names may be in lower case. A request for memory gets the smallest vNPU template with enough memory,
else the whole device. A request for several devices gets whole ones; the dies of a 910C come in
pairs (HAMi's Ascend device). With `huawei.com/vnpu-mode: hami-core`, a pod requests any amount of
memory and percent of cores, on softly split devices."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.workloads.dialects import chart, hami
from apportion.core.workloads.dialects.amounts import Amount, Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Dialect,
    Notes,
    PlacedPod,
    Resource,
    Resources,
    Selecting,
    of_family,
    record,
    segments,
    selected,
)
from apportion.core.workloads.dialects.inventory import (
    Inventory,
    NodeFacts,
    devices_of,
    entries_of,
    readable,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.document import ManifestError, below
from apportion_schemas import Ask, Device, DeviceConstraints, Mode, Share
from apportion_schemas.quantities import WHOLE

VNPU_MODE = "huawei.com/vnpu-mode"
SOFT_SPLIT = "hami-vnpu-core"  # annotation of a node
SOFT: Mode = "hami-core"
PAIR = 2
_NO_COUNT = "has no number of NPUs: Apportion allocates one, HAMi none"
# MindCluster's way to request NPUs; claimed so that it is refused by name
MINDCLUSTER = "huawei.com/npu-core"
_SOFTLY = f"remove it; the node's annotation {SOFT_SPLIT} says whether its NPUs are softly split"
_encode = msgspec.json.Encoder().encode


class Npu:
    """One family of NPUs, with the resource names and annotations that contain its `word`.

    The plugin removes the annotation `to_allocate` after reading it; `allocated` stays. If
    `paired`, two dies form a module and are allocated together."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.family = word.lower()
        self.count = f"huawei.com/{word}"
        self.memory = f"huawei.com/{word}-memory"
        self.cores = f"huawei.com/{word}-core"
        self.use_ids = f"hami.io/use-{word}-uuid"
        self.nouse_ids = f"hami.io/no-use-{word}-uuid"
        self.to_allocate = f"hami.io/{word}-devices-to-allocate"
        self.allocated = f"hami.io/{word}-devices-allocated"
        self.register = f"hami.io/node-register-{word}"
        self.paired = FAMILIES[self.family].module == PAIR


# one plugin serves them all, so they are one dialect
NPUS = tuple(
    Npu(word)
    for word in (
        *("Ascend910A", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"),
        *("Ascend910C", "Ascend310P"),
    )
)
RESOURCES: Resources = {MINDCLUSTER: Resource(tuple(npu.family for npu in NPUS))} | {
    spelling(name): resource
    for npu in NPUS
    for spelling in (str, str.lower)
    for name, resource in of_family(
        npu.family, (npu.count, npu.memory, npu.cores), clamps=False
    ).items()
}
_LARGEST_TEMPLATE_MIB = {
    npu.family: max((each.memory_mib for each in FAMILIES[npu.family].templates), default=0)
    for npu in NPUS
}


def _read(
    container: Container, amounts: Amounts, _: DialectConfig, *, soft: bool = False
) -> Ask | None:
    if mindcluster := amounts.get(MINDCLUSTER):
        fix = "request by family, such as huawei.com/Ascend310P"
        raise mindcluster.refusal("is not supported", fix)
    read = _read_part if soft else _read_template
    asks = [ask for npu in NPUS if (ask := read(container, amounts, npu))]
    if len(asks) > 1:
        problem = f"requests {asks[0].family} and {asks[1].family} in one container"
        fix = "request one family per container"
        raise ManifestError(f"{container.field}.resources", None, problem, fix)
    return asks[0] if asks else None


def _read_template(container: Container, amounts: Amounts, npu: Npu) -> Ask | None:
    count, memory = _either(amounts, npu.count), _either(amounts, npu.memory)
    if (cores := _either(amounts, npu.cores)) and cores.value:
        problem = "applies only to softly split NPUs; a template sets the cores"
        fix = f"remove it and set {npu.memory}, or annotate the pod with {VNPU_MODE}: {SOFT}"
        raise cores.refusal(problem, fix)
    deciding = count or memory
    if deciding is None or deciding.value == 0:
        return None
    # More than the largest template, up to the nominal memory, is the whole device (`trimMemory` of
    # HAMi and Volcano: up to `memoryCapacity`).
    memory_mib, largest = (
        memory.memory_mib(1) if memory else None,
        _LARGEST_TEMPLATE_MIB[npu.family],
    )
    if memory_mib is not None and largest < memory_mib <= FAMILIES[npu.family].printed_mib:
        memory_mib = None
    whole = memory_mib is None or memory_mib > largest
    devices = count.devices(npu.family) if count else 1
    if memory and devices > 1 and not whole:
        raise memory.refusal(
            f"is part of one device, but the {devices} requested devices must be whole",
            f"set {npu.count} to 1, or remove {npu.memory}",
        )
    return container.ask(
        npu.family,
        count=PAIR if npu.paired and whole and devices == 1 else devices,
        memory_mib=memory_mib,
        cores=WHOLE if memory_mib is None else 0,
    )


def _read_part(container: Container, amounts: Amounts, npu: Npu) -> Ask | None:
    count, memory, cores = (_either(amounts, n) for n in (npu.count, npu.memory, npu.cores))
    deciding = count or memory or cores
    if deciding is None or deciding.value == 0:
        return None
    devices = count.devices(npu.family) if count else 1
    return container.ask(
        npu.family,
        count=PAIR if npu.paired and devices == 1 else devices,
        memory_mib=memory.memory_mib(1) if memory else None,
        cores=cores.cores_percent(clamp=True) if cores else 0,
    )


def _either(amounts: Amounts, name: str) -> Amount | None:
    exact, lower = amounts.get(name), amounts.get(name.lower())
    if exact and lower:
        raise lower.refusal(f"cannot be combined with {name}", "keep one of the two spellings")
    return exact or lower


def _choose(notes: Notes, *, soft: bool = False) -> DeviceConstraints:
    found = [
        selected(notes, Selecting(use_ids=(npu.use_ids,), nouse_ids=(npu.nouse_ids,)))
        for npu in NPUS
    ]
    return DeviceConstraints(
        use_ids=tuple(dict.fromkeys(name for each in found for name in each.use_ids)),
        nouse_ids=tuple(dict.fromkeys(name for each in found for name in each.nouse_ids)),
        modes=(SOFT,) if soft else (),
    )


def _variant(dialect: Dialect, notes: Notes) -> Dialect:
    mode = notes.values.get(VNPU_MODE, "").strip()
    if mode not in ("", SOFT):
        problem = "is not a way to split an NPU"
        raise notes.refusal(VNPU_MODE, problem, f'write "{SOFT}", or remove it')
    if not mode:
        return dialect
    return structs.replace(
        dialect, read=partial(_read, soft=True), choose=partial(_choose, soft=True)
    )


def _record(it: PlacedPod, npu: Npu, share: Share) -> str:
    if it.devices[share.device].family != npu.family:
        return ""
    soft = it.pod.shape.devices.modes == (SOFT,)
    return record(share.device, npu.word, share.memory_mib, share.cores if soft else 0)


def _render(it: PlacedPod) -> dict[str, str]:
    notes = hami.bound(it) | {"predicate-time": it.seconds}
    soft = it.pod.shape.devices.modes == (SOFT,)
    for npu in NPUS:
        shares = [s for s in it.placed.shares if it.devices[s.device].family == npu.family]
        if not shares:
            continue
        text = segments(it, partial(_record, it, npu))
        notes[npu.to_allocate] = notes[npu.allocated] = text
        # The id, and the amounts if it is split softly, else its template; 0 or none is left out.
        given = []
        for share in shares:
            part: dict[str, int | str | None] = {"UUID": share.device, "temp": share.template}
            if soft:
                part = {"UUID": share.device, "memory": share.memory_mib, "core": share.cores}
            given.append({key: value for key, value in part.items() if value})
        notes[npu.count] = _encode(given).decode()
    return notes


def _registered(node: NodeFacts) -> Iterator[Device]:
    # The node's annotation precedes the chart's value (`hamiVnpuCore`).
    soft = node.annotations.get(SOFT_SPLIT) == "true"
    for npu in NPUS:
        if readable(text := node.text(npu.register)):
            entries = list(entries_of(npu.register, text))
            node.runs(npu.count)
            known = FAMILIES[npu.family]
            mode = SOFT if soft else "vnpu" if known.templates else "exclusive"
            yield from devices_of(entries, npu.family, mode=mode, model=npu.word)


def _check_section(section: object, path: str) -> str:
    if isinstance(section, dict):
        soft = section.get("hamiVnpuCore", False)
        at = below(path, "hamiVnpuCore")
        chart.expect(soft, (False,), at, _SOFTLY)
        section, path = section.get("configs", []), f"{path}.configs"  # older files have the list
    known = {npu.word: npu for npu in NPUS}
    for position, each in enumerate(chart.a_list(section, path)):
        here = f"{path}[{position}]"
        chip = chart.an_object(each, here)
        by_chip = known.get(f"Ascend{chip.get('chipName')}")
        word = chip.get("commonWord", by_chip.word if by_chip else None)
        npu = known.get(str(word))
        if npu is not None:
            _check_npu(chip, npu, here)
        else:
            fix = f"remove this entry, or use one of {', '.join(known)}"
            if by_chip is not None:
                fix = f"set it to {by_chip.word} and request {by_chip.count}, or remove this entry"
            raise ManifestError(f"{here}.commonWord", word, "is not supported", fix)
    return "names, templates and die pairs come from the device catalogue"


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
        problem = f"differs from the templates of {npu.word}: {_templates(templates)}"
        fix = "remove templates; the catalogue has them"
        raise ManifestError(f"{path}.templates", _templates(written), problem, fix)


def _templates(listed: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each.get('name')} ({each.get('memory')} MiB)" for each in listed)


def _sorted(template: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((str(key), str(value)) for key, value in template.items())


# keys that have no effect with these values, and the fix for other values
_NODE_KEYS: Mapping[str, tuple[tuple[object, ...], str]] = {
    "name": ((), ""),
    "hami-vnpu-core": ((False,), _SOFTLY),
    "vDeviceCount": ((), ""),  # a node itself reports how many pods share an NPU
    "filterDevices": (
        ({}, {"uuid": [], "index": []}, {"uuid": []}, {"index": []}, None),  # excludes none
        "set it in nodeconfig: {name: NODE, filterdevices: {index: [0]}}",
    ),
}


# `nodes` in the ConfigMap `hami-device-node-config` of HAMi's plugin for NPUs.
def _check_nodes(section: object, path: str) -> str:
    for position, each in enumerate(chart.a_list(section, path)):
        here = f"{path}[{position}]"
        node = chart.an_object(each, here)
        for key, (accepted, fix) in _NODE_KEYS.items():
            if key in node:
                chart.expect(node[key], accepted, below(here, key), fix)
        for key in node:
            if key not in _NODE_KEYS:
                fix = "set options of a node under `nodeconfig`"
                raise ManifestError(below(here, key), None, "is not a known key", fix)
    return "each node's agent or plugin reports its NPUs and how they are split"


DIALECT = Dialect(
    name="ascend",
    devices="NPUs",
    resources=lambda _: RESOURCES,
    read=_read,
    choose=_choose,
    reserved=dict.fromkeys(
        (VNPU_MODE, *(key for npu in NPUS for key in (npu.use_ids, npu.nouse_ids))),
        "selects NPUs, but the pod requests {devices}",
    ),
    lists={npu.use_ids: npu.family for npu in NPUS},
    variant=_variant,
    render=_render,
    recover={
        key: hami.segments_of(npu.family)
        for npu in NPUS
        for key in (npu.allocated, npu.to_allocate)
    },
    needs={
        name: (npu.count, f"{_NO_COUNT}; write {npu.count}: 1")
        for npu in NPUS
        for name in (npu.memory, npu.cores)
    },
    # The plugin (1.3 and newer) fails a container with another number of NPUs than its annotation.
    raises={npu.count: PAIR for npu in NPUS if npu.paired},
    plugin=lambda _: "hami",
    locks={"hami": hami.LOCK},
    inventory=Inventory("hami", tuple(npu.register for npu in NPUS), _registered),
    sections={"vnpus": _check_section, "nodes": _check_nodes},
)
