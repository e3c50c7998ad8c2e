"""What is filled in where a container leaves it out: HAMi's admission defaults.

The amounts are those that reading the container gives (`defaultGPUNum`, `defaultMem`,
`defaultCores`), so a device plugin that only sees resources sees what was decided on. A pod in the
plain names alone is left as it is: another amount beside them would make it a pod of another
dialect. A container whose dialect counts no devices gets a slot, so that its kubelet asks the agent
about it. Invariant: a pod that is filled in reads to the same asks as before.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from apportion.core.workloads.dialects import Container, DialectConfig, hami, volcano_vgpu
from apportion.core.workloads.dialects.dialect import SLOT
from apportion.core.workloads.dialects.listing import count_names
from apportion.core.workloads.dialects.names import VgpuNames
from apportion_schemas import Ask


def missing_limits(
    containers: Sequence[Container],
    asks: Sequence[Ask],
    dialect: str,
    config: DialectConfig,
    *,
    slots: bool = True,
) -> Iterator[tuple[Container, dict[str, str]]]:
    """Each container that lacks amounts, with the limits that are to be added; `slots` among them,
    or not.
    """
    names = {hami.NAME: config.hami, volcano_vgpu.NAME: config.volcano_vgpu}.get(dialect)
    if names is None and not slots:
        return
    wanted = {ask.container: ask for ask in asks}
    for container in containers:
        if container.name in wanted:
            added = (
                _missing(container, wanted[container.name], names, config)
                if names is not None
                else _slot(container, config)
            )
            if added:
                yield container, added


def _slot(container: Container, config: DialectConfig) -> dict[str, str]:
    """One slot, where nothing that the container names is counted by the kubelet."""
    said = {*container.limits, *container.requests}
    return {} if said & count_names(config).keys() else {SLOT: "1"}


def _missing(
    container: Container, ask: Ask, names: VgpuNames, config: DialectConfig
) -> dict[str, str]:
    said = {*container.limits, *container.requests}
    added: dict[str, int] = {}
    if names.count not in said:
        added[names.count] = ask.count
    units, rest = divmod(ask.memory_mib or 0, config.memory_factor)
    if names.memory not in said and names.memory_percent not in said and units and not rest:
        added[names.memory] = units
    if names.cores not in said and ask.cores:
        added[names.cores] = ask.cores
    return {name: str(amount) for name, amount in added.items()}


def limit_patches(container: Container, added: dict[str, str]) -> Iterator[dict[str, Any]]:
    """JSON patches that add the limits; the container names a resource, so it has `resources`."""
    base = "/" + container.field.replace("[", "/").replace("]", "").replace(".", "/")
    if not container.limits:
        yield {"op": "add", "path": f"{base}/resources/limits", "value": added}
        return
    for name, amount in added.items():
        yield {"op": "add", "path": f"{base}/resources/limits/{pointer(name)}", "value": amount}


def pointer(name: str) -> str:
    """A key as one part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
