"""What the environment of containers says of GPUs: `overwriteEnv` and `disableCoreLimit`.

A container runtime that is NVIDIA's by default shows all GPUs of the node to a container that asks
for none, unless `NVIDIA_VISIBLE_DEVICES` says otherwise; HAMi-core holds a container to its cores
unless `GPU_CORE_UTILIZATION_POLICY` does. Invariant: a container that may do anything anyhow, or
that gets its GPUs in a way that is not ours, is left as it is.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NOTHING: Final = "none"
CORES: Final = "GPU_CORE_UTILIZATION_POLICY"
UNLIMITED: Final = "disable"
_FOREIGN: Final = "nvidia.com/"
"""Resources of NVIDIA's own plugin; a container that asks for one has GPUs of it."""

Patch = dict[str, Any]


def hidden(spec: Mapping[str, Any], is_gpu: Callable[[str], bool]) -> Iterator[Patch]:
    """Hides the node's GPUs from containers that ask for none, whatever they themselves say."""
    for base, container in _containers(spec):
        resources = _part(container, "resources")
        names = {*_part(resources, "limits"), *_part(resources, "requests")}
        asks = any(is_gpu(name) or str(name).startswith(_FOREIGN) for name in names)
        privileged = _part(container, "securityContext").get("privileged") is True
        if not asks and not privileged and not resources.get("claims"):
            yield from _set(container, base, VISIBLE, NOTHING, over=True)


def unlimited(spec: Mapping[str, Any], names: Collection[str]) -> Iterator[Patch]:
    """Lets these containers use any cores that are free, unless they say what they want."""
    for base, container in _containers(spec):
        if container.get("name") in names:
            yield from _set(container, base, CORES, UNLIMITED, over=False)


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in ("initContainers", "containers"):
        found = spec.get(kind)
        for position, container in enumerate(found if isinstance(found, list) else ()):
            if isinstance(container, dict):
                yield f"/spec/{kind}/{position}", container


def _set(
    container: Mapping[str, Any], base: str, name: str, value: str, *, over: bool
) -> Iterator[Patch]:
    entry = {"name": name, "value": value}
    env = container.get("env")
    if not isinstance(env, list) or not env:
        yield {"op": "add", "path": f"{base}/env", "value": [entry]}
        return
    said = [
        at for at, each in enumerate(env) if isinstance(each, dict) and each.get("name") == name
    ]
    if not said:
        yield {"op": "add", "path": f"{base}/env/-", "value": entry}
    for at in said if over else ():
        if env[at] != entry:
            yield {"op": "replace", "path": f"{base}/env/{at}", "value": entry}


def _part(whole: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = whole.get(key)
    return found if isinstance(found, dict) else {}
