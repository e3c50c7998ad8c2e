"""What HAMi's and Volcano's files say beyond our keys: taken out of a document, each with a reason.

Source: `device-config.yaml` of HAMi's chart (templates/scheduler/device-configmap.yaml), and the
file of Volcano's devices (pkg/scheduler/api/devices/config). Such a file is taken whole.

Invariant: what is taken out says what is so here anyhow, or is about something that nobody here
does for any value. Anything else is refused by its key, with what to do instead.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from apportion.core.configuration.errors import ConfigurationError
from apportion.core.devices.catalogue import FAMILIES, mig_profiles
from apportion.core.workloads.dialects import ascend, cambricon
from apportion.core.workloads.dialects.nvidia import FAMILY as NVIDIA
from apportion.core.workloads.document import below, shown


class Key(NamedTuple):
    """A key of theirs: why it is nothing here, for which values, and what to do about others."""

    why: str
    nothing: tuple[object, ...] = ()
    fix: str = ""


class Passed(NamedTuple):
    """What was taken out of a document, and why."""

    path: str
    why: str


_MEMORY: Final = Key("the driver tells the memory of every card", (0,), "remove it")
_NUMA: Final = Key(
    "off is how it is here", (False,), "remove it, and annotate pods with nvidia.com/numa-bind"
)
_LOG: Final = Key("it is a log level of the container's library")
_RUNTIME: Final = Key(
    "no runtime class is what pods get here",
    ("",),
    "remove it, and set runtimeClassName in the pod",
)
_NVIDIA: Final = {
    "passDeviceSpecs": Key("it is about how a device plugin hands out a card"),
    "libCudaLogLevel": _LOG,
    "gpuCorePolicy": Key(
        "containers say it themselves here",
        ("default", "disable"),
        "write default or disable, and set GPU_CORE_UTILIZATION_POLICY in the container",
    ),
    "runtimeClassName": _RUNTIME,
    "preConfiguredDeviceMemory": _MEMORY,
    "enableNumaTopology": _NUMA,
}
_NODE: Final = {
    "preconfigureddevicememory": _MEMORY,
    "enablenumatopology": _NUMA,
    "libcudaloglevel": _LOG,
    "enablegetpreferredallocation": Key("the scheduler chooses the devices"),
}
_GEOMETRIES: Final = "knownMigGeometries"
_ALLOWLIST: Final = "migProfileAllowlist"
_UNKNOWN: Final = (
    "hygon", "metax", "enflame", "mthreads", "iluvatar", "iluvatars", "kunlun", "awsneuron", "amd",
    "vastai", "biren",
)  # fmt: skip
_NPU_NODE: Final = {
    "name": Key("it says which node the entry is about"),
    "hami-vnpu-core": Key(
        "off is how it is here",
        (False,),
        "remove it: which NPUs are split softly, their agent says",
    ),
    "vDeviceCount": Key("a node reports itself how many pods share an NPU"),
    "filterDevices": Key(
        "it leaves out no device",
        ({}, {"uuid": [], "index": []}, {"uuid": []}, {"index": []}, None),
        "write it in nodeconfig: {name: NODE, filterdevices: {index: [0]}}",
    ),
}
"""`nodes` of the file of HAMi's plugin for NPUs, the ConfigMap `hami-device-node-config`."""


def without_foreign(document: dict[str, Any]) -> tuple[dict[str, Any], tuple[Passed, ...]]:
    """The document without what is theirs alone, and what that was.

    Raises:
        ConfigurationError: a key asks for something that is not done here.
    """
    left, passed = dict(document), list[Passed]()
    nvidia = document.get("nvidia")
    if isinstance(nvidia, dict):
        if nvidia.get("gpuCorePolicy") == "disable":
            nvidia = {"disableCoreLimit": True} | nvidia
        left["nvidia"] = _taken(nvidia, _NVIDIA, "nvidia", passed)
        _take_allowlist(left["nvidia"], passed)
        _take_cores(left["nvidia"], passed)
    nodes = document.get("nodeconfig")
    if isinstance(nodes, list):
        left["nodeconfig"] = [
            _taken(node, _NODE, f"nodeconfig[{at}]", passed) if isinstance(node, dict) else node
            for at, node in enumerate(nodes)
        ]
    for section, check in _SECTIONS.items():
        if section in left:
            passed.append(Passed(section, check(left.pop(section), section)))
    return left, tuple(passed)


def _taken(
    part: dict[str, Any], keys: dict[str, Key], path: str, passed: list[Passed]
) -> dict[str, Any]:
    """The part without these keys."""
    for name, key in keys.items():
        if name not in part:
            continue
        _expect(part[name], key.nothing, below(path, name), key.fix)
        passed.append(Passed(below(path, name), key.why))
    return {name: value for name, value in part.items() if name not in keys}


def _expect(value: object, nothing: tuple[object, ...], path: str, fix: str) -> None:
    """Refuse a value that is none of these, if there are any; `true` is no 1."""
    if nothing and not any(value == each and type(value) is type(each) for each in nothing):
        raise ConfigurationError(path, value, "is not obeyed here", fix)


def _take_allowlist(nvidia: dict[str, Any], passed: list[Passed]) -> None:
    """HAMi's `migProfileAllowlist`, where it allows all profiles that cards are cut into here."""
    entries = nvidia.pop(_ALLOWLIST, None)
    if entries is None:
        return
    path = f"nvidia.{_ALLOWLIST}"
    for at, entry in enumerate(_list(entries, path)):
        here = f"{path}[{at}]"
        allowed = {_slices(name) for name in _texts(entry, "profiles", here)}
        for model in _texts(entry, "models", here):
            for profile in mig_profiles(NVIDIA, model):
                if not profile.by_name and _slices(profile.name) not in allowed:
                    raise ConfigurationError(
                        f"{here}.profiles",
                        entry["profiles"],
                        f"leaves out {profile.name} of {model}, which cards are cut into here",
                        "remove the list, and say how cards are cut with knownMigGeometries",
                    )
    passed.append(Passed(path, "it allows all that cards are cut into here"))


def _take_cores(nvidia: dict[str, Any], passed: list[Passed]) -> None:
    """The `core` that HAMi 2.9 gives with each instance of `knownMigGeometries`."""
    listed = nvidia.get(_GEOMETRIES)
    left = _without_core(listed)
    if left != listed:
        nvidia[_GEOMETRIES] = left
        passed.append(Passed(f"nvidia.{_GEOMETRIES}", "core: an instance has its profile's cores"))


def _without_core(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_core(each) for each in part]
    if isinstance(part, dict):
        return {key: _without_core(each) for key, each in part.items() if key != "core"}
    return part


def _slices(profile: str) -> str:
    """The compute of a profile: the systems round its memory differently (`7g.79gb`, `7g.80gb`)."""
    return profile.partition(".")[0]


def _check_cambricon(section: object, path: str) -> str:
    names = {
        "resourceCountName": cambricon.COUNT,
        "resourceMemoryName": cambricon.MEMORY,
        "resourceCoreName": cambricon.CORES,
    }
    _same(_dict(section, path), names, path)
    return "these names are fixed here"


def _check_vnpus(section: object, path: str) -> str:
    """HAMi's section is an object with `configs`; older files have the list itself."""
    if isinstance(section, dict):
        soft = section.get("hamiVnpuCore", False)
        at = below(path, "hamiVnpuCore")
        _expect(soft, (False,), at, "remove it: which NPUs are split softly, their agent says")
        section, path = section.get("configs", []), f"{path}.configs"
    known = {npu.word: npu for npu in ascend.NPUS}
    for position, each in enumerate(_list(section, path)):
        here = f"{path}[{position}]"
        chip = _dict(each, here)
        by_chip = known.get(f"Ascend{chip.get('chipName')}")
        word = chip.get("commonWord", by_chip.word if by_chip else None)
        npu = known.get(str(word))
        if npu is not None:
            _check_npu(chip, npu, here)
        elif by_chip is not None:
            fix = f"write {by_chip.word}, and {by_chip.count} in pods; or remove this entry"
            raise ConfigurationError(f"{here}.commonWord", word, "is not obeyed here", fix)
    return "names, templates and pairs of dies are those of the catalogue"


def _check_npu(chip: dict[str, Any], npu: ascend.Npu, path: str) -> None:
    names = {
        "resourceName": npu.count,
        "resourceMemoryName": npu.memory,
        "resourceCoreName": npu.cores,
        "memoryFactor": 1,
        "overwriteEnv": False,
        "runtimeClassName": "",
        "superPod": npu.paired,
    }
    _same(chip, names, path)
    templates = [
        {"name": each.name, "memory": each.memory_mib, "aiCore": each.cores, "aiCPU": each.cpu}
        for each in FAMILIES[npu.family].templates
    ]
    listed = _list(chip.get("templates", templates), f"{path}.templates")
    written = [{"aiCPU": 0} | _dict(each, f"{path}.templates") for each in listed]
    if sorted(map(_sorted, written)) != sorted(map(_sorted, templates)):
        raise ConfigurationError(
            f"{path}.templates", _templates(written),
            f"are not the templates of {npu.word}, {_templates(templates)}",
            "remove templates: the catalogue has them",
        )  # fmt: skip


def _templates(listed: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each.get('name')} ({each.get('memory')} MiB)" for each in listed)


def _sorted(template: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((str(key), str(value)) for key, value in template.items())


def _same(section: dict[str, Any], expected: dict[str, Any], path: str) -> None:
    for key, value in expected.items():
        fix = f"remove it; here it is {shown(value)}"
        _expect(section.get(key, value), (value,), below(path, key), fix)


def _check_npu_nodes(section: object, path: str) -> str:
    for position, each in enumerate(_list(section, path)):
        here = f"{path}[{position}]"
        left = _taken(_dict(each, here), _NPU_NODE, here, [])
        for key, value in left.items():
            fix = "write the keys of a node in nodeconfig"
            raise ConfigurationError(
                below(here, key), value, "is under a key that is not known", fix
            )
    return "a node reports itself which NPUs it has, and how they are split"


def _check_unknown(_section: object, _path: str) -> str:
    return "such devices are not known here, and pods that ask for one get none"


def _dict(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(path, value, "is not an object", "write it as in the chart")
    return value


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigurationError(path, value, "is not a list", "write it as in the chart")
    return value


def _texts(entry: object, key: str, path: str) -> Iterator[str]:
    for text in _list(_dict(entry, path).get(key), f"{path}.{key}"):
        if not isinstance(text, str):
            raise ConfigurationError(f"{path}.{key}", text, "is not text", "write names")
        yield text


_SECTIONS: Final[dict[str, Callable[[object, str], str]]] = {
    "cambricon": _check_cambricon,
    "vnpus": _check_vnpus,
    "nodes": _check_npu_nodes,
    **dict.fromkeys(_UNKNOWN, _check_unknown),
}
