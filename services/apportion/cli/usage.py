"""Wrong usage that comes of other tools and of haste, and what is meant by it.

Invariant: nothing is guessed and done: wrong usage stays wrong, and is answered with what to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

SAY_WHY: Final = "give --reason; say why, whoever asks later will want to know"


def hinting(*, argument: str = "", options: Mapping[str, str] | None = None) -> type[click.Command]:
    """A command that takes no arguments, and what to write in place of some that are given.

    `argument` is of the first one, as `{}`; `options` has what is meant by those that there are
    not.
    """

    class Hinting(click.Command):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            """See click."""
            ctx.allow_extra_args = True
            try:
                extra = super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                meant = (options or {}).get(error.option_name)
                if meant is None:
                    raise
                said = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
                raise click.NoSuchOption(error.option_name, said, ctx=ctx) from None
            if extra and not ctx.resilient_parsing:
                hint = f"; write {argument.format(extra[0])}" if argument else ""
                ctx.fail(f"Got unexpected extra argument ({extra[0]}){hint}")
            return extra

    return Hinting


def once(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """What was given of an option that takes one value: of several the last would hide the others.

    A callback of an option that is `multiple`.
    """
    if len(given) > 1:
        raise click.BadParameter(f"given {len(given)} times, and one is shown at a time")
    return given[0] if given else None


def reasoned(_context: click.Context, _option: click.Parameter, given: str) -> str:
    """A reason that says something. A callback of an option whose default is nothing: click's own
    words for one that is missing do not say what it is for.
    """
    if not given.strip():
        raise click.UsageError(SAY_WHY)
    return given
