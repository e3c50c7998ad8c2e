"""Derive an identity's permissions to publish and subscribe from the table row of its role."""

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
    # the auditors' account replies that it has no snapshots
    "copy": (
        _GET,
        "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_SNAPSHOTS",
        "$JS.STORE.API.STREAM.INFO.OBJ_APPORTION_BEGINNING",
    ),
    "nothing": (),
}
QUEUE: Final = "binder"  # the one consumer that several clients share; binders create it
DELIVERIES: Final = "_DELIVER"  # consumers deliver below this subject, by name of the identity
ANSWER_S: Final = 60  # how long a request may be answered


class Permissions(msgspec.Struct, frozen=True):
    """The subjects that an identity may use. `deny_publish` overrides `publish`.

    If `responses`, the identity may reply once to each message that it receives."""

    publish: tuple[str, ...]
    deny_publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: bool = False


def role_of(identity: Identity) -> Role:
    """Return the row of the identity's role. Raises `InvalidIdentity` for an unknown role."""
    role = BY_NAME.get(identity.role)
    if role is None:
        raise InvalidIdentity(f"role {identity.role!r}: write one of {', '.join(BY_NAME)}")
    return role


def permissions_of(identity: Identity, among: Sequence[Identity] = ()) -> Permissions:
    """Return the subjects that an identity may use. Raises `InvalidIdentity`.

    An identity may not use the consumers of the other identities in `among`."""
    role = role_of(identity)
    hears = [f"{identity.inbox}.>"]
    # consumers deliver below one subject, so that accounts can share it
    if role.reads != "nothing":
        hears += [f"{DELIVERIES}.{identity.name}.>"]
    if role.reads == "copy" and identity.shared:
        # Tools without settings use this inbox; only this one auditor may.
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
        # An intake sends the requests and creates its consumers: see `core.intake.sight`.
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
            # The server restricts the consumer to the subject in its name.
            yield f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}.{_CONFIGURATION}"
        yield f"$JS.API.CONSUMER.INFO.{_STREAM}.{name}"
        yield f"$JS.API.CONSUMER.DELETE.{_STREAM}.{name}"
        yield f"$JS.FC.{_STREAM}.{name}.>"
        if role.reads == "copy":
            yield f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.{name}"


def _foreign(identity: Identity, among: Sequence[Identity]) -> Iterator[str]:
    """Yield the consumers of other identities, which this identity must not use.

    Only an identity that may use any other consumer name needs this list. Identities that a callout
    admits later are not in it."""
    if not identity.shared and identity.role != "intake":
        return
    copy = role_of(identity).reads == "copy"
    if not copy:
        yield from _touching(QUEUE)
    for other in among:
        reads = role_of(other).reads
        if other == identity or other.one_node or reads == "nothing":
            continue  # without reads it has no consumers
        if (reads == "copy") == copy:
            for name in consumers_of(other.name, role_of(other).consumers):
                yield from _touching(name)


def _touching(name: str) -> Iterator[str]:
    for verb in ("CREATE", "INFO", "DELETE", "MSG.NEXT"):
        yield f"$JS.API.CONSUMER.{verb}.{_STREAM}.{name}"
    yield f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}.>"
    yield f"$JS.FC.{_STREAM}.{name}.>"


def matches(pattern: str, subject: str) -> bool:
    """Return True if a subject matches a NATS pattern: `*` is one token, `>` the rest."""
    wanted, found = pattern.split("."), subject.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(found) > place
        if place >= len(found) or part not in ("*", found[place]):
            return False
    return len(wanted) == len(found)
