"""Ascend: `huawei.com/Ascend310P` and its sisters, each with a `-memory`.

Memory is cut by templates, which the device catalogue knows: a vNPU is the smallest template that
holds the amount, else the whole device. Several devices at once are whole ones, and the dies of a
910C are handed out in pairs (HAMi's Ascend device). The names are also taken in lower case. Its
device plugin takes a placement from the pod's annotations, family by family.
"""

import msgspec

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.dialects import hami, measures
from apportion.core.dialects.container import Amount, Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.errors import ManifestError
from apportion.core.dialects.names import DialectConfig, NpuNames
from apportion.core.dialects.placed_pod import PlacedPod, record
from apportion_schemas import Ask, Share
from apportion_schemas.quantities import WHOLE

NAME = "ascend"
MINDCLUSTER = "huawei.com/npu-core"
"""The MindCluster way to ask; claimed so that it is refused by name."""
_encode = msgspec.json.Encoder().encode


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured: every family is one dialect, because one plugin serves them."""
    claims = {MINDCLUSTER}
    for npu in config.ascend:
        for name in (npu.count, npu.memory, npu.cores):
            claims |= {name, name.lower()}

    def read(container: Container, amounts: Amounts) -> Ask | None:
        if mindcluster := amounts.get(MINDCLUSTER):
            raise mindcluster.refusal(
                "is not implemented yet", "ask by family, as in huawei.com/Ascend310P"
            )
        asks = [ask for npu in config.ascend if (ask := _read(container, amounts, npu))]
        if len(asks) > 1:
            raise ManifestError(
                f"{container.field}.resources",
                None,
                f"asks for {asks[0].family} and {asks[1].family} in one container",
                "keep one family per container",
            )
        return asks[0] if asks else None

    return (Dialect(NAME, frozenset(claims), read),)


def _read(container: Container, amounts: Amounts, npu: NpuNames) -> Ask | None:
    count, memory = _either(amounts, npu.count), _either(amounts, npu.memory)
    if cores := _either(amounts, npu.cores):
        raise cores.refusal(
            "is not implemented yet: AI cores come with the template that holds the memory",
            f"remove it, and ask by {npu.memory}",
        )
    memory_mib = measures.memory_mib(memory, 1) if memory else None
    if count is None and memory_mib is None:
        return None
    if count is not None and count.value == 0:
        if memory is None or memory_mib is None:
            return None
        raise memory.refusal(
            f"is asked of no device, since {npu.count} is 0",
            f"set {npu.count} to 1 or more, or leave both out",
        )
    whole = memory_mib is None or memory_mib > _largest_template_mib(npu)
    devices = measures.count(count) if count else 1
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


def _paired(devices: int, count: Amount | None) -> int:
    if devices == 1:
        return 2
    if count and devices % 2:
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


def _largest_template_mib(npu: NpuNames) -> int:
    family = FAMILIES.get(npu.family)
    return max((template.memory_mib for template in family.templates), default=0) if family else 0


def render(it: PlacedPod) -> dict[str, str]:
    """What HAMi's scheduler writes on a pod of this placement."""
    notes = hami.bound(it) | {"predicate-time": it.seconds}
    for npu in it.config.ascend:
        shares = [s for s in it.placed.shares if it.devices[s.device].family == npu.family]
        if not shares:
            continue
        segments = "".join(
            "".join(
                record(share.device, npu.word, share.memory_mib, 0)
                for share in it.shares(name)
                if it.devices[share.device].family == npu.family
            )
            + ";"
            for name in (*it.init_containers, *it.containers)
        )
        notes[f"hami.io/{npu.word}-devices-to-allocate"] = segments
        notes[f"hami.io/{npu.word}-devices-allocated"] = segments
        notes[f"huawei.com/{npu.word}"] = _encode([_cut(share) for share in shares]).decode()
    return notes


def _cut(share: Share) -> dict[str, str]:
    """A device, and the template that it is cut by where it is not taken whole."""
    return {"UUID": share.device, **({"temp": share.template} if share.template else {})}
