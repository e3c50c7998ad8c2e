"""Requests under way over one connection, and every way in which one of them ends.

Invariant: each ends once: by its reply, by the server's word that it is forbidden, or with the
connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from apportion.runtime.jetstream.wire import LostReply, Message


class _Waiting:
    """One request under way and the subjects whose refusal ends it."""

    __slots__ = ("reply", "subjects")

    def __init__(self, subjects: frozenset[str]) -> None:
        self.subjects = subjects
        self.reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class Asked:
    """The requests of one connection; each is told from the others by a token."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._tokens = itertools.count(1)

    @contextmanager
    def one(self, subjects: frozenset[str]) -> Iterator[tuple[str, asyncio.Future[Message]]]:
        """One more, for the length of a `with`: its token, and what becomes of it."""
        token = str(next(self._tokens))
        waiting = self._waiting[token] = _Waiting(subjects)
        try:
            yield token, waiting.reply
        finally:
            del self._waiting[token]

    async def arrived(self, message: Message) -> None:
        """A reply, whose subject ends with the token."""
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None and not waiting.reply.done():
            waiting.reply.set_result(message)

    def lose(self, why: str) -> None:
        """No reply comes any more: whether any was carried out is not known."""
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(LostReply(why))

    def forbid(self, subject: str, failure: Callable[[str], Exception]) -> None:
        """The server forbids it; the client library hands subjects over in lower case."""
        for waiting in self._waiting.values():
            for forbidden in waiting.subjects:
                if forbidden.lower() == subject and not waiting.reply.done():
                    waiting.reply.set_exception(failure(forbidden))
