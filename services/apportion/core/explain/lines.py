"""Events in one line each: what `tail` and every log of the ledger show a person.

Invariant: every event of the catalogue has a line (a test walks over all of them).
"""

from collections.abc import Callable
from typing import Any

from apportion.core.explain import words
from apportion_schemas import (
    AllocationFailed,
    Ask,
    BindFailed,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeCordoned,
    NodeGone,
    NodeObserved,
    NodeReported,
    NodeUncordoned,
    PlacementVoided,
    PodBound,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    PolicyChanged,
    QueueObserved,
    Share,
    SharesAllocated,
)

DEVICE_CHARS = 12
"""`GPU-` and the first eight digits of a UUID."""
LISTED = 4
"""How many of several things a line names before it only counts them."""


def line(data: Any) -> str:
    """One event's payload in words, as in `default/a placed on node-1: gpu-0 3,000 MiB …`."""
    return _LINES[type(data)](data)


def device_words(device: str) -> str:
    """A device id, cut to what tells it apart on a screen; commands take the cut form too."""
    return device[:DEVICE_CHARS] if len(device) > DEVICE_CHARS + 4 else device


def share_words(share: Share) -> str:
    """What a container holds, as in `GPU-1a2b3c4d 3,000 MiB 50 %` or `GPU-1a2b3c4d 1g.5gb@0`."""
    device = device_words(share.device)
    if share.instance is not None:
        return f"{device} {share.instance.profile}@{share.instance.start}"
    if share.template:
        return f"{device} {share.template}"
    return f"{device} {share.memory_mib:,} MiB" + (f" {share.cores} %" if share.cores else "")


def ask_words(ask: Ask) -> str:
    """What a container wants, as in `2 x nvidia 3,000 MiB 50 %` or `1 x nvidia whole`."""
    said = f"{ask.count} x {ask.family}"
    if ask.whole:
        return f"{said} whole"
    if ask.memory_mib is not None:
        said += f" {ask.memory_mib:,} MiB"
    elif ask.memory_percent is not None:
        said += f" {ask.memory_percent} % memory"
    else:
        said += " all memory"
    return f"{said} {ask.cores} % cores" if ask.cores else said


def listed(things: list[str]) -> str:
    """The first few of several, and how many more there are."""
    more = len(things) - LISTED
    return ", ".join(things[:LISTED]) + (f" and {more:,} more" if more > 0 else "")


def _submitted(data: PodSubmitted) -> str:
    asks = listed([ask_words(ask) for ask in data.shape.asks]) or "no device"
    gang = f", gang {data.group}" if data.group else ""
    return f"{data.namespace}/{data.name} submitted: {asks} ({data.dialect}{gang})"


def _placed(data: PodPlaced) -> str:
    shares = listed([share_words(share) for share in data.shares]) or "no device"
    return f"{data.namespace}/{data.name} placed on {data.node}: {shares}"


def _refused(data: PodRefused) -> str:
    return f"{data.namespace}/{data.name} refused: {words.refusal(data)}"


def _reported(data: NodeReported) -> str:
    models: dict[str, int] = {}
    for device in data.devices:
        models[device.model] = models.get(device.model, 0) + 1
    held = listed([f"{count} x {model}" for model, count in models.items()]) or "no devices"
    return f"{data.node} reports {held}" + (" (simulated)" if data.simulated else "")


def _health(data: DeviceHealthChanged) -> str:
    became = "recovered" if data.healthy else f"failed: {data.reason or 'no reason given'}"
    return f"device {data.device} of {data.node} {became}"


def _observed(data: NodeObserved) -> str:
    ready = "ready" if data.ready else "not ready"
    return f"node {data.node} is {ready}" + (" and unschedulable" if data.unschedulable else "")


def _cordoned(kind: str, name: str, data: Any) -> str:
    return f"{kind} {name} cordoned by {data.by}: {data.reason}"


def _uncordoned(kind: str, name: str, data: Any) -> str:
    return f"{kind} {name} uncordoned by {data.by}" + (f": {data.reason}" if data.reason else "")


def _bind_failed(data: BindFailed) -> str:
    final = "for good" if data.final else "and is tried again"
    return f"pod {data.pod}: binding to {data.node} failed {final}: {data.message}"


_LINES: dict[type, Callable[[Any], str]] = {
    NodeReported: _reported,
    DeviceHealthChanged: _health,
    SharesAllocated: lambda e: (
        f"pod {e.pod} holds its shares on {e.node}: {listed([device_words(d) for d in e.devices])}"
    ),
    AllocationFailed: lambda e: f"pod {e.pod}: {e.node} could not hand out shares: {e.message}",
    PodSubmitted: _submitted,
    PodGone: lambda e: f"pod {e.uid} is gone" + (f": {e.reason}" if e.reason else ""),
    NodeObserved: _observed,
    NodeGone: lambda e: f"node {e.node} left the cluster",
    PodGroupObserved: lambda e: f"gang {e.group} needs {e.min_available} pods together",
    QueueObserved: lambda e: f"queue {e.queue}: weight {e.weight}" + ("" if e.open else ", closed"),
    PodPlaced: _placed,
    PlacementVoided: lambda e: f"pod {e.pod}: placement on {e.node} voided: {e.reason}",
    PodRefused: _refused,
    PodBound: lambda e: f"pod {e.pod} bound to {e.node}",
    BindFailed: _bind_failed,
    DeviceCordoned: lambda e: _cordoned("device", e.device, e),
    DeviceUncordoned: lambda e: _uncordoned("device", e.device, e),
    NodeCordoned: lambda e: _cordoned("node", e.node, e),
    NodeUncordoned: lambda e: _uncordoned("node", e.node, e),
    PolicyChanged: lambda e: (
        f"policy changed by {e.by}: nodes {e.node_policy}, devices {e.device_policy}"
        + (f": {e.reason}" if e.reason else "")
    ),
}
