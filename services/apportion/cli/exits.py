"""Exit codes: one for each way in which a verb can end.

    0   done
    1   something was refused or not found; the rest was done
    2   wrong usage
    3   the ledger or the gateway is unreachable, or denies access
    4   a newer build wrote something that this one cannot read: upgrade
    5   not now: the planned or drained pods would be pending
    6   never: a planned pod cannot fit on this fleet
    70  internal error
    78  invalid service setting
    130 interrupted by Ctrl-C

Invariant: a user sees a traceback only with APPORTION_TRACEBACK=1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from apportion.core.answers.reads import ErrorAnswer

REFUSED = 1
USAGE = 2
UNREACHABLE = 3
OUTDATED = 4
NOT_NOW = 5
NEVER = 6
INTERNAL = 70
INTERRUPTED = 130  # as shells report SIGINT


class NotFound(click.ClickException):
    """Not there, or refused by the ledger; `answer` is the gateway's, if it was asked."""

    exit_code = REFUSED

    def __init__(self, message: str, answer: ErrorAnswer | None = None) -> None:
        super().__init__(message)
        self.answer = answer

    @property
    def code(self) -> str:
        """The code of the gateway's answer, or empty."""
        return self.answer.code if self.answer is not None else ""


class Wrong(click.ClickException):
    """The request itself is wrong."""

    exit_code = USAGE


class Unreachable(click.ClickException):
    """The ledger or the gateway does not answer."""

    exit_code = UNREACHABLE


class NotLetIn(Unreachable):
    """The gateway requires a login, or denies access."""


class Outdated(click.ClickException):
    """The answer depends on events of a newer build."""

    exit_code = OUTDATED
