"""Changes to a simulated cluster: lost or drained nodes and devices, new nodes, a policy.

Invariant: each change is an ordinary, folded event, so the engine reacts as in a scheduler."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, cast, get_args

from msgspec import Struct, structs

from apportion.core.answers.plans import PlanChange
from apportion.core.devices.simulating import SimulationInvalid, simulated_devices
from apportion.core.explain.health import pods_on
from apportion.core.explain.text import names as device_names
from apportion.core.explain.text.answer_text import change_with_text
from apportion.core.explain.text.names import did_you_mean, named
from apportion.core.explain.text.words import device_words
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.lab.course import Course
from apportion.runtime.files.fleets import (
    CPU_MILLI_PER_DEVICE,
    MEMORY_MIB_PER_DEVICE,
    SimulatedNode,
)
from apportion_schemas import (
    HOSTNAME,
    DeviceHealthChanged,
    Host,
    NodeGone,
    NodeObserved,
    NodeReported,
    PodGone,
    PodSubmitted,
    Policy,
    QueueObserved,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload

ADDED_MAX: Final = 5_000
LOST_MAX: Final = 5_000
POLICIES: Final[tuple[str, ...]] = get_args(Policy)
WHO: Final = "lab"
LOST: Final = "its node or device was lost"
# Accepts far larger counts than allowed, so that the error is about the limit and not the syntax.
_ADD: Final = re.compile(r"(?:(?P<nodes>\d{1,18})\s*x\s*)?(?P<devices>\d{1,18}\s*x\s*\S.*)")
_ADD_EXAMPLE: Final = "NODESxCOUNTxMODEL, as in 4x8xH100-80GB"


class WishInvalid(ValueError):
    """Raised for an invalid `field` of a plan's request; `fix` says what to write instead."""

    def __init__(self, field: str, problem: str = "", fix: str = "", *, rest: str = "") -> None:
        problem = problem or f"{field}{rest}"
        super().__init__(f"{problem}; {fix}")
        self.field = field
        self.problem = problem
        self.rest = rest
        self.fix = fix


class Changes(Struct, frozen=True, kw_only=True):
    """The changes to simulate, as in `PlanRequest`."""

    lose: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    policy: str = ""
    limits: tuple[QueueObserved | QuotaObserved, ...] = ()  # changed queues and quotas

    def __bool__(self) -> bool:
        return bool(self.lose or self.drain or self.add or self.policy or self.limits)


class Displaced(Struct, frozen=True):
    """A pod that lost its node or device (`before`), and the pod that replaces it (`again`)."""

    before: PodState
    node: str
    again: PodSubmitted


def apply(
    course: Course, changes: Changes, added: Callable[[Payload], Payload] = lambda data: data
) -> list[Displaced]:
    """Make the changes, and resubmit pods that lost their placement, in queue order.

    `added` may change the events that add nodes before they are applied. Raises WishInvalid if a
    node, device, model or policy is unknown."""
    nodes = list(map(added, _added(course.state, changes.add)))
    lost = targets(course.state, changes.lose)
    if changes.policy:
        policy = known_policy(changes.policy)
        course.apply(
            structs.replace(course.state.policy, by=WHO, node_policy=policy, device_policy=policy)
        )
    for fact in (*nodes, *changes.limits):
        course.apply(fact)
    # The pods of what is lost, in queue order, with the declarations of their gangs.
    held = list({pod.uid: (pod, each.node.name) for each in lost for pod in each.pods()}.values())
    held.sort(key=lambda each: (-each[0].submitted.priority, each[0].submitted_revision))
    gangs = {
        name: group.observed
        for name in {pod.submitted.group for pod, _ in held if pod.submitted.group}
        if (group := course.state.groups.get(name)) is not None and group.observed is not None
    }
    for each in lost:
        course.apply(each.fact())
    for pod, _ in held:
        course.apply(PodGone(uid=pod.uid, reason=LOST))
    for name in sorted(gangs):
        course.apply(gangs[name])
    displaced = []
    for number, (pod, node_name) in enumerate(held):
        again = submitted_again(pod.submitted, f"again-{number}")
        course.apply(again)
        displaced.append(Displaced(pod, node_name, again))
    return displaced


def changes_of(changes: Changes, state: State) -> tuple[PlanChange, ...]:
    """Return the changes for a plan's answer, without duplicates."""
    found = [_off(PlanChange("lose"), name, state) for name in dict.fromkeys(changes.lose)]
    found += [_off(PlanChange("drain"), name, state) for name in dict.fromkeys(changes.drain)]
    found += [PlanChange("add", value=text) for text in changes.add]
    if changes.policy:
        found.append(PlanChange("policy", value=changes.policy))
    for each in changes.limits:
        if isinstance(each, QueueObserved):
            found.append(PlanChange("limit", queue=each.queue))
        else:
            found.append(PlanChange("limit", quota=f"{each.namespace}/{each.quota}"))
    return tuple(map(change_with_text, found))


def _off(change: PlanChange, name: str, state: State) -> PlanChange:
    found = device_names.meant(name, state.node_of_device) if name not in state.nodes else []
    if not found:
        return structs.replace(change, node=name)
    return structs.replace(change, node=state.node_of_device[found[0]], device=found[0])


def known_policy(name: str) -> Policy:
    """Return the policy called `name`. Raises WishInvalid if there is none."""
    if name in POLICIES:
        return cast("Policy", name)
    raise WishInvalid("policy", rest=f" is {name!r}", fix=f"use one of {', '.join(POLICIES)}")


# ------------------------------------------------------------------ lost nodes and devices


class Target(NamedTuple):
    """A node, or one of its devices, that is to be lost or drained."""

    node: NodeState
    device: str = ""

    def pods(self) -> Iterable[PodState]:
        """Return the pods that lose their placement if this node or device is lost."""
        return pods_on(self.node, self.device) if self.device else self.node.pods.values()

    def fact(self) -> Payload:
        """Return the event that reports the node or device as lost."""
        if not self.device:
            return NodeGone(node=self.node.name)
        return DeviceHealthChanged(
            node=self.node.name, device=self.device, healthy=False, reason="lost"
        )


def targets(state: State, names: Iterable[str]) -> list[Target]:
    """Return the present nodes and devices called `names`.

    Raises WishInvalid if a name is unknown or ambiguous, or if too many pods run on them."""
    lost = []
    for name in dict.fromkeys(names):
        node = state.nodes.get(name)
        if node is not None and node.present:
            lost.append(Target(node))
            continue
        present = [node for node in state.nodes.values() if node.present]
        node_of = {
            each.device.id: node for node in present for each in node.devices if each.present
        }
        names_of = [node.name for node in present]
        device = lost_device(name, names_of, node_of, f"at revision {state.revision}")
        lost.append(Target(node_of[device], device))
    if sum(1 for each in lost for _ in each.pods()) > LOST_MAX:
        rest, fix = f" affects more than {LOST_MAX:,} pods", "lose fewer nodes at once"
        raise WishInvalid("lose", rest=rest, fix=fix)
    return lost


def lost_device(name: str, nodes: Collection[str], devices: Collection[str], when: str) -> str:
    """Return the device with this id or unique prefix. Raises WishInvalid."""
    found = device_names.meant(name, devices)
    if len(found) == 1:
        return found[0]
    if problem := device_names.unclear(name, found):
        raise WishInvalid("lose", problem, device_names.WRITE_MORE)
    near = did_you_mean(name, nodes) or did_you_mean(name, map(device_words, devices))
    listing = "list them with `apportion get nodes` or `apportion get devices`"
    raise WishInvalid(
        "lose", f"no node or device {name!r} {when}", near or f"{named('nodes', nodes)}; {listing}"
    )


def submitted_again(pod: PodSubmitted, uid: str) -> PodSubmitted:
    """Return the pod as its controller resubmits it. The engine chooses its node."""
    return structs.replace(pod, uid=uid, chooser="")


# ------------------------------------------------------------------ nodes that come


def _added(state: State, texts: Iterable[str]) -> list[Payload]:
    facts: list[Payload] = []
    number = 0
    for text in texts:
        found = _ADD.fullmatch(text.strip())
        if found is None:
            raise WishInvalid("add", rest=f" is {text[:80]!r}", fix=f"write {_ADD_EXAMPLE}")
        nodes = int(found["nodes"] or 1)
        if not nodes:
            fix = "write a count of 1 or more"
            raise WishInvalid("add", rest=f" is {text[:80]!r}", fix=fix)
        if number + nodes > ADDED_MAX:
            raise WishInvalid("add", rest=f" has more than {ADDED_MAX:,} nodes", fix="add fewer")
        for _ in range(nodes):
            number += 1
            name = f"added-{number}"
            while name in state.nodes:
                name += "-more"
            try:
                devices = simulated_devices(name, found["devices"])
            except SimulationInvalid as error:
                raise WishInvalid("add", str(error), f"write {_ADD_EXAMPLE}") from None
            host = Host(
                cpu_milli=CPU_MILLI_PER_DEVICE * len(devices),
                memory_mib=MEMORY_MIB_PER_DEVICE * len(devices),
            )
            facts += added_node(state, SimulatedNode(name, devices, host))
    return facts


def added_node(state: State, node: SimulatedNode) -> list[Payload]:
    """Return the events that add a node.

    The node gets the labels and taints that all nodes with its first device model have in common.
    Its CPU and memory are those of such a node with as many devices, or else its own."""
    devices, host = node.devices, node.host
    model = devices[0].model
    alike = [
        each for each in state.nodes.values()
        if each.present and any(held.device.model == model for held in each.devices)
    ]  # fmt: skip
    if alike:
        pattern = next((each for each in alike if len(each.devices) == len(devices)), None)
        common = {
            key: value
            for key, value in alike[0].host.labels.items()
            if all(each.host.labels.get(key) == value for each in alike)
        }
        host = structs.replace(pattern.host if pattern else host, labels=common)
    host = structs.replace(host, labels={**host.labels, HOSTNAME: node.name})
    return node_facts(structs.replace(node, host=host), alike)


def node_facts(node: SimulatedNode, alike: Sequence[NodeState] = ()) -> list[Payload]:
    """Return the events that add a node, with the taints that all nodes in `alike` have.

    The events include a NodeObserved, without which the node does not count in a Kubernetes
    cluster."""
    seen = [each.observed for each in alike if each.observed is not None]
    taints = tuple(
        taint for taint in (seen[0].taints if seen else ())
        if all(taint in each.taints for each in seen)
    )  # fmt: skip
    host = node.host
    return [
        NodeReported(node=node.name, devices=node.devices, host=host, simulated=True),
        NodeObserved(
            node=node.name, ready=True, cpu_milli=host.cpu_milli, memory_mib=host.memory_mib,
            pods=host.pods, labels=host.labels, taints=taints,
        ),
    ]  # fmt: skip
