"""A port of this machine that is kept for a server from before that begins.

A port that was free a moment ago may be anybody's by the time a service begins: even the source of
a connection. Invariant: while it is held the kernel gives it to nobody who asks for any port.
"""

from __future__ import annotations

import socket


class HeldPort:
    """At most one port at a time, bound with SO_REUSEADDR and not listened on.

    A server that sets SO_REUSEADDR as well, as asyncio's do, can listen there meanwhile (see
    socket(7)). `port` is 0 until one was taken.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = 0

    def take(self) -> str:
        """Hold another port than before; returns its address, as a service is told of it.

        Raises OSError where there is no port or descriptor left.
        """
        another = socket.socket()
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        another.bind(("127.0.0.1", 0))
        self.release()  # after: not the same again
        self._socket = another
        host, self.port = another.getsockname()
        return f"{host}:{self.port}"

    def release(self) -> None:
        """From now on anybody may be given it."""
        if self._socket is not None:
            self._socket.close()
