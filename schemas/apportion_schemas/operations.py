"""Events that operators and users cause, each with the person's name and the reason."""

from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta

from apportion_schemas.catalogue import event
from apportion_schemas.quantities import (
    MEMORY_MIB_MAX,
    NAME_MAX,
    Name,
    Payload,
    Percent,
    Text,
    Weight,
)

Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
# See POLICIES for the meanings. Until prices have been learnt, price and fgd act as bestfit.
Policy = Literal["price", "fgd", "bestfit", "binpack", "spread"]


class PolicyText(NamedTuple):
    """Describes a policy to users: what it prefers, and how it chooses devices within a node.

    If `with_node`, the policy chooses the node and its devices by one score."""

    prefers: str
    of_devices: str
    with_node: bool = False


# The texts of the command line, the API, the console and the documentation.
POLICIES: Final[dict[Policy, PolicyText]] = {
    "price": PolicyText(
        "the node and device that leave the most room for typical pods, learnt from the ledger; "
        "acts as bestfit until 20 pods have been submitted",
        "that leaves the most room for typical pods, then the fullest "
        '("price" is a score, not money)',
        with_node=True,
    ),
    "fgd": PolicyText(
        "the node and device that the pod fragments least (fragmentation gradient descent); "
        "acts as bestfit until 20 pods have been submitted",
        "that leaves the least fragmentation",
        with_node=True,
    ),
    "bestfit": PolicyText(
        "the node and device with the least capacity left",
        "with the least capacity left",
        with_node=True,
    ),
    "binpack": PolicyText("the fullest node or device", "that is fullest but has room"),
    "spread": PolicyText(
        "the emptiest node or device", "with the fewest containers, then the emptiest"
    ),
}


@event("operator.device.{device}", "operator")
class DeviceCordoned(Payload, frozen=True):
    """An operator cordons a device: it takes no new pods, and pods that use it stay."""

    device: Name
    by: Name
    reason: Reason


@event("operator.device.{device}", "operator")
class DeviceUncordoned(Payload, frozen=True):
    """An operator lifts all cordons of a device."""

    device: Name
    by: Name
    reason: Text = ""


@event("operator.node.{node}", "operator")
class NodeCordoned(Payload, frozen=True):
    """An operator cordons a node: it takes no new pods, and pods on it stay."""

    node: Name
    by: Name
    reason: Reason


@event("operator.node.{node}", "operator")
class NodeUncordoned(Payload, frozen=True):
    """An operator lifts all cordons of a node."""

    node: Name
    by: Name
    reason: Text = ""


@event("operator.device.{device}", "operator")
class DeviceCordonLifted(Payload, frozen=True):
    """An operator lifts one user's cordon (`of`) on a device; cordons by other users stay."""

    device: Name
    of: Name
    by: Name
    reason: Text = ""


@event("operator.node.{node}", "operator")
class NodeCordonLifted(Payload, frozen=True):
    """An operator lifts one user's cordon (`of`) on a node; cordons by other users stay."""

    node: Name
    of: Name
    by: Name
    reason: Text = ""


@event("operator.resize.{pod}", "operator")
class ResizeAsked(Payload, frozen=True):
    """A user requests other amounts for a running pod; the scheduler answers with a later event.

    `memory_mib` and `cores` (percent) are for each device of the container; None leaves an amount
    unchanged. `container` may be left out if only one container of the pod has devices."""

    pod: Name
    by: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MEMORY_MIB_MAX)] | None = None
    cores: Percent | None = None
    container: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    reason: Text = ""


class NodeWeights(Payload, frozen=True):
    """How much each resource counts in a node's load (Volcano's `binpack.cpu` and so on).

    Only resources that the pod requests count. `devices` is Volcano's `deviceshare.ScheduleWeight`,
    or the weight of `nvidia.com/gpu`."""

    cpu: Weight = 1
    memory: Weight = 1
    devices: Weight = 1


@event("operator.policy", "operator")
class PolicyChanged(Payload, frozen=True):
    """An operator sets the policy that the scheduler follows from here on.

    `node_weights` are for `binpack` and `spread`. Without weights, only devices count; for a pod
    without devices, CPU and memory count equally."""

    by: Name
    reason: Text = ""
    node_policy: Policy = "price"
    device_policy: Policy = "price"
    node_weights: NodeWeights | None = None
