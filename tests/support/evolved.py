"""An event with three versions, for tests of how older versions are read.

This `PodGone` replaces the real one. Version 1 has an optional `reason`, version 2 requires it and
adds `exit_code`, and version 3 renames `reason` to `why`."""

from typing import Any

from apportion_schemas import PodGone as PodGoneOfToday
from apportion_schemas.catalogue import BY_PAYLOAD, EventType, Older
from apportion_schemas.quantities import Name, Payload, Text

UNTOLD = "not told"
NO_CODE = -1


def _first() -> type[Payload]:
    class PodGone(Payload, frozen=True):
        """Version 1 of the event, with an optional reason."""

        uid: Name
        reason: Text = ""

    return PodGone


def _second() -> type[Payload]:
    class PodGone(Payload, frozen=True):
        """Version 2 of the event, with a required reason and an exit code."""

        uid: Name
        reason: Text
        exit_code: int

    return PodGone


class PodGone(Payload, frozen=True):
    """Version 3 of the event, in which the reason is called `why`."""

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
