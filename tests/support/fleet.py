"""Build devices and nodes, so that a test states only the fields that matter to it.

The default device is a real GPU: an 80 GB A100 with ten slots, shared through HAMi-core."""

from typing import Any

from apportion_schemas import Device, DevicesRegistered, Host, NodeObserved, NodeReported, Plugin

A100_80 = "NVIDIA A100-SXM4-80GB"
A100_40 = "NVIDIA A100-SXM4-40GB"
A30 = "NVIDIA A30"
V100 = "Tesla V100-SXM2-32GB"
T4 = "Tesla T4"
MEMORY_MIB = {A100_80: 81920, A100_40: 40960, A30: 24576, V100: 32768, T4: 15360}
ROOMY = Host(cpu_milli=256_000, memory_mib=2_000_000, pods=250)


def gpu(name: str = "g0", **fields: Any) -> Device:
    """Return a GPU. The index defaults to the number at the end of its name, as in `g3`."""
    model = fields.setdefault("model", A100_80)
    memory_mib = fields.setdefault("memory_mib", MEMORY_MIB.get(model, 81920))
    digits = name[len(name.rstrip("0123456789")) :]
    fields.setdefault("index", int(digits or 0) % 64)
    fields.setdefault("physical_memory_mib", memory_mib)
    fields.setdefault("family", "nvidia")
    return Device(id=name, **fields)


def npu(name: str = "npu0", *, family: str = "ascend310p", **fields: Any) -> Device:
    """Return an Ascend device that is split by templates; a 310P3 by default."""
    fields.setdefault("model", "Ascend310P3")
    fields.setdefault("memory_mib", 21527)
    fields.setdefault("cores", 8)
    return gpu(name, family=family, mode="vnpu", slots=7, **fields)


def node(name: str = "n1", *devices: Device, host: Host = ROOMY) -> NodeReported:
    """Return the report in which an agent describes a node with these devices."""
    return NodeReported(node=name, devices=devices, host=host)


def rack(name: str = "n1", count: int = 8, **fields: Any) -> NodeReported:
    """Return an agent's report of a node with `count` equal GPUs. Their ids are `<node>-g0` and so
    on."""
    return node(name, *(gpu(f"{name}-g{index}", **fields) for index in range(count)))


def registered(name: str = "n1", plugin: Plugin = "hami", **fields: Any) -> DevicesRegistered:
    """Return a watcher's event about devices that another system's plugin registered on a node."""
    return DevicesRegistered(node=name, plugin=plugin, **fields)


def observed(name: str = "n1", **fields: Any) -> NodeObserved:
    """Return a watcher's event about a node, which by default is ready and has ample resources."""
    defaults = {"ready": True, "cpu_milli": 256_000, "memory_mib": 2_000_000, "pods": 250}
    return NodeObserved(node=name, **(defaults | fields))
