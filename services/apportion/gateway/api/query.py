"""Parses the parameters of requests by the structs that declare them.

A struct declares each parameter once, also for the API reference. Invariant: an undeclared
parameter is an error, so that a typo never widens an answer."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from apportion.core.answers.reads import ErrorAnswer
from apportion_schemas.quantities import NAME_MAX

LIMIT_DEFAULT = 500
LIMIT_MAX = 1_000
WAIT_DEFAULT_S = 5.0
WAIT_MAX_S = 30.0
REVISION_MAX = 1 << 53


class RequestRefused(Exception):
    """Error: the request is refused, with an HTTP status.

    Without `error`, the message is `field` followed by `rest`."""

    def __init__(
        self, status: int, error: str = "", *, field: str = "", rest: str = "", fix: str = "",
        code: str = "", retry_after_s: int = 0,
    ) -> None:  # fmt: skip
        error = error or f"{field}{rest}"
        super().__init__(error)
        self.status = status
        self.retry_after_s = retry_after_s
        self.answer = ErrorAnswer(error=error, field=field, fix=fix, code=code, rest=rest)


class Query(Struct, frozen=True, kw_only=True):
    """The base of all query structs, and the query of an endpoint without parameters."""


class WaitQuery(Query, frozen=True, kw_only=True):
    """The parameters that every request may have."""

    at_least: Annotated[
        int, Meta(ge=0, le=REVISION_MAX, description="Wait until the gateway has read this "
                  "revision; 408 on timeout."),
    ] = 0  # fmt: skip
    wait_s: Annotated[
        float, Meta(ge=0, le=WAIT_MAX_S, description="Timeout of `at_least` in seconds.")
    ] = WAIT_DEFAULT_S


class AtQuery(WaitQuery, frozen=True, kw_only=True):
    """The parameters of a request about a point in time."""

    at: Annotated[
        str, Meta(description="State as of a revision (`1200`), a time (`2026-11-20T03:00`, "
                  "`14:20`), a time ago (`-10m`) or `now`."),
    ] | None = None  # fmt: skip


class PageQuery(AtQuery, frozen=True, kw_only=True):
    """The parameters of a list in pages."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum items per page.")] = (
        LIMIT_DEFAULT
    )
    after: Annotated[
        str,
        Meta(
            max_length=NAME_MAX,
            description="Return the page after a previous page. Use the "
            "value `continue` of that page.",
        ),
    ] = msgspec.field(default="", name="continue")

    @property
    def after_revision(self) -> int:
        """Return `after` as a number, for lists in order of revision. Raises RequestRefused."""
        return whole("continue", self.after, most=REVISION_MAX) if self.after else 0


Read = Callable[[str, str], object]
Q = TypeVar("Q", bound=Query)


def parsed(kind: type[Q], given: Mapping[str, str]) -> Q:
    """Parse a request's parameters as `kind` declares them. Raises RequestRefused."""
    known = _declared(kind)
    for name in given:
        if name not in known:
            field = name[:NAME_MAX]
            error = f"unknown parameter {field!r}"
            raise RequestRefused(400, error, field=field, fix=f"use {', '.join(known)}")
    return kind(**{known[name][0]: known[name][1](name, given[name]) for name in given})


def wait_of(given: Mapping[str, str]) -> WaitQuery:
    """Parse only the parameters that every request may have. Raises RequestRefused."""
    waits = _declared(WaitQuery)
    return parsed(WaitQuery, {name: given[name] for name in given if name in waits})


@cache
def _declared(kind: type[Query]) -> dict[str, tuple[str, Read]]:
    declared = inspect.type_info(kind)
    assert isinstance(declared, inspect.StructType)  # noqa: S101 - a Query is a struct
    return {field.encode_name: (field.name, _reader(field.type)) for field in declared.fields}


def _reader(kind: inspect.Type) -> Read:
    words: Mapping[str, Any] = {}
    if isinstance(kind, inspect.UnionType):
        [kind] = (each for each in kind.types if not isinstance(each, inspect.NoneType))
    if isinstance(kind, inspect.Metadata):
        words, kind = kind.extra_json_schema or {}, kind.type
    match kind:
        case inspect.IntType(ge=least, le=most):
            bounds = {"least": int(least or 0), "most": int(most or REVISION_MAX)}
            return lambda field, text: whole(field, text, **bounds)
        case inspect.FloatType(le=most):
            return lambda field, text: _seconds(field, text, most or 0)
        case _ if "enum" in words:
            return lambda field, text: _one_of(field, text, words["enum"])
        case inspect.StrType(max_length=None):
            return lambda _field, text: text
        case _:
            return text_of


def _wrong(field: str, text: str, fix: str) -> RequestRefused:
    return RequestRefused(400, field=field, rest=f" is {text[:NAME_MAX]!r}", fix=fix)


def whole(field: str, text: str, *, least: int = 0, most: int) -> int:
    """Parse a whole number within these bounds. Raises RequestRefused."""
    fix = f"use a whole number from {least} to {most}"
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        raise _wrong(field, text, fix)
    number = int(text)
    if not least <= number <= most:
        raise RequestRefused(400, field=field, rest=f" is {number}", fix=fix)
    return number


def _seconds(field: str, text: str, most: float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most:
        raise _wrong(field, text, f"use seconds from 0 to {most:g}")
    return seconds


def _one_of(field: str, text: str, words: Iterable[str]) -> str:
    if text and text not in words:
        raise _wrong(field, text, f"use one of {', '.join(words)}")
    return text


def text_of(field: str, text: str) -> str:
    """Check the length of a text. Raises RequestRefused."""
    if len(text) > NAME_MAX:
        error, fix = f"{field} has {len(text)} characters", f"use at most {NAME_MAX}"
        raise RequestRefused(400, error, field=field, fix=fix)
    return text
