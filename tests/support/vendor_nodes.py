"""Nodes on which the device plugins of HAMi's vendors have registered devices.

Annotations and resources have the values that the source code of the plugins writes."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.inventory import NodeFacts
from apportion_schemas import DEVICE_PLUGIN


def vendor_node(
    notes: Mapping[str, str], offered: Mapping[str, int], *, labels: Mapping[str, str] = {}
) -> NodeFacts:
    """Return the facts of node `n1` with these annotations and allocatable resources."""
    return NodeFacts("n1", dict(notes), dict(labels), dict(offered), DialectConfig(), dict(offered))


def _json(key: str, devices: int, **fields: object) -> dict[str, str]:
    common = {"count": 10, "devcore": 100, "health": True}
    entries = [
        common | fields | {"id": f"{key.removeprefix('hami.io/node-')}-{at}", "index": at}
        for at in range(devices)
    ]
    return {key: json.dumps(entries)}


ALLOWED = {DEVICE_PLUGIN: "vendor"}


class Vendor(NamedTuple):
    """A node with at least four devices of a vendor, and limits that containers may have there."""

    node: NodeFacts
    limits: tuple[dict[str, object], ...]
    containers: int = 3  # the most that a pod may have


def _amounts(count: str, memory: str, cores: str) -> tuple[dict[str, object], ...]:
    """Return container limits that combine three resources: devices, memory and cores."""
    return (
        {count: 1}, {count: 2}, {count: 1, memory: 4}, {count: 2, memory: 8, cores: 30},
        {count: 1, cores: 100}, {count: 1, memory: 4, cores: 0}, {count: 4, cores: 1},
    )  # fmt: skip


def _numbers(count: str, *numbers: int) -> tuple[dict[str, object], ...]:
    """Return container limits, each for one of these numbers of whole devices."""
    return tuple({count: number} for number in numbers)


def _counted(count: str) -> Vendor:
    """Return a node of a plugin that only counts whole devices."""
    return Vendor(vendor_node({}, {count: 8}), _numbers(count, 1, 2, 4))


METAX_CARDS = [
    {
        "uuid": f"GPU-mx-{at}",
        "bdf": f"0000:4{at}:00.0",
        "model": "MXC500",
        "totalDevCount": 16,
        "totalCompute": 100,
        "totalVRam": 65536,
        "availableDevCount": 16,
        "availableCompute": 100,
        "availableVRam": 65536,
        "numa": at // 2,
        "healthy": True,
        "qosPolicy": "best-effort",
        "linkZone": 1,
    }
    for at in range(4)
]
DRS_CAPACITY = {
    "devices": [{"index": str(at), "minor": str(at + 4), "capacity": 6} for at in range(4)],
    "profiles": {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"},
}


def _iluvatar(word: str) -> Vendor:
    """Return a node of HAMi's plugin for this chip of Iluvatar."""
    devices = (f"GPU-{word}-{at},10,65536,100,{word},0,true,{at},hami-core:" for at in range(4))
    count = f"iluvatar.ai/{word}-vgpu"
    amounts = _amounts(count, f"iluvatar.ai/{word}.vMem", f"iluvatar.ai/{word}.vCore")
    return Vendor(
        vendor_node({f"hami.io/node-{word}-register": "".join(devices)}, {count: 40}),
        (
            *(each for each in amounts if each[count] == 1),
            {count: 2},
            {count: 4, f"iluvatar.ai/{word}.vMem": 8},
        ),
    )


def _mthreads(cores: int) -> dict[str, object]:
    """Return limits of a share of a Moore Threads GPU with this many of its 16 cores."""
    names = ("mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core")
    return dict(zip(names, (1, 2, cores), strict=True))


HYGON = "".join(f"DCU-{at},4,65536,100,DCU-K100_AI,0,true,{at},hami-core:" for at in range(4))
AMD = _json(
    "hami.io/node-amd-register",
    4,
    devmem=196592,
    devcore=304,
    type="AMD Instinct MI300X",
    custominfo={"pciBDF": "0000:05:00.0"},
)
VENDORS = {
    "amd": Vendor(
        vendor_node(AMD, {"amd.com/gpu": 40}),
        (
            {"amd.com/gpu": 1, "amd.com/gpumem": 65536},
            {"amd.com/gpu": 1, "amd.com/gpumem": 8, "amd.com/gpucores": 1},
            {"amd.com/gpu": 1, "amd.com/gpumem": 8, "amd.com/gpucores": 33},
            {"amd.com/gpu": 1, "amd.com/gpucores": 50},
            {"amd.com/gpu": 2, "amd.com/gpumem": 8, "amd.com/gpucores": 7},
            {"amd.com/gpu": 4, "amd.com/gpumem": 8, "amd.com/gpucores": 100},
        ),
    ),
    "amd-gpu": Vendor(
        vendor_node({}, {"amd.com/gpu": 8}),
        ({"amd.com/gpu": 1}, {"amd.com/gpu": 2}, {"amd.com/gpu": 5}),
    ),
    "ascend": Vendor(
        vendor_node(
            _json("hami.io/node-register-Ascend310P", 4, devmem=21527, devcore=8),
            {"huawei.com/Ascend310P": 28},
        ),
        (
            {"huawei.com/Ascend310P": 1},
            {"huawei.com/Ascend310P": 3},
            {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 3000},
            {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 6144},
        ),
    ),
    "cambricon": Vendor(
        vendor_node(
            {}, {"cambricon.com/mlu.smlu.vcore": 400, "cambricon.com/mlu.smlu.vmemory": 768}
        ),
        _amounts(
            "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
        ),
    ),
    "biren": Vendor(
        vendor_node(
            _json(
                "hami.io/node-biren-register",
                4,
                count=1,
                devmem=65024,
                devcore=0,
                type="Biren106B",
                mode="",
                numa=0,
            ),
            {"birentech.com/gpu": 4},
        ),
        _numbers("birentech.com/gpu", 1, 2, 4),
    ),
    "vastai": Vendor(
        vendor_node(
            _json(
                "hami.io/node-va-register",
                4,
                count=1,
                devcore=0,
                type="VA16",
                custominfo={"DeviceStrategy": "die", "AIC": "AIC-0"},
            ),
            {"vastaitech.com/va": 4},
        ),
        _numbers("vastaitech.com/va", 1, 2, 4),
    ),
    "kunlun": Vendor(
        vendor_node({}, {"kunlunxin.com/xpu": 8}, labels=ALLOWED),
        _numbers("kunlunxin.com/xpu", 1, 2, 4, 8),
    ),
    "kunlun-vxpu": Vendor(
        vendor_node(
            _json("hami.io/node-register-xpu", 8, devmem=98304, type="XPU"),
            {"kunlunxin.com/vxpu": 32},
        ),
        _numbers("kunlunxin.com/vxpu", 1, 2, 4)
        + tuple(
            {"kunlunxin.com/vxpu": number, "kunlunxin.com/vxpu-memory": mib}
            for number in (1, 2, 4)
            for mib in (0, 24576, 30000, 50000)
        ),
    ),
    "neuron": Vendor(
        vendor_node(
            {},
            {"aws.amazon.com/neuron": 16, "aws.amazon.com/neuroncore": 32},
            labels={"node.kubernetes.io/instance-type": "trn1.32xlarge"} | ALLOWED,
        ),
        _numbers("aws.amazon.com/neuron", 1, 4, 8, 16)
        + _numbers("aws.amazon.com/neuroncore", 1, 1, 2, 8, 16),
    ),
    "enflame-drs": Vendor(
        vendor_node(
            {"enflame.com/gcu-drs-capacity": json.dumps(DRS_CAPACITY)}, {"enflame.com/drs-gcu": 24}
        ),
        tuple({"enflame.com/drs-gcu": size} for size in (1, 2, 3, 6)),
    ),
    "enflame-gcu": _counted("enflame.com/gcu"),
    "enflame-vgcu": Vendor(
        vendor_node({}, {"enflame.com/gcu-count": 4, "enflame.com/shared-gcu": 16}),
        (
            {"enflame.com/vgcu": 1, "enflame.com/shared-gcu": 4},
            {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 25, "enflame.com/shared-gcu": 1},
            {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 60, "enflame.com/shared-gcu": 3},
            {"enflame.com/vgcu": 2, "enflame.com/shared-gcu": 8},
        ),
    ),
    "hygon": Vendor(
        vendor_node({"hami.io/node-dcu-register": HYGON}, {"hygon.com/dcunum": 16}),
        _amounts("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    ),
    "metax-gpu": _counted("metax-tech.com/gpu"),
    "metax-sgpu": Vendor(
        vendor_node(
            {"metax-tech.com/node-gpu-devices": json.dumps(METAX_CARDS)},
            {"metax-tech.com/sgpu": 64},
        ),
        (
            *_amounts("metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"),
            {
                "metax-tech.com/sgpu": 1,
                "metax-tech.com/vmemory": "2048Mi",
                "metax-tech.com/vcore": 5,
            },
        ),
    ),
    "iluvatar": Vendor(
        vendor_node({}, {"iluvatar.ai/vcuda-core": 400, "iluvatar.ai/vcuda-memory": 512}),
        (
            {"iluvatar.ai/vgpu": 1},
            {"iluvatar.ai/vgpu": 2, "iluvatar.ai/vcuda-core": 200},
            {"iluvatar.ai/vgpu": 1, "iluvatar.ai/vcuda-memory": 64},
            {"iluvatar.ai/vgpu": 1, "iluvatar.ai/vcuda-memory": 8, "iluvatar.ai/vcuda-core": 30},
        ),
    ),
    "mthreads": Vendor(
        vendor_node({}, {"mthreads.com/sgpu-core": 64, "mthreads.com/sgpu-memory": 384}),
        (
            {"mthreads.com/vgpu": 1},
            {"mthreads.com/vgpu": 3},
            {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 32},
            *map(_mthreads, range(17)),
        ),
        containers=1,
    ),
    **{
        f"iluvatar-{word.lower()}": _iluvatar(word)
        for word in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
    },
}
"""The vendors, by the name of their dialect."""
