"""Times and lengths of time as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from apportion.core.explain.health import moment

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def clock(time: str, now: datetime | None = None) -> str:
    """The time of an event, as in `2026-05-01T12:00:00Z`; without the date where that is today's.

    Today is that of UTC, as all times are. Empty without a time.
    """
    today = (now or datetime.now(UTC)).date().isoformat()
    return moment(time).removeprefix(f"{today}T") if time else ""


def between(seconds: float) -> str:
    """The time between two facts, as in `+2h05m`, `+13s` or `+0.2s`."""
    if round(seconds, 1) == 0:
        return "+0.0s"
    if seconds < 0:
        return f"-{between(-seconds)[1:]}"
    if seconds < 10:  # noqa: PLR2004 - seconds that are told apart by a tenth
        return f"+{seconds:.1f}s"
    whole = int(seconds)
    for place, (size, unit) in enumerate(_STEPS):
        if whole >= size:
            smaller, name = _STEPS[place + 1] if place + 1 < len(_STEPS) else (1, "s")
            return f"+{whole // size}{unit}{whole % size // smaller:02}{name}"
    return f"+{whole}s"
