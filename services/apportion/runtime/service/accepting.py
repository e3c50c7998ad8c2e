"""Connections over TLS: each has its place among its client's before a word of TLS is spoken.

asyncio tells a protocol of a connection once its handshake is done, so half a handshake would hold
a socket that counts for nobody. Here a connection is counted when it is accepted. Invariants: one
client's connections, with those that shake hands, are as many as its part; a place is given back
however a handshake ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from ssl import SSLContext

from apportion.runtime.process.config import Address
from apportion.runtime.service.connections import Connections, Watched

AGAIN_S = 1.0
"""After so long it is tried again, where the system has no more sockets for us."""
_log = logging.getLogger(__name__)


class TlsListener:
    """Listens from `start` to `close`; `made` makes the protocol of each connection."""

    def __init__(
        self, tls: SSLContext, connections: Connections, made: Callable[[], asyncio.Protocol]
    ) -> None:
        self._tls = tls
        self._connections = connections
        self._made = made
        self.sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: Address, *, backlog: int) -> None:
        """Listen at all addresses of the host. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, where in dict.fromkeys(found):
                self.sockets.append(socket.create_server(where, family=family, backlog=backlog))
                self.sockets[-1].settimeout(0)
        except OSError:
            self.close()
            raise
        for listening in self.sockets:
            self._begin(self._accept(listening))

    def close(self) -> None:
        """Listen no more, and end what shakes hands; connections that are made stay."""
        for task in self._tasks:
            task.cancel()
        for listening in self.sockets:
            listening.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionAbortedError:  # it left before we came
                continue
            except OSError as error:
                _log.warning("no connection is accepted: %s; trying again", error)
                await asyncio.sleep(AGAIN_S)
                continue
            watched = Watched(self._made(), self._connections)
            if watched.admit(peer):
                self._begin(self._shake_hands(accepted, watched))
            else:
                accepted.close()

    async def _shake_hands(self, accepted: socket.socket, watched: Watched) -> None:
        loop, seconds = asyncio.get_running_loop(), self._connections.limits.head_s
        try:
            await loop.connect_accepted_socket(
                lambda: watched, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            watched.release()
            if isinstance(error, ConnectionAbortedError):  # by us: it took too long
                why = f"its TLS handshake was not done after {seconds:g} s"
                self._connections.ended(watched.address, why)
        except BaseException:
            watched.release()
            raise
