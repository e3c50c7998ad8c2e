"""How a verb ends: one exit code for each kind of end, and one line that says what to do.

    0   done
    1   something was refused or not found; the rest was done
    2   wrong usage
    3   the ledger or the gateway cannot be reached, or does not let us
    4   a newer build wrote what this one cannot read: upgrade it
    5   not now: what was planned would wait, or what was drained waits for a place
    6   never: what was planned can have no place on this fleet
    70  internal error
    78  a setting of a service is wrong
    130 stopped by Ctrl-C before its end

Invariant: no traceback reaches a person who did not ask for it with APPORTION_TRACEBACK=1."""

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
INTERRUPTED = 130
"""As a shell says of what SIGINT ended."""


class NotFound(click.ClickException):
    """What was asked for is not there, or the ledger refused it.

    `answer` is the gateway's, where it was asked."""

    exit_code = REFUSED

    def __init__(self, message: str, answer: ErrorAnswer | None = None) -> None:
        super().__init__(message)
        self.answer = answer

    @property
    def code(self) -> str:
        """The code of the gateway's answer; empty where there is none."""
        return self.answer.code if self.answer is not None else ""


class Wrong(click.ClickException):
    """The request itself is wrong."""

    exit_code = USAGE


class Unreachable(click.ClickException):
    """The ledger or the gateway does not answer."""

    exit_code = UNREACHABLE


class NotLetIn(Unreachable):
    """The gateway answers, and wants to know who asks, or says that he may not."""


class Outdated(click.ClickException):
    """The ledger holds events of a newer build, and the answer hangs on them."""

    exit_code = OUTDATED
