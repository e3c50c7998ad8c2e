"""Remove keys of HAMi's and Volcano's files that have no effect here, and record the reasons.

Sources: `device-config.yaml` of HAMi's chart (templates/scheduler/device-configmap.yaml), and
Volcano's device configuration (pkg/scheduler/api/devices/config). Invariant: a key is removed only
if Apportion always does what the key requests, or lacks the function that the key configures. The
same key with another value is rejected, with the fix."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from apportion.core.devices.catalogue import FAMILIES, model_of, normal
from apportion.core.workloads.dialects import chart
from apportion.core.workloads.dialects.listing import SECTIONS
from apportion.core.workloads.dialects.nvidia import FAMILY as NVIDIA
from apportion.core.workloads.document import ManifestError, below


class Key(NamedTuple):
    """How to treat a configuration key of HAMi or Volcano that Apportion does not use."""

    why: str  # why these values have no effect
    accepted: tuple[object, ...] = ()  # values without effect; empty: any value
    fix: str = ""  # what to write instead of any other value


class Passed(NamedTuple):
    """A key that was removed from the document, with the reason."""

    path: str
    why: str


_MEMORY: Final = Key("the driver reports the memory of every GPU", (0,), "remove it")
_NUMA: Final = Key(
    "NUMA binding is off by default",
    (False,),
    "remove it, and annotate pods with nvidia.com/numa-bind",
)
_LOG: Final = Key("it sets a log level of the library in containers")
_NVIDIA: Final = {
    "passDeviceSpecs": Key("it concerns how a device plugin passes GPUs to containers"),
    "libCudaLogLevel": _LOG,
    "gpuCorePolicy": Key(
        "it is set in each container",
        ("default", "disable"),
        "write default or disable, and set GPU_CORE_UTILIZATION_POLICY in the container",
    ),
    "runtimeClassName": Key(
        "no runtime class is set on pods", ("",), "remove it, and set runtimeClassName in the pod"
    ),
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


def without_foreign(document: dict[str, Any]) -> tuple[dict[str, Any], tuple[Passed, ...]]:
    """Return the document without keys that only HAMi or Volcano uses, and the removed keys."""
    left, passed = dict(document), list[Passed]()
    nvidia, nodes = document.get("nvidia"), document.get("nodeconfig")
    if isinstance(nvidia, dict):
        if nvidia.get("gpuCorePolicy") == "disable":
            nvidia = {"disableCoreLimit": True} | nvidia
            if nvidia["disableCoreLimit"] is True:  # the policy has this effect, so no note
                del nvidia["gpuCorePolicy"]
        left["nvidia"] = _taken(nvidia, _NVIDIA, "nvidia", passed)
        _take_allowlist(left["nvidia"], passed)
        # HAMi 2.9 adds a `core` to each instance.
        listed = left["nvidia"].get(_GEOMETRIES)
        without = _without_core(listed)
        if without != listed:
            left["nvidia"][_GEOMETRIES] = without
            why = "core: the profile of an instance sets its cores"
            passed.append(Passed(f"nvidia.{_GEOMETRIES}", why))
    if isinstance(nodes, list):
        left["nodeconfig"] = [
            _taken(node, _NODE, f"nodeconfig[{at}]", passed) if isinstance(node, dict) else node
            for at, node in enumerate(nodes)
        ]
    for section, check in SECTIONS.items():
        if section in left:
            passed.append(Passed(section, check(left.pop(section), section)))
    return left, tuple(passed)


def _taken(
    part: dict[str, Any], keys: dict[str, Key], path: str, passed: list[Passed]
) -> dict[str, Any]:
    for name, key in keys.items():
        if name not in part:
            continue
        chart.expect(part[name], key.accepted, below(path, name), key.fix)
        passed.append(Passed(below(path, name), key.why))
    return {name: value for name, value in part.items() if name not in keys}


def _take_allowlist(nvidia: dict[str, Any], passed: list[Passed]) -> None:
    entries = nvidia.pop(_ALLOWLIST, None)
    if entries is None:
        return
    path = f"nvidia.{_ALLOWLIST}"
    for at, entry in enumerate(chart.a_list(entries, path)):
        here = f"{path}[{at}]"
        allowed = {_slices(name) for name in _texts(entry, "profiles", here)}
        for model in _texts(entry, "models", here):
            # HAMi's plugin looks for the text in the model's name, so `A100` means several models.
            part = normal(model).removeprefix("nvidia-")
            exact = model_of(NVIDIA, model)
            meant = [
                each
                for each in FAMILIES[NVIDIA].models
                if each is exact or (not exact and any(part in normal(n) for n in each.match))
            ]
            for profile in (profile for each in meant for profile in each.profiles):
                if not profile.by_name and _slices(profile.name) not in allowed:
                    raise ManifestError(
                        f"{here}.profiles",
                        entry["profiles"],
                        f"excludes {profile.name}, which Apportion creates on {model}",
                        "remove the list, and use knownMigGeometries to choose MIG instances",
                    )
    passed.append(Passed(path, "it allows all MIG profiles that Apportion creates"))


def _without_core(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_core(each) for each in part]
    if isinstance(part, dict):
        return {key: _without_core(each) for key, each in part.items() if key != "core"}
    return part


def _slices(profile: str) -> str:
    # The compute part only: memory is rounded differently (`7g.79gb`, `7g.80gb`).
    return profile.partition(".")[0]


def _texts(entry: object, key: str, path: str) -> Iterator[str]:
    for text in chart.a_list(chart.an_object(entry, path).get(key), f"{path}.{key}"):
        if not isinstance(text, str):
            raise ManifestError(f"{path}.{key}", text, "is not text", "write names")
        yield text
