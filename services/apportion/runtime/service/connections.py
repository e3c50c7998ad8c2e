"""The connections of one HTTP surface: counted, and ended where a request does not become whole.

aiohttp waits for the head of a first request, and for a body, as long as a client likes. So each of
its protocols is held by one of ours, which passes on what comes and looks at the clock.

Invariants: a connection has one deadline at a time, but while a request is being answered; a client
that sends half a request holds a connection for `head_s` and `body_s` at most.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import OrderedDict
from typing import Any

from aiohttp import web

from apportion.runtime.service.limits import KNOWN_CLIENTS_MAX, AtOnce, Limits, TooMany, client_of

SAID_EVERY_S = 10.0
_log = logging.getLogger(__name__)


class _Phase(enum.Enum):
    HEAD = "the head of its request was not whole"
    BODY = "the body of its request was not whole"
    BUSY = ""
    IDLE = "it asked for nothing, or did not read its answer,"


class Connections:
    """All connections of one surface."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.at_once = AtOnce(limits.connections, each=limits.connections_each)
        self.watched: dict[asyncio.BaseTransport, Watched] = {}
        self._silent: OrderedDict[str, None] = OrderedDict()
        self._ended = 0
        self._said_s = 0.0

    def ended(self, address: str, why: str) -> None:
        """Tell of a connection that we ended; of many at once, how many."""
        self._ended += 1
        now = time.monotonic()
        if now - self._said_s >= SAID_EVERY_S:
            more = f" ({self._ended - 1} more before it)" if self._ended > 1 else ""
            _log.warning("a connection from %s was ended: %s%s", address, why, more)
            self._ended, self._said_s = 0, now

    def silent(self, address: str, seconds: float) -> None:
        """Tell once of a client of whose connections one was ended on which nothing had come.

        Browsers open some ahead of what they may ask: that is no sign of trouble.
        """
        if address not in self._silent:
            _log.debug("a connection from %s was ended: silent for %g s", address, seconds)
        self._silent[address] = None
        if len(self._silent) > KNOWN_CLIENTS_MAX:
            self._silent.popitem(last=False)

    def of(self, request: web.BaseRequest) -> Watched | None:
        """The connection that a request came over; None where it is gone."""
        return None if request.transport is None else self.watched.get(request.transport)


class Watched(asyncio.Protocol):
    """One connection, in front of aiohttp's protocol for it."""

    def __init__(self, handler: asyncio.Protocol, connections: Connections) -> None:
        self._handler = handler
        self._connections = connections
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase = _Phase.HEAD
        self._has_place = False
        self._heard = False
        self.address = ""

    def admit(self, peer: object) -> bool:
        """Take a place for the client at this address of a socket, and say whether there was one.

        It is given back when the connection is lost, or by `release` where it was never made.
        """
        self.address = client_of(str(peer[0])) if isinstance(peer, tuple) else "local"
        try:
            self._connections.at_once.enter(self.address)
        except TooMany as many:
            whose = f"{self.address} has" if many.of_client else "there are"
            self._connections.ended(self.address, f"{whose} {many.count} connections already")
            return False
        self._has_place = True
        return True

    def release(self) -> None:
        """Give the place back, if there is one."""
        if self._has_place:
            self._has_place = False
            self._connections.at_once.leave(self.address)

    def connection_made(self, transport: Any) -> None:
        """Hand it on, unless there are too many."""
        if not self._has_place and not self.admit(transport.get_extra_info("peername")):
            transport.abort()
            return
        self._transport = transport
        self._connections.watched[transport] = self
        self._handler.connection_made(transport)
        self._enter(_Phase.HEAD)

    def data_received(self, data: bytes) -> None:
        """Hand it on; the first byte of a request sets its deadline."""
        if self._transport is None:
            return
        self._heard = True
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEAD)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Tell aiohttp that the client sends nothing more."""
        return self._handler.eof_received() if self._transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand it on, and forget it."""
        self.release()
        if self._transport is None:
            return
        self._stop_timer()
        del self._connections.watched[self._transport]
        self._transport = None
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell aiohttp that the client does not read as fast as it writes."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Tell aiohttp that the client has read on."""
        self._handler.resume_writing()

    def began(self, request: web.BaseRequest) -> None:
        """The head of a request is whole; its body may not be."""
        if request.content.is_eof():
            self._enter(_Phase.BUSY)
        else:
            self._enter(_Phase.BODY)
            request.content.on_eof(self._whole)

    def _whole(self) -> None:
        if self._phase is _Phase.BODY:
            self._enter(_Phase.BUSY)

    def answered(self) -> None:
        """The request has its answer, which may still have to be read.

        Whose body nobody wanted has still to send it in time.
        """
        if self._phase is not _Phase.BODY:
            self._enter(_Phase.IDLE)

    def _enter(self, phase: _Phase) -> None:
        self._stop_timer()
        self._phase = phase
        limits = self._limits
        seconds = {_Phase.HEAD: limits.head_s, _Phase.BODY: limits.body_s}.get(phase, limits.idle_s)
        if phase is not _Phase.BUSY and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._late, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, seconds: float) -> None:
        if self._transport is None:
            return
        if not self._heard:
            self._connections.silent(self.address, seconds)
        elif self._phase is not _Phase.IDLE:
            why = f"{self._phase.value} after {seconds:g} s"
            self._connections.ended(self.address, why)
        self._transport.abort()
