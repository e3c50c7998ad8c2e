"""Read the devices that plugins of HAMi and Volcano offer on a node, and those marked as unhealthy.

Invariant: a registration that cannot be read has no devices and a problem, so no device is offered
by mistake."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from apportion.core.workloads.dialects.inventory import NodeFacts, Unread, readable
from apportion.core.workloads.dialects.listing import DIALECTS
from apportion_schemas import Device, Plugin
from apportion_schemas.quantities import COUNT_MAX, TEXT_MAX

UNHEALTHY_IDS: Final = "volcano.sh/gpu-unhealthy-ids"
_REGISTERED: Final = re.compile(r"(hami\.io|volcano\.sh)/node-(register-(.+)|(.+)-register)")
_DIGITS_MAX: Final = 3
# annotations and resources of a node; one is present wherever a plugin registers devices
INVENTORIES: Final = tuple(each.inventory for each in DIALECTS if each.inventory)
MARKS: Final = frozenset(mark for each in INVENTORIES for mark in each.marks)
# as in the JSON of a node: only if one is in its text, `registration` can find anything
SIGNS: Final = (
    b"register",
    *(f'"{mark}"'.encode() for mark in sorted(MARKS) if "register" not in mark),
)
PLUGINS: Final[tuple[Plugin, ...]] = ("hami", "volcano", "vendor")


def unhealthy_indexes(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the indexes of devices that the node's annotations mark as unhealthy, as in `1,3`."""
    words = (word.strip() for word in annotations.get(UNHEALTHY_IDS, "").split(","))
    numbers = (int(w) for w in words if w.isascii() and w.isdecimal() and len(w) <= _DIGITS_MAX)
    return tuple(sorted({number for number in numbers if number < COUNT_MAX}))


def unsupported(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that register devices that Apportion does not support, with the word
    that the names of their resources begin with."""
    return {
        name: match[3] or match[4]
        for name, value in annotations.items()
        if name not in MARKS and (match := _REGISTERED.fullmatch(name)) and readable(value)
    }


class Registration(NamedTuple):
    """What another system's device plugins registered on a node; see `DevicesRegistered`."""

    plugin: Plugin = ""
    devices: tuple[Device, ...] = ()
    problem: str = ""


def registration(node: NodeFacts) -> Registration:
    """Return the devices that plugins other than our agent offer on a node.

    If HAMi's plugins register devices, those of Volcano's plugins are ignored. Devices of a
    vendor's own plugin are added if HAMi's or Volcano's devices are of other families."""
    devices: defaultdict[Plugin, list[Device]] = defaultdict(list)
    problems: defaultdict[Plugin, list[str]] = defaultdict(list)
    for each in INVENTORIES:
        try:
            devices[each.plugin] += tuple(each.read(node))
        except Unread as error:
            problems[each.plugin].append(str(error))
    for name in unsupported(node.annotations):
        plugin: Plugin = "hami" if name.startswith("hami.io/") else "volcano"
        problems[plugin].append(f"{name}: these devices are not supported")
    for found in (devices, problems):
        for plugin in PLUGINS:
            if found[plugin]:
                problem = "; ".join(each for name in PLUGINS for each in problems[name])[:TEXT_MAX]
                families = {each.family for each in devices[plugin]}
                more = (each for each in devices["vendor"] if each.family not in families)
                every = (*devices[plugin], *more)
                if len(every) > COUNT_MAX or len({each.id for each in every}) != len(every):
                    registered = f"{len(every)} devices are registered"
                    why = f"{registered}; at most {COUNT_MAX} with distinct ids can be"
                    return Registration(plugin, (), why)
                return Registration(plugin, every, problem)
    return Registration()
