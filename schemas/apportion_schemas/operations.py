"""What a person did, with the person's name and reason."""

from typing import Annotated, Literal

from msgspec import Meta

from apportion_schemas.quantities import Name, Payload, Text

Reason = Annotated[str, Meta(min_length=1, max_length=1024)]
Policy = Literal["price", "fgd", "binpack", "spread"]
"""How nodes, or the devices of a node, are preferred: `price` by what the pods that usually come
could no longer have, `fgd` by the least fragmentation, `binpack` the fullest, `spread` the
emptiest. Until prices have been learnt the first two are `binpack`."""


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


class PolicyChanged(Payload, frozen=True):
    """From this revision on, decisions follow this policy."""

    by: Name
    reason: Text = ""
    node_policy: Policy = "price"
    device_policy: Policy = "price"
