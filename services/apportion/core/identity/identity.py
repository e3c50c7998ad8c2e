"""An identity on the bus: a role, a name, and the nodes it acts for.

Invariant: a name is one subject token without wildcards. No two identities share a consumer
(`<name>-<number>`) or an inbox (`_INBOX_<name>`)."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

EVERY_NODE: Final = "*"  # in `nodes`: acts for all nodes, as a simulated fleet does
NAME_MAX: Final = 63
NODE_READER: Final = "NODE"  # prefix of the consumers that intakes create for agents
_WORD: Final = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_NAME: Final = re.compile(rf"({_WORD}_)?{_WORD}")  # a foreign pod's namespace comes before `_`


class InvalidIdentity(ValueError):
    """Raised for an invalid identity; names the field, its value and the fix."""


class Identity(msgspec.Struct, frozen=True):
    """The role and name of a client of the bus; for agents, also the nodes they act for.

    If `shared`, many processes use the identity at once, so their consumers have arbitrary names.
    Agents with one password and tools without settings share an identity."""

    role: str
    name: str
    nodes: tuple[str, ...] = ()
    shared: bool = False

    @property
    def one_node(self) -> bool:
        """Return True for an agent of one node, which reads only that node's part of the ledger."""
        return self.role == "agent" and len(self.nodes) <= 1 and EVERY_NODE not in self.nodes

    @property
    def inbox(self) -> str:
        """Return the prefix of the subjects on which the identity receives replies."""
        return f"_INBOX_{self.name}"


def check_name(name: str) -> str:
    """Return the name if it is valid; raise `InvalidIdentity` otherwise."""
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise InvalidIdentity(
            f"name {name!r}: use up to {NAME_MAX} lower-case letters, digits and hyphens, "
            "starting and ending with a letter or digit"
        )
    return name


def consumers_of(name: str, count: int) -> Iterable[str]:
    """Return the names of the consumers that the identity called `name` may create."""
    return (f"{name}-{number}" for number in range(count))


def readers_of_node(node: str) -> tuple[str, ...]:
    """Return the consumer names of a node's agent. Capitals keep them apart from other names."""
    digest = sha256(node.encode()).hexdigest()[:32]
    return tuple(consumers_of(f"{NODE_READER}-{digest}", 4))
