"""Plain requests between `apportion run`, the extender, agents and schedulers.

Requests are not events: only the ledger decides whether a pod exists, is placed or has ended."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from apportion_schemas.catalogue import token
from apportion_schemas.quantities import Name, Text

SUBJECT = "apportion.command.scheduler.place"
CONTAINER: Final = "run"  # the only container of a pod that represents a command
# environment variable with the pod's uid, inherited by all that the command starts
MARK: Final = "APPORTION_POD"
# Owner kinds of such pods: a command, or a container engine.
PROCESS: Final = "Process"
ENGINES: Final = ("podman", "docker")


class Choice(msgspec.Struct, frozen=True):
    """A request to the scheduler: place the pod with this uid on this node."""

    pod: Name
    node: Name


class Heard(msgspec.Struct, frozen=True):
    """The scheduler's answer to a Choice: accepted, or `error` has the reason."""

    error: str = ""


def is_command(owner: str) -> bool:
    """Return True if `owner` is the owner of a pod that represents an `apportion run` command."""
    kind, slash, _ = owner.partition("/")
    return bool(slash) and kind in {PROCESS, *ENGINES}


class Greet(Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="greet"):
    """Asks an agent whether it starts commands on this machine and can see the process."""

    pid: Annotated[int, Meta(ge=1)]
    started: Annotated[int, Meta(ge=0)]  # kernel clock ticks since the boot; see `process.lives`


class Start(Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="start"):
    """A request to an agent: create the pod's share for a process and its child processes."""

    pod: Name
    pid: Annotated[int, Meta(ge=1)]
    started: Annotated[int, Meta(ge=0)]
    in_container: bool = False  # then it gets a CDI device instead of environment variables


class End(Struct, frozen=True, forbid_unknown_fields=True, tag_field="verb", tag="end"):
    """A request to an agent: all processes of this pod have ended, so release its share."""

    pod: Name


class Started(Struct, frozen=True, omit_defaults=True):
    """The agent's answer to Start: the share exists, or `error` has the reason."""

    environment: dict[str, str] = {}
    device: str = ""  # CDI device
    notes: tuple[str, ...] = ()  # warnings for the user, such as that no limit is enforced
    error: str = ""


class Order(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command to a simulated node, such as `{"verb": "fail", "device": "GPU-..."}`."""

    verb: Literal["fail", "recover", "lose", "return"]
    device: Text = ""
    reason: Annotated[Text, Meta(min_length=1)] = "failed by command"


class Obeyed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to an Order: `{"done": true}`, or `false` with the error."""

    done: bool
    error: str = ""


def command_subject(node: str) -> str:
    """Return the subject on which the agent of a simulated node receives commands."""
    return f"apportion.command.agent.{token(node)}"


def subject_of(node: str) -> str:
    """Return the subject for requests to the agent of a machine without a kubelet."""
    return f"apportion.command.agent.{token(node)}.runs"
