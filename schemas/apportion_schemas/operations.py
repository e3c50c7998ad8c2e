"""What a person did, with the person's name and reason."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.quantities import Name, Payload, Text, Weight

Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
Policy = Literal["price", "fgd", "bestfit", "binpack", "spread"]
"""How nodes, or the devices of a node, are preferred: `price` by what the pods that usually come
could no longer have, `fgd` by the least fragmentation, `bestfit` the least left, `binpack` the
fullest in percent, `spread` the emptiest. Until prices have been learnt the first two are
`bestfit`."""


class DeviceCordoned(Payload, frozen=True):
    """Nothing new goes onto this device; what runs there stays."""

    device: Name
    by: Name
    reason: Reason


class DeviceUncordoned(Payload, frozen=True):
    """The device is on offer again."""

    device: Name
    by: Name
    reason: Text = ""


class NodeCordoned(Payload, frozen=True):
    """Nothing new goes onto this node; what runs there stays."""

    node: Name
    by: Name
    reason: Reason


class NodeUncordoned(Payload, frozen=True):
    """The node is on offer again."""

    node: Name
    by: Name
    reason: Text = ""


class NodeWeights(Payload, frozen=True):
    """How much each resource counts in a node's load (Volcano's `binpack.cpu` and its sisters).

    `devices` is Volcano's `deviceshare.ScheduleWeight`, or the weight of `nvidia.com/gpu`. Only
    resources that the pod asks for count.
    """

    cpu: Weight = 1
    memory: Weight = 1
    devices: Weight = 1


class PolicyChanged(Payload, frozen=True):
    """From this revision on, decisions follow this policy.

    `node_weights` are for `binpack` and `spread`; without them the devices alone decide, or CPU and
    memory alike for a pod without.
    """

    by: Name
    reason: Text = ""
    node_policy: Policy = "price"
    device_policy: Policy = "price"
    node_weights: NodeWeights | None = None
