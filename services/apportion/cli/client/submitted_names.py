"""What pods are called that were submitted before the first event that is shown.

An event of a pod names it by its uid alone. Invariant: whoever shows an event waits for the name,
so no more is read meanwhile than can be shown; and a ledger that does not answer is asked no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import TimeoutError as TookTooLong
from functools import lru_cache
from typing import Self

from apportion.cli.client.connection import Where
from apportion.core.ledger.rules import Rules
from apportion.runtime.jetstream import client, stream
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.port import SUBJECT_PREFIX, LedgerError
from apportion_schemas import EventError, PodRejected, PodSubmitted
from apportion_schemas.catalogue import token

ANSWER_S = 5.0
NAMES_KEPT = 100_000


class SubmittedNames:
    """Asks by a connection and a thread of its own, from the first name on, within a `with`."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._ledger: JetStreamLedger | None = None
        self._rules = Rules()
        self._answers = True
        self.find = lru_cache(NAMES_KEPT)(self._find)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ledger is not None:
            closing = asyncio.run_coroutine_threadsafe(self._ledger.close(), self._loop)
            with contextlib.suppress(TookTooLong):
                closing.result(ANSWER_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)

    def _find(self, uid: str) -> str:
        """Its name, as `namespace/name`; empty where the ledger does not have it, or is away."""
        if not self._answers:
            return ""
        asked = asyncio.run_coroutine_threadsafe(self._ask(uid), self._loop)
        try:
            return asked.result(ANSWER_S)
        except (LedgerError, TookTooLong):
            self._answers = False
            asked.cancel()
            return ""

    async def _ask(self, uid: str) -> str:
        if self._ledger is None:
            self._ledger = await client.connect(self._where.reach(), name="apportion cli names")
            self._rules = await stream.read_rules(self._ledger.wire)
        subject = f"{SUBJECT_PREFIX}workload.{token(uid)}"
        record = await stream.oldest_on(self._ledger.wire, subject)
        with contextlib.suppress(EventError):
            event = record and self._rules.read(record.revision, record.subject, record.payload)
            if event and isinstance(event.data, PodSubmitted | PodRejected):
                return f"{event.data.namespace}/{event.data.name}"
        return ""
