"""Nodes on which the device plugins of HAMi's vendors have registered devices.

The annotations and resources are as the sources of the plugins write them."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.inventory import NodeFacts


def vendor_node(
    notes: Mapping[str, str], offered: Mapping[str, int], *, labels: Mapping[str, str] = {}
) -> NodeFacts:
    """Return the facts of node `n1` with these annotations and allocatable resources."""
    return NodeFacts("n1", dict(notes), dict(labels), dict(offered), DialectConfig())


def _json(key: str, count: int, **fields: object) -> dict[str, str]:
    common = {"count": 10, "devcore": 100, "health": True}
    entries = [common | fields | {"id": f"{key[-8:]}-{at}", "index": at} for at in range(count)]
    return {key: json.dumps(entries)}


class Vendor(NamedTuple):
    """A node with at least four devices of a vendor, and limits that containers may have there."""

    node: NodeFacts
    limits: tuple[dict[str, object], ...]


def _amounts(count: str, memory: str, cores: str) -> tuple[dict[str, object], ...]:
    """Return limits of the usual three resources."""
    return (
        {count: 1}, {count: 2}, {count: 1, memory: 4}, {count: 2, memory: 8, cores: 30},
        {count: 1, cores: 100}, {count: 1, memory: 4, cores: 0}, {count: 4, cores: 1},
    )  # fmt: skip


HYGON = "".join(f"DCU-{at},4,65536,100,DCU-K100_AI,0,true,{at},hami-core:" for at in range(4))
VENDORS = {
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
    "hygon": Vendor(
        vendor_node({"hami.io/node-dcu-register": HYGON}, {"hygon.com/dcunum": 16}),
        _amounts("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"),
    ),
}
"""By dialect."""
