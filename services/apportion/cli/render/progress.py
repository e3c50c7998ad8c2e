"""How far a verb is that reads a lot, on a terminal: a pipe has no use for it."""

from __future__ import annotations

from collections.abc import Callable

from apportion.cli.render.output import console


def progress(last: int, what: str = "revision") -> Callable[[int], None]:
    """Tell a number, of `last` where that is known (not 0), on one line of standard error."""
    out = console(stderr=True)

    def tell(number: int) -> None:
        if out.is_terminal:
            share = f" of {last:,}" if last else ""
            out.print(f"{what} {number:,}{share}", end="\r")

    return tell
