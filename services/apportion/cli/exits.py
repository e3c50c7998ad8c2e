"""Define the exit codes: one for each way in which a verb can fail, and 0 for success.

Invariant: a user sees a traceback only with APPORTION_TRACEBACK=1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from apportion.core.answers.reads import ErrorAnswer

REFUSED = 1  # something was refused or not found; the rest was done
USAGE = 2  # wrong usage
UNREACHABLE = 3  # the ledger or the gateway is unreachable, or denies access
OUTDATED = 4  # a newer build wrote something that this one cannot read: upgrade
NOT_NOW = 5  # the planned or drained pods would be pending
NEVER = 6  # a planned pod cannot fit on this fleet
EXCEEDED = 7  # a replay exceeds the bound of a gate, or cannot measure it
INTERNAL = 70  # internal error; a service ends with 78 on an invalid setting
BY_SIGNAL = 128  # plus the number of the signal, as shells report it
INTERRUPTED = 130  # by Ctrl-C, as shells report SIGINT


class NotFound(click.ClickException):
    """The error for a missing object or a refused write. `answer` is the gateway's error."""

    exit_code = REFUSED

    def __init__(self, message: str, answer: ErrorAnswer | None = None) -> None:
        super().__init__(message)
        self.answer = answer

    @property
    def code(self) -> str:
        """Return the error code of the gateway's answer, or ""."""
        return self.answer.code if self.answer is not None else ""


class Wrong(click.ClickException):
    """The error for wrong arguments or options."""

    exit_code = USAGE


class Unreachable(click.ClickException):
    """The error for a ledger or gateway that does not answer."""

    exit_code = UNREACHABLE


class Unanswered(Unreachable):
    """The error for a gateway that sent no answer at all, not even a refusal."""


class NotLetIn(Unreachable):
    """The error for a gateway that requires a login, or denies access."""


class Outdated(click.ClickException):
    """The error for a result that depends on events of a newer build."""

    exit_code = OUTDATED
