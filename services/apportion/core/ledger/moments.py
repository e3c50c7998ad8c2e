"""Convert between RFC 3339 times and microseconds since 1970, without a clock.

Invariant: `text_of(micros_of(text))` names the same point in time as `text`, to the microsecond."""

import re
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000
HOUR: Final = 3_600 * SECOND
DAY: Final = 24 * HOUR
_MATCH = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))"
).fullmatch


def micros_of(text: str) -> int | None:
    """Return the time in microseconds, or None if `text` is not an RFC 3339 time."""
    match = _MATCH(text)
    if match is None:
        return None
    date, hour, minute, second, part, sign, off_hours, off_minutes = match.groups()
    day = _day_of(date)
    if day is None or int(hour) > 23 or int(minute) > 59 or int(second) > 60:  # noqa: PLR2004
        return None
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign:
        away = int(off_hours) * 3600 + int(off_minutes) * 60
        seconds += away if sign == "-" else -away
    return day * DAY + seconds * SECOND + int((part or "0")[:6].ljust(6, "0"))


def text_of(micros: int) -> str:
    """Format microseconds since 1970 as RFC 3339 in UTC; a fraction of zero is left out."""
    day, rest = divmod(micros, DAY)
    seconds, part = divmod(rest, SECOND)
    fraction = f".{part:06d}" if part else ""
    return (
        f"{_date_of(day)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        f"{fraction}Z"
    )


# Both count years that begin in March, so that the leap day is a year's last; 400 years have
# 146,097 days, and day 0 is 1970-01-01.


@lru_cache(maxsize=512)
def _day_of(date: str) -> int | None:
    year, month, day = map(int, date.split("-"))
    if not 1 <= month <= 12 or not 1 <= day <= 31:  # noqa: PLR2004
        return None
    year -= month <= 2  # noqa: PLR2004
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@lru_cache(maxsize=512)
def _date_of(day: int) -> str:
    era, of_era = divmod(day + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    shown = month + 3 if month < 10 else month - 9  # noqa: PLR2004
    year += era * 400 + (shown <= 2)  # noqa: PLR2004
    return f"{year:04d}-{shown:02d}-{of_year - (153 * month + 2) // 5 + 1:02d}"
