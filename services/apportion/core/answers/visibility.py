"""Mark each field of an answer with the clients that may see it; `tenant_redaction` enforces this.

A tenant is a client that may read only some namespaces. Invariant: a field without a mark is
visible only to clients that may read the namespace of its object."""

from enum import Enum
from typing import Annotated, Final, NamedTuple, TypeVar

T = TypeVar("T")

OTHERS: Final = "another namespace"  # replaces a namespace that the client may not read
OF_OTHERS: Final = "(of another namespace)"  # replaces a name or sentence of such a namespace
NOT_TOLD: Final = "-"  # replaces any other text of such a namespace


class Kept(Enum):
    """Marks a field that gets the empty value of its own type when hidden."""

    KIND = "kind"


class Rule(Enum):
    """The kind of content that a field has; it decides which clients may see the field."""

    OWNERS = "owners"  # only clients of the object's namespace; the default
    EVERYONE = "everyone"  # amounts, nodes, times and codes: they do not reveal the owner
    READERS = "readers"  # never for tenants, not even for their own namespaces
    NAMESPACE = "namespace"  # the namespace of the object
    NAMESPACES = "namespaces"  # all namespaces that the object concerns; none for the cluster
    NAMES = "names"  # `namespace/name`, one or several: each visible with its namespace
    # Written by a user, driver or agent: it may contain any name, so names are blanked
    PEOPLE = "people"
    OWN_ITEMS = "own items"  # objects with a namespace each: those of other namespaces are left out
    # Objects with a namespace each, whatever the namespace of their owner; texts between are public
    EACH = "each"
    MADE = "made"  # a sentence, made again from the other fields after redaction


class Seen(NamedTuple):
    """Which clients may see a field, and what replaces the field for other clients."""

    by: Rule
    instead: str | Kept | None = Kept.KIND  # replaces a hidden field


Everyone = Annotated[T, Seen(Rule.EVERYONE)]
Readers = Annotated[T, Seen(Rule.READERS, None)]
Names = Annotated[T, Seen(Rule.NAMES)]
People = Annotated[T, Seen(Rule.PEOPLE)]
OwnItems = Annotated[T, Seen(Rule.OWN_ITEMS)]
EachItem = Annotated[T, Seen(Rule.EACH)]
Made = Annotated[T, Seen(Rule.MADE)]
OrNone = Annotated[T, Seen(Rule.OWNERS, None)]
OrEmpty = Annotated[T, Seen(Rule.OWNERS, "")]
# A sentence about an event, made from its parts; a hidden event shows only `OF_OTHERS`
EventText = Annotated[T, Seen(Rule.MADE, OF_OTHERS)]
Namespace = Annotated[str, Seen(Rule.NAMESPACE)]
Namespaces = Annotated[tuple[str, ...], Seen(Rule.NAMESPACES)]
