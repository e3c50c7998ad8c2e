"""An event with three versions, for tests of how older versions are read.

No event of today has more than one. This `PodGone` replaces the real one: `reason` was optional at
first, then required and joined by `exit_code`, and is called `why` now."""

from typing import Any

from apportion_schemas import PodGone as PodGoneOfToday
from apportion_schemas.catalogue import BY_PAYLOAD, EventType, Older
from apportion_schemas.quantities import Name, Payload, Text

UNTOLD = "not told"
NO_CODE = -1


def _first() -> type[Payload]:
    class PodGone(Payload, frozen=True):
        """Version 1."""

        uid: Name
        reason: Text = ""

    return PodGone


def _second() -> type[Payload]:
    class PodGone(Payload, frozen=True):
        """Version 2: the reason is required, and there is an exit code."""

        uid: Name
        reason: Text
        exit_code: int

    return PodGone


class PodGone(Payload, frozen=True):
    """Version 3: the reason has another name."""

    uid: Name
    why: Text
    exit_code: int


def _lift_first(told: dict[str, Any]) -> dict[str, Any]:
    return {"reason": UNTOLD, **told, "exit_code": NO_CODE}


def _lift_second(told: dict[str, Any]) -> dict[str, Any]:
    told["why"] = told.pop("reason")
    return told


FIRST, SECOND = Older(_first(), _lift_first), Older(_second(), _lift_second)
ROW: EventType = BY_PAYLOAD[PodGoneOfToday]._replace(payload=PodGone, older=(FIRST, SECOND))
"""The row of the catalogue with all three versions."""
