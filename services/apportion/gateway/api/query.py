"""What a request may ask for: every parameter has a limit, and a wrong one is named.

Invariant: a parameter that nobody knows is an error, so a typing mistake never widens an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from apportion.core.explain.answers import ErrorAnswer
from apportion.core.explain.views import REFUSED, REJECTED
from apportion.core.ledger.state import Phase
from apportion_schemas.quantities import NAME_MAX

LIMIT_DEFAULT = 500
LIMIT_MAX = 1_000
WAIT_DEFAULT_S = 5.0
WAIT_MAX_S = 30.0
REVISION_MAX = 1 << 53
PHASES = (*(phase.value for phase in Phase), REFUSED, REJECTED)
WAITING = ("at_least", "wait_s")
"""What every question may have."""
COMMON = (*WAITING, "at")
"""What one about a moment may have."""
LIST = (*COMMON, "limit", "continue")


class RequestRefused(Exception):
    """A request that gets an error for an answer, with this HTTP status.

    `retry_after_s`: asked again after so long it may well get another one. An error that begins
    with the field's name is given as its `rest`. See `ErrorAnswer` for `code`.
    """

    def __init__(
        self, status: int, error: str = "", *, field: str = "", rest: str = "", fix: str = "",
        code: str = "", retry_after_s: int = 0,
    ) -> None:  # fmt: skip
        error = error or f"{field}{rest}"
        super().__init__(error)
        self.status = status
        self.retry_after_s = retry_after_s
        self.answer = ErrorAnswer(error=error, field=field, fix=fix, code=code, rest=rest)


class Wait(Struct, frozen=True):
    """Answer only from `at_least` this revision on, and wait so long for it."""

    at_least: int = 0
    wait_s: float = WAIT_DEFAULT_S


class ListQuery(Struct, frozen=True):
    """Which items, how many, and behind which one to go on."""

    limit: int = LIMIT_DEFAULT
    after: str = ""
    namespace: str = ""
    phase: str = ""
    node: str = ""

    @property
    def after_revision(self) -> int:
        """`after`, for lists that are ordered by revision. Raises RequestRefused."""
        if not self.after:
            return 0
        return whole("continue", self.after, most=REVISION_MAX)


def wait_of(query: Mapping[str, str]) -> Wait:
    """The parameters that every request may have. Raises RequestRefused."""
    at_least = query.get("at_least")
    wait_s = query.get("wait_s")
    return Wait(
        at_least=whole("at_least", at_least, most=REVISION_MAX) if at_least is not None else 0,
        wait_s=_seconds("wait_s", wait_s) if wait_s is not None else WAIT_DEFAULT_S,
    )


def list_of(query: Mapping[str, str], filters: Iterable[str] = ()) -> ListQuery:
    """The parameters of a list with these filters. Raises RequestRefused."""
    only(query, (*LIST, *filters))
    limit = query.get("limit")
    phase = query.get("phase", "")
    if phase and phase not in PHASES:
        raise RequestRefused(
            400, field="phase", rest=f" is {phase!r}", fix=f"use one of {', '.join(PHASES)}"
        )
    return ListQuery(
        limit=whole("limit", limit, least=1, most=LIMIT_MAX) if limit is not None
        else LIMIT_DEFAULT,
        after=text_of("continue", query.get("continue", "")),
        namespace=text_of("namespace", query.get("namespace", "")),
        phase=phase,
        node=text_of("node", query.get("node", "")),
    )  # fmt: skip


def fleet_of(query: Mapping[str, str]) -> tuple[int, int]:
    """Behind which revision, and which sample, the fleet is wanted; -1 and 0 for all of it.

    Raises RequestRefused.
    """
    only(query, (*COMMON, "after", "heard"))
    after, heard = query.get("after"), query.get("heard")
    return (
        whole("after", after, most=REVISION_MAX) if after is not None else -1,
        whole("heard", heard, most=REVISION_MAX) if heard is not None else 0,
    )


def only(query: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise RequestRefused for a parameter that is not among these."""
    for name in query:
        if name not in known:
            raise RequestRefused(
                400,
                f"parameter {name[:NAME_MAX]!r} is not known here",
                field=name[:NAME_MAX],
                fix=f"use {', '.join(known)}",
            )


def whole(field: str, text: str, *, least: int = 0, most: int) -> int:
    """A whole number within bounds. Raises RequestRefused."""
    fix = f"a whole number from {least} to {most}"
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        raise RequestRefused(400, field=field, rest=f" is {text[:NAME_MAX]!r}", fix=fix)
    number = int(text)
    if not least <= number <= most:
        raise RequestRefused(400, field=field, rest=f" is {number}", fix=fix)
    return number


def _seconds(field: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_MAX_S:
        raise RequestRefused(
            400,
            field=field,
            rest=f" is {text[:NAME_MAX]!r}",
            fix=f"seconds from 0 to {WAIT_MAX_S:g}",
        )
    return seconds


def text_of(field: str, text: str) -> str:
    """A text of bounded length. Raises RequestRefused."""
    if len(text) > NAME_MAX:
        raise RequestRefused(
            400,
            f"{field} has {len(text)} characters",
            field=field,
            fix=f"at most {NAME_MAX} characters",
        )
    return text
