"""The dialects of MetaX GPUs: whole ones (`metax-tech.com/gpu`), and shared ones, called sGPUs.

The rules are those of HAMi's MetaX devices. A container requests a number of `metax-tech.com/sgpu`,
and for each an amount of `vmemory` and a percentage of cores (`vcore`). Without cores it gets the
sGPU exclusively. `vmemory: 4` is 4 GiB, and `2048Mi` is in bytes, cut to whole MiB. HAMi reads
these amounts from limits alone. Only the sharing policy best-effort is supported. Pods with another
policy, or with a class, are refused. A card that pods of another policy use is unhealthy, because
pods of two policies cannot share a card."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from apportion.core.workloads.dialects.amounts import Amount, Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Notes,
    PlacedPod,
    Selecting,
    flag,
    of_family,
    one,
    selected,
)
from apportion.core.workloads.dialects.hami_device import HamiDevice, Names
from apportion.core.workloads.dialects.inventory import (
    Entry,
    Inventory,
    NodeFacts,
    decoded,
    devices_of,
    readable,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, Device, DeviceConstraints
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import MEMORY_MIB_MAX, WHOLE

UNIT_MIB = 1024  # of `vmemory` without a unit
GPU_MIB = 65536  # as HAMi assumes, because the plugin only counts whole GPUs
REGISTER = "metax-tech.com/node-gpu-devices"
ALLOCATED = "metax-tech.com/gpu-devices-allocated"
TIME = "metax-tech.com/predicate-time"
QOS = "metax-tech.com/sgpu-qos-policy"
BEST_EFFORT = "best-effort"
APP_CLASS = "metax-tech.com/sgpu-app-class"
TOPOLOGY = "metax-tech.com/sgpu-topology-aware"
GPU = HamiDevice(
    family="metax-gpu",
    devices="MetaX GPUs",
    names=Names("metax-tech.com/gpu"),
    word="metax-gpu",
    type="Metax-GPU",
)
SGPU = HamiDevice(
    family="metax-sgpu",
    devices="MetaX sGPUs",
    names=Names("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"),
    word="metax-sgpu",
    type="Metax-SGPU",
    selecting=Selecting(
        use_ids=("metax-tech.com/use-gpuuuid",), nouse_ids=("metax-tech.com/nouse-gpuuuid",)
    ),
    unit_mib=UNIT_MIB,
)
RESOURCES = of_family(SGPU.family, SGPU.names, unit_mib=UNIT_MIB, clamps=False)
_encode = msgspec.json.Encoder().encode


class _Card(Struct, frozen=True, rename="camel"):
    """A card as the plugin registers it. HAMi's JSON omits 0, false and empty text."""

    uuid: str
    model: str = ""
    total_dev_count: int = 0
    total_compute: int = 0
    total_v_ram: int = 0  # MiB
    available_dev_count: int = 0
    numa: int = 0
    healthy: bool = False
    qos_policy: str = ""


_decode = from_outside(msgspec.json.Decoder(list[_Card]).decode)


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, memory, cores = (amounts.get(name) for name in SGPU.names)
    for name, amount in zip(SGPU.names, (count, memory, cores), strict=True):
        if amount and name not in container.limits:
            fix = "write it in resources.limits"
            raise amount.refusal("is a request without a limit, which HAMi does not read", fix)
    if count is None or count.value == 0:
        return None
    return container.ask(
        SGPU.family,
        count=count.devices(),
        memory_mib=_memory_mib(memory) if memory else None,
        cores=cores.cores_percent(clamp=False) if cores else WHOLE,
    )


def _memory_mib(memory: Amount) -> int | None:
    if not (isinstance(memory.written, str) and any(map(str.isalpha, memory.written))):
        return memory.memory_mib(UNIT_MIB)
    mib = memory.value >> 20
    if memory.value and not mib:
        raise memory.refusal("is less than 1 MiB", "write GiB without a unit, or 1Mi or more")
    if mib > MEMORY_MIB_MAX:
        fix = f"write at most {MEMORY_MIB_MAX}Mi"
        raise memory.refusal("is more memory than any device has", fix)
    return mib or None


def _choose(notes: Notes) -> DeviceConstraints:
    if (value := notes.values.get(QOS, "").strip() or BEST_EFFORT) != BEST_EFFORT:
        known = value in ("fixed-share", "burst-share")
        problem = "is not supported" if known else "is not a policy of sGPUs"
        raise notes.refusal(QOS, problem, f'write "{BEST_EFFORT}", or remove it')
    if notes.values.get(APP_CLASS, "").strip():
        fix = "remove it; online and offline pods need HAMi's scheduler"
        raise notes.refusal(APP_CLASS, "is not supported", fix)
    if one(notes, (TOPOLOGY,), flag):
        raise notes.refusal(TOPOLOGY, "is not supported", 'write "false", or remove it')
    return selected(notes, SGPU.selecting)


def _render(it: PlacedPod) -> dict[str, str]:
    given = [
        [
            # 0 percent of the cores is left out, as in HAMi's JSON
            {"uuid": s.device, **({"compute": s.cores} if s.cores else {}), "vRam": s.memory_mib}
            for s in it.shares(name)
            if it.devices[s.device].family == SGPU.family
        ]
        for name in (*it.init_containers, *it.containers)
    ]
    return SGPU.allocated(it) | {
        ALLOCATED: _encode(given).decode(),
        TIME: str(it.now_ns),
        QOS: BEST_EFFORT,  # HAMi's webhook writes it
    }


def _shared(node: NodeFacts) -> Iterator[Device]:
    if not readable(text := node.text(REGISTER)):
        return
    entries = [
        Entry(
            card.uuid, at, card.total_dev_count, card.total_v_ram, card.total_compute,
            card.model or SGPU.type, card.numa, health=card.healthy, custominfo=_held(card),
        )
        for at, card in enumerate(decoded(_decode, REGISTER, text))
    ]  # fmt: skip
    node.runs(SGPU.names.number)
    yield from devices_of(entries, SGPU.family, lambda each: each.custominfo)


def _held(card: _Card) -> dict[str, Any]:
    """Mark the card as unhealthy if pods of another policy use it, as HAMi's `Fit` does."""
    idle = 0 < card.total_dev_count <= card.available_dev_count
    if not card.healthy or idle or card.qos_policy in ("", BEST_EFFORT):
        return {}
    return {"healthy": False, "health_reason": f"pods with {QOS}: {card.qos_policy} use it"}


DIALECTS = (
    GPU.dialect(
        "metax-gpu",
        inventory=GPU.in_numbers(
            "metax", GPU_MIB, shared=lambda node: readable(node.text(REGISTER))
        ),
        locks={},
    ),
    SGPU.dialect(
        "metax-sgpu",
        resources=lambda _: RESOURCES,
        read=_read,
        choose=_choose,
        reserved={
            **dict.fromkeys(
                (*SGPU.selecting.use_ids, *SGPU.selecting.nouse_ids),
                "selects MetaX sGPUs, but the pod requests {devices}",
            ),
            **dict.fromkeys(
                (QOS, APP_CLASS, TOPOLOGY), "applies to MetaX sGPUs, but the pod requests {devices}"
            ),
        },
        render=_render,
        inventory=Inventory("hami", (REGISTER,), _shared),
        writes=(ALLOCATED, TIME),
        sections={
            "metax": partial(
                SGPU.check_section,
                {
                    "resourceCountName": GPU.names.number,
                    "resourceVCountName": SGPU.names.number,
                    "resourceVMemoryName": SGPU.names.memory,
                    "resourceVCoreName": SGPU.names.cores,
                    "sgpuTopologyAware": False,
                },
            )
        },
    ),
)
