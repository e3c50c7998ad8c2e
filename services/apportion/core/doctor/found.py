"""What a check found: in which state it is, in words, and what to do."""

from collections.abc import Sequence
from typing import NamedTuple

from apportion.core.answers.doctor import CheckState
from apportion.core.answers.reads import Part, joined
from apportion.core.explain.text.event_text import LISTED, listed

Words = str | tuple[str | Part, ...]
"""What was found: a sentence, or its parts where it names nodes."""


class Found(NamedTuple):
    """The outcome of one check."""

    state: CheckState
    parts: tuple[str | Part, ...]
    fix: str = ""

    @property
    def words(self) -> str:
        """What was found, in a sentence."""
        return joined(self.parts)


def ok(words: str) -> Found:
    """Nothing to do about it."""
    return Found("ok", (words,))


def soon(words: Words, fix: str) -> Found:
    """Nothing fails today, and it should not stay so."""
    return Found("soon", (words,) if isinstance(words, str) else words, fix)


def unknown(words: str) -> Found:
    """It cannot be looked at as long as another check is broken, which says what to do."""
    return Found("unknown", (f"not known: {words}",))


def broken(words: Words, fix: str) -> Found:
    """Something fails now, or data may be lost."""
    return Found("broken", (words,) if isinstance(words, str) else words, fix)


def counted_nodes(nodes: Sequence[tuple[str, str]], what: str) -> tuple[str | Part, ...]:
    """As `counted`, of nodes with a note behind each."""
    parts: list[str | Part] = [f"{len(nodes):,} {what}{'' if len(nodes) == 1 else 's'}: "]
    for at, (name, note) in enumerate(nodes[:LISTED]):
        parts += [", " if at else "", Part(name=name), note]
    parts.append(f" and {len(nodes) - LISTED:,} more" if len(nodes) > LISTED else "")
    return tuple(part for part in parts if part)


def counted(names: Sequence[str], what: str) -> str:
    """As in `2 nodes: a, b`, with the first few names."""
    return f"{len(names):,} {what}{'' if len(names) == 1 else 's'}: {listed(list(names))}"


def age(seconds: float) -> str:
    """A span of time to one unit, as in `3 min` or `2 days`."""
    for size, unit in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if unit == 'day' and count != 1 else ''}"
    return f"{max(seconds, 0):.0f} s"


def size(count: int) -> str:
    """Bytes in the largest unit of which there is one."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):,.1f} {unit}"
    return f"{count} B"
