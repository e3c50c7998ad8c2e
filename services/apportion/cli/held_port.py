"""A port of this machine that is kept for a server until that listens on it.

A port that was free a moment ago may be anybody's by the time a service begins: even the source of
a connection. Invariant: while it is held the kernel gives it to nobody who asks for any port.
"""

from __future__ import annotations

import socket


class HeldPort:
    """One port, bound with SO_REUSEADDR and not listened on.

    A server that sets SO_REUSEADDR as well, as asyncio's do, can listen there meanwhile (see
    socket(7)). Raises OSError where there is no port or descriptor left.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """As a service is told where to listen."""
        return f"127.0.0.1:{self.port}"

    def release(self) -> None:
        """From now on anybody may be given it."""
        self._socket.close()
