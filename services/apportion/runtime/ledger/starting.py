"""Plain requests, which are no events: between `apportion run` or `simulate` and an agent, and
between extender and schedulers of pods whose node is chosen elsewhere.

What is so stands in the ledger: that the pod exists, where it is placed, that it has ended.
Invariant: either side reads what the other one writes, and nothing larger than a few names."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from apportion_schemas.catalogue import token
from apportion_schemas.quantities import Name, Text

SUBJECT = "apportion.command.scheduler.place"
CONTAINER: Final = "run"
"""The one container of a pod that stands for a command."""
MARK: Final = "APPORTION_POD"
"""In the environment of the command and of all that it starts: the uid of the pod."""
PROCESS: Final = "Process"
ENGINES: Final = ("podman", "docker")
"""The kinds of owners of such pods: a command, or the container engine that it is."""


class Choice(msgspec.Struct, frozen=True):
    """The pod of this uid is to be placed on this node."""

    pod: Name
    node: Name


class Heard(msgspec.Struct, frozen=True):
    """The choice was heard, or what is wrong with it."""

    error: str = ""


def is_command(owner: str) -> bool:
    """Whether the pod of this owner stands for a command."""
    kind, slash, _ = owner.partition("/")
    return bool(slash) and kind in {PROCESS, *ENGINES}


class Greet(Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="greet"):
    """Is anybody there who starts commands, and sees this process?

    `started` is in ticks of the kernel's clock since the machine's; see `process.lives`."""

    pid: Annotated[int, Meta(ge=1)]
    started: Annotated[int, Meta(ge=0)]


class Start(Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="start"):
    """Make the share of this pod, for a process and all that it starts.

    `in_container`: a container engine starts it, which is told of a CDI device instead of variables
    of the environment."""

    pod: Name
    pid: Annotated[int, Meta(ge=1)]
    started: Annotated[int, Meta(ge=0)]
    in_container: bool = False


class End(Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="end"):
    """All of this pod has ended: take back what it had."""

    pod: Name


class Started(Struct, frozen=True, omit_defaults=True):
    """The process's share is there: what its environment says of it, or the device to ask for.

    `notes` say what its user should know, as that nothing holds it to the share. Or there is no
    share: `error` says why."""

    environment: dict[str, str] = {}
    device: str = ""
    notes: tuple[str, ...] = ()
    error: str = ""


class Order(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"verb": "fail", "device": "GPU-...", "reason": "fan broken"}`, or `{"verb": "lose"}`."""

    verb: Literal["fail", "recover", "lose", "return"]
    device: Text = ""
    reason: Annotated[Text, Meta(min_length=1)] = "failed by command"


class Obeyed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`{"done": true}`, or `false` and why."""

    done: bool
    error: str = ""


def command_subject(node: str) -> str:
    """Where the agent of a simulated node takes orders."""
    return f"apportion.command.agent.{token(node)}"


def subject_of(node: str) -> str:
    """Where the agent of a machine without a kubelet is asked."""
    return f"apportion.command.agent.{token(node)}.runs"
