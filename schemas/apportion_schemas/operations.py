"""What a person did, with the person's name and reason."""

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
Policy = Literal["price", "fgd", "bestfit", "binpack", "spread"]
"""How nodes, or the devices of a node, are preferred; `POLICIES` says what each means. Until prices
have been learnt `price` and `fgd` are `bestfit`."""


class PolicyText(NamedTuple):
    """A policy in words: what it prefers, and how it chooses among the devices of one node.

    `with_node`: one score chooses the node and its device together."""

    prefers: str
    of_devices: str
    with_node: bool = False


POLICIES: Final[dict[Policy, PolicyText]] = {
    "price": PolicyText(
        "what the pods that usually come could no longer have, learnt from the ledger; as bestfit "
        "until twenty have come",
        "to where most is left to the pods that usually come, of equals to the fullest; what is "
        "left to them is the price, which is no money",
        with_node=True,
    ),
    "fgd": PolicyText(
        "the least fragmentation", "to where the least fragmentation is left", with_node=True
    ),
    "bestfit": PolicyText(
        "the node where the least is left over", "to where the least is left over", with_node=True
    ),
    "binpack": PolicyText("the fullest node or device", "to the fullest that has room"),
    "spread": PolicyText(
        "the emptiest node or device", "to where the fewest are, of equals to the emptiest"
    ),
}
"""What each policy means to people: command line, API, console and documentation read it here."""


@event("operator.device.{device}", "operator")
class DeviceCordoned(Payload, frozen=True):
    """Nothing new goes onto this device; what runs there stays."""

    device: Name
    by: Name
    reason: Reason


@event("operator.device.{device}", "operator")
class DeviceUncordoned(Payload, frozen=True):
    """The device is on offer again, whoever had taken it off."""

    device: Name
    by: Name
    reason: Text = ""


@event("operator.node.{node}", "operator")
class NodeCordoned(Payload, frozen=True):
    """Nothing new goes onto this node; what runs there stays."""

    node: Name
    by: Name
    reason: Reason


@event("operator.node.{node}", "operator")
class NodeUncordoned(Payload, frozen=True):
    """The node is on offer again, whoever had taken it off."""

    node: Name
    by: Name
    reason: Text = ""


@event("operator.device.{device}", "operator")
class DeviceCordonLifted(Payload, frozen=True):
    """One person's reason against the device, that of `of`, stands no more; others' do."""

    device: Name
    of: Name
    by: Name
    reason: Text = ""


@event("operator.node.{node}", "operator")
class NodeCordonLifted(Payload, frozen=True):
    """One person's reason against the node, that of `of`, stands no more; others' do."""

    node: Name
    of: Name
    by: Name
    reason: Text = ""


@event("operator.resize.{pod}", "operator")
class ResizeAsked(Payload, frozen=True):
    """A pod that runs is to have more or less of its devices; the scheduler answers.

    `memory_mib` is of each device of the container, and `cores` percent of each; what is not set
    stays as it is. `container` may be left out of a pod of which one container alone has devices.
    """

    pod: Name
    by: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MEMORY_MIB_MAX)] | None = None
    cores: Percent | None = None
    container: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    reason: Text = ""


class NodeWeights(Payload, frozen=True):
    """How much each resource counts in a node's load (Volcano's `binpack.cpu` and its sisters).

    `devices` is Volcano's `deviceshare.ScheduleWeight`, or the weight of `nvidia.com/gpu`. Only
    resources that the pod asks for count."""

    cpu: Weight = 1
    memory: Weight = 1
    devices: Weight = 1


@event("operator.policy", "operator")
class PolicyChanged(Payload, frozen=True):
    """From this revision on, decisions follow this policy.

    `node_weights` are for `binpack` and `spread`; without them the devices alone decide, or CPU and
    memory alike for a pod without."""

    by: Name
    reason: Text = ""
    node_policy: Policy = "price"
    device_policy: Policy = "price"
    node_weights: NodeWeights | None = None
