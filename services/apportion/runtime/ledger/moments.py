"""Parses points in time as users write them: times, dates, ages or revisions.

Times without a zone are in UTC. Parsing needs no clock and no ledger."""

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# what a user may write, for messages and help
FORMS = (
    "a time of day such as 14:20 or 14:20:07, an age such as -10m (s, m, h, d), a date and time "
    "such as 2026-11-20T03:00 (UTC unless it has a zone), now, or a revision such as 1200"
)
MOMENT_CHARS_MAX = 40
REVISION_MAX = 1 << 53
_AGO = re.compile(r"-(\d{1,9})([smhd])")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
# a zone with a space for its plus, as URLs decode a bare `+`
_PLUS_LOST = re.compile(r"(\d{4}-\d{2}-\d{2}[T ]\S+) (\d{2}:?\d{2})")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class MomentError(ValueError):
    """Error: the text is not a usable point in time. `fix` has the remedy."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


class Moment(NamedTuple):
    """A point in the ledger's history: either a revision or a time."""

    revision: int | None = None
    time: datetime | None = None


def parse_moment(text: str, now: datetime) -> Moment:
    """Parse `text` relative to the time `now`. Raises MomentError, also for future times."""
    shown = text[:MOMENT_CHARS_MAX]
    if len(text) > MOMENT_CHARS_MAX:
        raise MomentError(f"{shown!r}... is too long to be a time or a revision", f"use {FORMS}")
    if text.isascii() and text.isdecimal():
        revision = int(text)
        if not 1 <= revision <= REVISION_MAX:
            raise MomentError(
                f"revision {revision} does not exist",
                f"use a revision from 1, the beginning of the ledger, to {REVISION_MAX}",
            )
        return Moment(revision=revision)
    try:
        time = _time(text, now)
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise MomentError(f"{shown!r} is not a time", f"use {FORMS}")
    if time > now:
        raise MomentError(
            f"{shown!r} is in the future; it is now {shown_time(now)}",
            "give a past time, or omit it to read the present",
        )
    return Moment(time=time)


def is_relative(text: str) -> bool:
    """Return True if `text` depends on the present: an age such as -10m, a time of day, or now."""
    return text == "now" or bool(_AGO.fullmatch(text) or _CLOCK.fullmatch(text))


def shown_time(time: datetime) -> str:
    """Format a time for messages: in UTC, to the second."""
    return time.astimezone(UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def _time(text: str, now: datetime) -> datetime | None:
    if text == "now":
        return now
    if ago := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    if clock := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        today = now.astimezone(UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
        return today if today <= now else today - timedelta(days=1)
    if _DATE.fullmatch(text):
        time = datetime.fromisoformat(_PLUS_LOST.sub(r"\1+\2", text))
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    return None
