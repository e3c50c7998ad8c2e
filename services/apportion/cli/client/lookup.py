"""Find the pod, node or device that a name on the command line means.

Invariant: an unknown or ambiguous name ends the verb with an error that suggests names."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import Gateway, at_of
from apportion.cli.exits import NotFound
from apportion.core.answers.past import PodNames
from apportion.core.answers.reads import DeviceAnswer, NodeDetail, PodAnswer, Why
from apportion.core.explain.text import names as device_names
from apportion.core.explain.text.names import target_meant
from apportion.core.explain.text.words import listed
from apportion.core.names import near


def split_name(pod: str, namespace: str | None) -> tuple[str, str]:
    """Split `NAME` or `NAMESPACE/NAME` into namespace and name."""
    before, slash, name = pod.partition("/")
    return (before, name) if slash else (namespace or "default", pod)


def why_of(gateway: Gateway, pod: str, namespace: str | None, query: Mapping[str, Any]) -> Why:
    """Return the explanation of the pod's state. Without a namespace, search all namespaces.

    Raises NotFound, with similar names, if no pod or several pods match."""
    space, name = split_name(pod, namespace)
    try:
        return gateway.ask("pods", space, name, "why", answer=Why, query=query)
    except NotFound as error:
        there = at_of(query)
        if namespace is not None or "/" in pod:
            raise unknown(gateway, name, error.message, there) from None
        kind = "node"
        try:
            gateway.ask("nodes", name, answer=NodeDetail, query=there)
        except NotFound:
            _, devices = gateway.items("devices", DeviceAnswer, there)
            kind = (
                "device" if any(device_names.means(name, each.device) for each in devices) else ""
            )
        if kind:
            verbs = f"`apportion who {name}` lists its pods, `apportion history {name}` its events"
            raise NotFound(f"{error.message}; it is a {kind}: {verbs}") from None
        space = namespace_of(gateway, name, there, error.message)
    return gateway.ask("pods", space, name, "why", answer=Why, query=query)


class NothingLike(NotFound):
    """The error for a name that is not the name of a pod, nor similar to one."""


def namespace_of(gateway: Gateway, name: str, there: Mapping[str, Any], problem: str) -> str:
    """Return the namespace of the only live pod called `name`, or else of the only ended one.

    `there` selects the revision. Raises NotFound if several pods match, or none (see `problem`)."""
    _, pods = gateway.items("pods", PodAnswer, there)
    spaces = sorted({each.namespace for each in pods if each.name == name})
    if not spaces:
        ever = gateway.ask("history", "pods", name, answer=PodNames, query=there)
        spaces = [each.namespace for each in ever.items]
    if len(spaces) > 1:
        several = listed([f"{each}/{name}" for each in spaces])
        raise NotFound(f"several pods have this name: {several}; write NAMESPACE/{name}") from None
    if not spaces:
        meant = pods_meant(name, pods)
        raise (NotFound(f"{problem}{meant}") if meant else NothingLike(problem)) from None
    return spaces[0]


def unknown(
    gateway: Gateway, name: str, problem: str, there: Mapping[str, Any] | None = None
) -> NotFound:
    """Return a NotFound for pod `name`; its message is `problem`, followed by similar pod names."""
    _, pods = gateway.items("pods", PodAnswer, there)
    return NotFound(f"{problem}{pods_meant(name, pods)}")


def pods_meant(name: str, pods: Iterable[PodAnswer]) -> str:
    """Return a hint to append to "no such pod": `; did you mean training/worker-0?`

    The hint names pods of an owner or gang called `name`, or pods with an equal or similar name."""
    full = defaultdict[str, list[str]](list)
    made = defaultdict[str, list[str]](list)
    for pod in pods:
        full[pod.name].append(f"{pod.namespace}/{pod.name}")
        kind, _, owner = pod.owner.partition("/")
        in_gang = "gang" if pod.group.rpartition("/")[2] == name else ""
        if what := kind if owner == name else in_gang:
            made[what].append(f"{pod.namespace}/{pod.name}")
    if made and name not in full:
        return "".join(f"; it is a {what} with pods {listed(made[what])}" for what in made)
    meant = full.get(name) or [each for found in near(name, full) for each in full[found]]
    return f"; did you mean {listed(meant)}?" if meant else ""


def is_pod(gateway: Gateway, target: str, there: dict[str, object]) -> bool:
    """Return True if a pod called `target` is or was live at the revision in `there`."""
    if live_pods(gateway, target, there):
        return True
    space, _, name = target.rpartition("/")
    ever = gateway.ask("history", "pods", name, answer=PodNames, query=there)
    return any(space in {"", each.namespace} for each in ever.items)


def live_pods(gateway: Gateway, target: str, there: dict[str, object]) -> list[PodAnswer]:
    """Return the live pods called `target`, which is `NAME` or `NAMESPACE/NAME`."""
    space, _, name = target.rpartition("/")
    _, pods = gateway.items("pods", PodAnswer, there)
    return [each for each in pods if each.name == name and space in {"", each.namespace}]


def find(where: Where, target: str) -> tuple[int, str, str]:
    """Return the gateway's revision, the node's name, and the device or "" if `target` is a node.

    Raises NotFound if the name is neither a node nor a device, or is ambiguous."""
    gateway = Gateway(where.gateway_url())
    try:
        detail = gateway.ask("nodes", target, answer=NodeDetail)
    except NotFound:
        revision, devices = gateway.items("devices", DeviceAnswer)
    else:
        return detail.revision, detail.node.node, ""
    node_of = {device.device: device.node for device in devices}
    found = device_names.meant(target, node_of)
    if len(found) == 1:
        return revision, node_of[found[0]], found[0]
    if problem := device_names.unclear(target, found):
        raise NotFound(f"{problem}; {device_names.WRITE_MORE}")
    if pods := live_pods(gateway, target, {}):
        on = " and ".join(dict.fromkeys(each.node for each in pods if each.node))
        its = f"it is on {on}" if on else "it is pending"
        raise NotFound(f"{target!r} is a pod, not a device or node; {its}")
    meant = target_meant(target, node_of.values(), node_of)
    raise NotFound(f"no device or node {target!r} at revision {revision}; {meant}")
