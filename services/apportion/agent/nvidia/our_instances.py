"""Which MIG instances of this node its agent made: only these may be used, cleared or destroyed.

People and NVIDIA's mig-manager make instances too, and an idle one may be about to be used. An
instance has no mark of its maker, and the same place on the same card gives the same id again, so
the maker is known from this book alone. Invariants: an instance is in the book before it exists,
so a death in between leaves none that is forgotten; and a book of an earlier boot claims nothing,
because every instance ends with the boot.
"""

from __future__ import annotations

from apportion.agent.boot_book import BootBook
from apportion_schemas import MigInstance


class OurInstances:
    """The instances that this agent made, by card; without a book those of this process."""

    def __init__(self, book: BootBook[MigInstance] | None = None) -> None:
        self._book = book
        self._made = {} if book is None else dict(book.entries)

    @property
    def kept(self) -> bool:
        """Whether there is a book. Without one this agent hands nothing out, so it knows none."""
        return self._book is not None

    def made(self, card: str, cut: MigInstance) -> bool:
        """Return whether this agent made the instance."""
        return self._made.get(_name(card, cut)) == cut

    def note(self, card: str, cut: MigInstance) -> None:
        """Note that the instance is about to be made. Raises OSError, and then it is not noted."""
        if self._book is not None:
            self._book.note(_name(card, cut), cut)
        self._made[_name(card, cut)] = cut

    def strike(self, card: str, cut: MigInstance) -> None:
        """Note that the instance does not exist any more. Raises OSError."""
        if self._book is not None:
            self._book.strike(_name(card, cut))
        self._made.pop(_name(card, cut), None)

    def of(self, card: str) -> list[MigInstance]:
        """Return what is noted of the card."""
        return [cut for name, cut in list(self._made.items()) if name.startswith(f"{card}/")]


def _name(card: str, cut: MigInstance) -> str:
    return f"{card}/{cut.profile}/{cut.start}"
