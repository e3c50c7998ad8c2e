"""An identity: a role, a name, and the nodes that it speaks for.

The name is the user in the URL of the ledger, and by it one identity is told from another: its
inbox is `_INBOX_<name>`, its consumers are `<name>-<number>`. Invariant: a name is one token of a
subject in which no wildcard stands, and no two identities have a consumer or an inbox in common."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import msgspec

EVERY_NODE: Final = "*"
"""Among the nodes of an identity: it speaks for all of them, as one that simulates a fleet does."""
NAME_MAX: Final = 63
NODE_READER: Final = "NODE"
"""How the names of consumers begin that intakes make for agents."""
_WORD: Final = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_NAME: Final = re.compile(rf"({_WORD}_)?{_WORD}")
"""Before a `_` stands the namespace of a pod that is in none of ours: `monitoring_billing-x`."""


class InvalidIdentity(ValueError):
    """No such identity can be; the message names the field, its value and the fix."""


class Identity(msgspec.Struct, frozen=True):
    """Somebody who connects. `nodes` are those of an agent, by their names in the cluster.

    `shared` is one that any number of processes have at once, so that their consumers have names
    that nobody knows before: for a deployment whose agents share one password, and for the one
    auditor whom tools without settings use."""

    role: str
    name: str
    nodes: tuple[str, ...] = ()
    shared: bool = False

    @property
    def one_node(self) -> bool:
        """Whether it is an agent of one node, which reads that node's part of the ledger."""
        return self.role == "agent" and len(self.nodes) <= 1 and EVERY_NODE not in self.nodes

    @property
    def inbox(self) -> str:
        """The beginning of the subjects on which it is answered."""
        return f"_INBOX_{self.name}"


def check_name(name: str) -> str:
    """The name, if it can be one. Raises InvalidIdentity."""
    if len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise InvalidIdentity(
            f"name {name!r}: write up to {NAME_MAX} lower-case letters, digits and hyphens, "
            "beginning and ending with a letter or digit"
        )
    return name


def consumers_of(name: str, count: int) -> Iterable[str]:
    """The names of its consumers on the ledger's stream; only the identity itself has them."""
    return (f"{name}-{number}" for number in range(count))


def readers_of_node(node: str) -> tuple[str, ...]:
    """The names of the consumers that intakes make for the agent of a node.

    No identity has a name with capitals, so they are the consumers of no identity."""
    digest = sha256(node.encode()).hexdigest()[:32]
    return tuple(consumers_of(f"{NODE_READER}-{digest}", 4))
