"""What one identity may send and hear: its role's row, with its own name and nodes filled in.

Invariant: the same identities give the same permissions, in the same order."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from apportion.core.identity.identity import (
    EVERY_NODE,
    Identity,
    InvalidIdentity,
    consumers_of,
    readers_of_node,
)
from apportion.core.identity.roles import BY_NAME, KEPT_CONFIGURATION, Reads, Role
from apportion_schemas.catalogue import SUBJECTS, token

_CONFIGURATION: Final = f"{SUBJECTS}.operator.configuration"
_STREAM: Final = "APPORTION"
_GET: Final = f"$JS.API.STREAM.MSG.GET.{_STREAM}"
_ASKS: Final[dict[Reads, tuple[str, ...]]] = {
    "everything": (
        _GET,
        "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_SNAPSHOTS",
        "$JS.STORE.API.DIRECT.GET.OBJ_APPORTION_SNAPSHOTS",
        "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_BEGINNING",
        "$JS.STORE.API.DIRECT.GET.OBJ_APPORTION_BEGINNING",
    ),
    "configuration": (KEPT_CONFIGURATION,),
    # the auditors' account answers that it has no snapshots
    "copy": (
        _GET,
        "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_SNAPSHOTS",
        "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_BEGINNING",
    ),
    "nothing": (),
}
"""What is asked for beside consumers, by what is read."""
QUEUE: Final = "binder"
"""The one consumer that several share; binders make it."""
DELIVERIES: Final = "_DELIVER"
"""Below it, by name, everybody's consumers deliver."""
ANSWER_S: Final = 60
"""How long a request may be answered."""


class Permissions(msgspec.Struct, frozen=True):
    """Subjects with NATS' wildcards; what is not allowed is forbidden, and a denial wins.

    `responses`: it may send once to the reply of each message that it was sent."""

    publish: tuple[str, ...]
    deny_publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool = False


def role_of(identity: Identity) -> Role:
    """The row of its role. Raises InvalidIdentity."""
    role = BY_NAME.get(identity.role)
    if role is None:
        raise InvalidIdentity(f"role {identity.role!r}: write one of {', '.join(BY_NAME)}")
    return role


def permissions_of(identity: Identity, among: Sequence[Identity] = ()) -> Permissions:
    """What it may do. `among` are all that the same server knows.

    Nobody touches the consumers of another of them. Raises InvalidIdentity."""
    role = role_of(identity)
    hears = [f"{identity.inbox}.>"]
    if role.reads != "nothing":  # consumers deliver below one subject, so that accounts share it
        hears += [f"{DELIVERIES}.{identity.name}.>"]
    if role.reads == "copy" and identity.shared:
        # Where a tool without settings is answered: of those who read along one alone may.
        hears += ["_INBOX.>"]
    sends = [
        *_filled([f"{SUBJECTS}.{each}" for each in role.appends], identity),
        *_filled(role.sends, identity),
        *_reads(role, identity),
    ]
    return Permissions(
        publish=tuple(dict.fromkeys(sends)),
        deny_publish=tuple(_foreign(identity, among)),
        subscribe=(*hears, *_filled(role.hears, identity)),
        responses=role.answering,
    )


def _filled(subjects: Iterable[str], identity: Identity) -> Iterator[str]:
    for subject in subjects:
        if "{node}" not in subject:
            yield subject.format(name=identity.name)
            continue
        for node in identity.nodes:
            part = node if node == EVERY_NODE else token(node)
            yield subject.format(name=identity.name, node=part)


def _reads(role: Role, identity: Identity) -> Iterator[str]:
    if role.reads == "nothing":
        return
    if identity.one_node:
        # An intake asks the server for it, and makes its consumers: see `core.intake.sight`.
        for name in (each for node in identity.nodes for each in readers_of_node(node)):
            yield f"$JS.FC.{_STREAM}.{name}.>"
        return
    yield f"$JS.API.STREAM.INFO.{_STREAM}"
    yield from _ASKS[role.reads]
    names = ["*"] if identity.shared else consumers_of(identity.name, role.consumers)
    for name in names:
        if role.reads != "configuration":
            yield f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}"
            yield f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}.>"
        else:
            # A consumer of this one subject; the server holds its settings to the name.
            yield f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}.{_CONFIGURATION}"
        yield f"$JS.API.CONSUMER.INFO.{_STREAM}.{name}"
        yield f"$JS.API.CONSUMER.DELETE.{_STREAM}.{name}"
        yield f"$JS.FC.{_STREAM}.{name}.>"
        if role.reads == "copy":
            yield f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.{name}"


def _foreign(identity: Identity, among: Sequence[Identity]) -> Iterator[str]:
    """Of one whose consumers may have any name: the names of others, and of the shared queue.

    An intake makes some for agents, whose names begin as no identity's; permissions know no
    beginnings, so the names of those whom a callout lets in are not among them."""
    if not identity.shared and identity.role != "intake":
        return
    copy = role_of(identity).reads == "copy"
    if not copy:
        yield from _touching(QUEUE)
    for other in among:
        reads = role_of(other).reads
        if other == identity or other.one_node or reads == "nothing":
            continue  # one that reads nothing by itself has no consumer of its name
        if (reads == "copy") == copy:
            for name in consumers_of(other.name, role_of(other).consumers):
                yield from _touching(name)


def _touching(name: str) -> Iterator[str]:
    for verb in ("CREATE", "INFO", "DELETE", "MSG.NEXT"):
        yield f"$JS.API.CONSUMER.{verb}.{_STREAM}.{name}"
    yield f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}.>"
    yield f"$JS.FC.{_STREAM}.{name}.>"


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern of NATS: `*` is one token, `>` all that follow."""
    wanted, found = pattern.split("."), subject.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(found) > place
        if place >= len(found) or part not in ("*", found[place]):
            return False
    return len(wanted) == len(found)
