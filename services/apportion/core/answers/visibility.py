"""Who may see a field of an answer: the marks that `tenant_redaction` obeys.

A tenant is a client that may read some namespaces only. Invariant: a field without a mark is seen
by those alone who see the namespace that its object is of, so a new field is hidden until its
author decides otherwise."""

from enum import Enum
from typing import Annotated, Final, NamedTuple, TypeVar

T = TypeVar("T")

OTHERS: Final = "another namespace"
"""Replaces a namespace that the reader may not see."""
OF_OTHERS: Final = "(of another namespace)"
"""Replaces a name, or a sentence, of a namespace that the reader may not see."""
NOT_TOLD: Final = "-"
"""Replaces any other text of a namespace that the reader may not see."""


class Kept(Enum):
    """An emptied field gets the empty value of its own type."""

    KIND = "kind"


class Rule(Enum):
    """What a field holds, and so who may see it."""

    OWNERS = "owners"
    """Of the object's namespace alone. This is what a field without a mark is."""
    EVERYONE = "everyone"
    """Amounts, places, times and codes: they do not say whose they are."""
    READERS = "readers"
    """Not for tenants at all, not even of their own namespaces."""
    NAMESPACE = "namespace"
    """The namespace that the object is of."""
    NAMESPACES = "namespaces"
    """All namespaces that the object is about; none if it is about the cluster."""
    NAMES = "names"
    """`namespace/name`, one or several: each is seen by those who see its namespace."""
    PEOPLE = "people"
    """Written by a person, a driver or an agent: it may name anything, so names are blanked."""
    OWN_ITEMS = "own items"
    """Objects with a namespace each: those of other namespaces are left out."""
    EACH = "each"
    """Objects with a namespace each, whatever the namespace of the object that holds them; texts
    between them are everyone's.
    """
    MADE = "made"
    """A sentence that is made from the other fields again after these were redacted."""


class Seen(NamedTuple):
    """The rule of a field; `instead` takes the place of what may not be seen."""

    by: Rule
    instead: str | Kept | None = Kept.KIND


Everyone = Annotated[T, Seen(Rule.EVERYONE)]
Readers = Annotated[T, Seen(Rule.READERS, None)]
Names = Annotated[T, Seen(Rule.NAMES)]
People = Annotated[T, Seen(Rule.PEOPLE)]
OwnItems = Annotated[T, Seen(Rule.OWN_ITEMS)]
EachItem = Annotated[T, Seen(Rule.EACH)]
Made = Annotated[T, Seen(Rule.MADE)]
OrNone = Annotated[T, Seen(Rule.OWNERS, None)]
OrEmpty = Annotated[T, Seen(Rule.OWNERS, "")]
EventText = Annotated[T, Seen(Rule.MADE, OF_OTHERS)]
"""A sentence about an event, made from its parts; of an event of others it says just that."""
Namespace = Annotated[str, Seen(Rule.NAMESPACE)]
Namespaces = Annotated[tuple[str, ...], Seen(Rule.NAMESPACES)]
