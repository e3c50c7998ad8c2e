"""Moments on the command line: one option for every verb that reads, resolved once.

Invariant: all pages of one answer are of one revision, whatever happens while they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from apportion.cli.asking import Gateway
from apportion.cli.output import console
from apportion.core.explain.health import moment
from apportion.core.explain.past_answers import MomentAnswer

FORMS = "14:20, -10m, 2026-11-20T03:00 (UTC) or a revision"
AT = click.option("--at", metavar="MOMENT", help=f"As it was then: {FORMS}.")


def pinned(gateway: Gateway, query: Mapping[str, Any]) -> dict[str, Any]:
    """The query without what is not given; its `at` as the revision that it means.

    Says on standard error which that is. Raises NotFound, Wrong, Unreachable.
    """
    asked = {name: value for name, value in query.items() if value is not None}
    if "at" in asked:
        meant = gateway.ask("moment", answer=MomentAnswer, query={"at": asked["at"]})
        asked["at"] = meant.revision
        words = f"as of revision {meant.revision}, {moment(meant.time)}"
        console(stderr=True).print(words, style="dim")
    return asked
