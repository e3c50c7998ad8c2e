"""Translates points in time in requests to revisions.

Invariant: the refusal of an invalid point in time names field, value and fix."""

from collections.abc import Callable
from datetime import datetime

from apportion.gateway.api.query import RequestRefused
from apportion.gateway.past.past import Past
from apportion.runtime.ledger.moments import FORMS, MomentError, parse_moment, shown_time

NOT_FOUND = 404


def asked_for(text: str, revision: int) -> str:
    """Format a point in time as the user wrote it, with its revision. An empty `text` means now."""
    words = text or "now"
    return f"revision {revision}" if words == str(revision) else f"{words} (revision {revision})"


class Moments:
    """Resolves points in time for one ledger; `now` returns the current time."""

    def __init__(self, past: Past, now: Callable[[], datetime]) -> None:
        self._past = past
        self._now = now

    async def since(self, field: str, text: str) -> int:
        """Return the revision at a point in time, or 1 if that time is before the first event."""
        try:
            return await self.revision(field, text)
        except RequestRefused as refused:
            first = await self._past.states.beginning()
            if refused.status == NOT_FOUND and first == 1 and not text.isdecimal():
                return first
            raise

    async def revision(self, field: str, text: str) -> int:
        """Return the revision that `text` names, or the newest one at or before the time in it.

        `field` is the parameter named in errors. Raises RequestRefused, LedgerError."""
        if not text:
            raise RequestRefused(400, field=field, rest=" is missing", fix=f"use {FORMS}")
        try:
            moment = parse_moment(text, self._now())
        except MomentError as error:
            raise RequestRefused(400, field=field, rest=f": {error}", fix=error.fix) from None
        _, last = await self._past.chronicle.span()
        first = await self._past.states.beginning()
        if moment.revision is not None:
            if moment.revision > last:
                rest = f" is revision {moment.revision}, but the ledger ends at {last}"
                fix = f"use a revision from {first} to {last}, or omit it to read the present"
                raise RequestRefused(404, field=field, rest=rest, fix=fix)
            revision = moment.revision
        else:
            assert moment.time is not None  # noqa: S101 - one of the two is there
            revision = await self._past.chronicle.revision_at(moment.time)
        if revision < first:
            began = await self._past.chronicle.time_at(first)
            since = f" ({shown_time(datetime.fromisoformat(began))})" if began else ""
            when = f" ({shown_time(moment.time)})" if moment.time is not None else ""
            older = ", or start the gateway with --archives DIR"
            raise RequestRefused(
                404, field=field,
                rest=f" is {text!r}{when}, before the oldest known revision, {first}{since}",
                fix=f"use a later time{older if first > 1 else ''}",
            )  # fmt: skip
        return revision
