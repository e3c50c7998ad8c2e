"""A faster version of the NATS client library. Only this module uses the library.

The test tests/unit/runtime/test_private_members.py lists the private members that this module uses.
Invariant: a message arrives as the library would deliver it."""

import asyncio
import base64
import contextlib
import re
import sys
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Any

from msgspec import Struct

from apportion.runtime.jetstream.wire import Receiver
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.reach import CannotShow, KeyPair
from apportion.runtime.process.tls import ClientTls
from apportion.runtime.process.waiting import end

# The library would import aiohttp for web sockets, which we do not use: 0.1 s of every verb. Hide
# it during this import; modules that serve HTTP can still import it.
_LEAN = "aiohttp" not in sys.modules
if _LEAN:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # makes the import fail
from nats import errors  # noqa: E402
from nats.aio.client import Client, Server  # noqa: E402
from nats.aio.subscription import Subscription  # noqa: E402
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser  # noqa: E402

if _LEAN:
    del sys.modules["aiohttp"]

__all__ = ["Client", "LeavingClient", "Messages", "Server", "Subscription", "Unencrypted", "errors"]

_RECORD_REPLY = b"$JS.ACK."
_MESSAGES = (b"HMSG ", b"MSG ")
_BLANK = re.compile(r"\s")
# a server sends this before it disconnects a client that may reconnect
_ENDED = ("authentication expired", "authentication revoked", "authorization violation")
_PONG_S = 2  # wait for a second pong


class Unencrypted(ConnectionError):
    """Error: the server lacks the required TLS. Nothing was sent to the server."""


class _Arrived(Struct):
    """A received message; see wire.Message. Records of the stream have no headers here."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class Messages(Parser):
    """The client's parser of received data, with a fast path for complete messages."""

    _whole = 0  # size in bytes of the incomplete message, where known

    async def parse(self, data: bytes = b"") -> None:
        """Parse the received data; an incomplete message waits until the rest arrives."""
        if self.state == AWAITING_CONTROL_LINE:
            if self.buf and len(self.buf) + len(data) < self._whole:
                self.buf.extend(data)  # parse a large message once, not at every read
                return
            if self.buf:
                data = bytes(self.buf) + data
                self.buf.clear()
            data = data[await self._take(data) :]
            if data.startswith(_MESSAGES):
                self.buf.extend(data)
                return
        await super().parse(data)

    async def _take(self, data: bytes) -> int:
        """Deliver the complete messages at the start of `data`; return their size in bytes."""
        at = self._whole = 0
        while data.startswith(_MESSAGES, at):
            # [H]MSG <subject> <number of the subscription> [reply] [<bytes of headers>] <bytes>
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            verb, subject, sid, *more = data[at:line_end].split(b" ")
            start = line_end + 2
            end = start + int(more[-1])
            if len(data) < end + 2:
                self._whole = end + 2 - at
                break
            at = end + 2
            body = start + int(more[-2]) if verb == b"HMSG" else start
            reply = more[0] if len(more) > 1 + (verb == b"HMSG") else b""
            process = self.nc._process_msg  # noqa: SLF001 - what the client's own parser calls
            await process(int(sid), subject, reply, data[body:end], data[start:body])
        return at


class LeavingClient(Client):
    """A faster NATS client, whose `close` does not wait for a server that has stopped answering.

    The library's close waits until all data is sent, which a frozen server never accepts. If TLS is
    required, this client sends nothing before it has verified the server's certificate. The library
    would continue without TLS and reveal our identity."""

    _tls: ClientTls | None = None
    _encrypted = False

    def __init__(self, tell: Callable[[Exception], Awaitable[None]]) -> None:
        super().__init__()
        self._ps = Messages(self)
        self._tell = tell
        self._at_once: dict[int, Receiver] = {}

    async def stop_reconnecting(self) -> None:
        """End a reconnection in progress. The library's own close could let it continue."""
        if self._reconnection_task is not None:
            await end(self._reconnection_task)

    def take_at_once(self, subscription: Subscription, receive: Receiver) -> None:
        """Call `receive` directly for the subscription's messages, before reading more data."""
        self._at_once[subscription._id] = receive  # noqa: SLF001 - messages come with it alone

    def forget(self, subscription: Subscription) -> None:
        """Undo `take_at_once`: let the library deliver the subscription's messages."""
        self._at_once.pop(subscription._id, None)  # noqa: SLF001 - see take_at_once

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        receive = self._at_once.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        record = reply.startswith(_RECORD_REPLY)
        found = None if record else await self._process_headers(headers)
        try:
            await receive(_Arrived(subject.decode(), reply.decode(), data, found))
        except Exception as failure:  # noqa: BLE001 - reported as by the library; it goes on
            await self._tell(failure)

    async def _process_pong(self) -> None:
        # The answer to a cancelled wait would raise, and the client would stop reading.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str]) -> None:
        """Publish a message, four times as fast as the library does. Raises errors.Error."""
        if not subject or _BLANK.search(subject + reply):
            raise errors.BadSubjectError
        if len(payload) > self.max_payload:
            raise errors.MaxPayloadError
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not lines.count("\n") == lines.count("\r") == len(headers):
            raise errors.BadHeaderError(lines)
        if lines:
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            line = f"HPUB {subject} {reply} {len(head)} {len(head) + len(payload)}\r\n".encode()
        else:
            head = b""
            line = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        await self._send_command(b"%b%b%b\r\n" % (line, head, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def answer_with(self, read: Callable[[], KeyPair]) -> Callable[[str], bytes]:
        """Return a callback that signs the server's challenge with the key from `read`."""

        def signature(nonce: str) -> bytes:
            try:
                key = read()
            except CannotShow as failure:
                raise OSError(str(failure)) from failure  # the library reports it and retries
            self._public_nkey = key.public
            return base64.b64encode(key.sign(nonce.encode()))

        return signature

    def secure(self, tls: ClientTls, *, required: bool) -> None:
        """Use these TLS files. If `required`, never connect without TLS."""
        self._tls, self._encrypted = tls, required

    @property
    def ssl_context(self) -> SSLContext:
        """Return the TLS context for the current content of the files."""
        if self._tls is None:
            return super().ssl_context
        try:
            return self._tls.context()
        except ConfigError as failure:
            raise OSError(str(failure)) from failure  # the library reports it and retries

    async def _process_info(
        self,
        info: dict[str, Any],
        initial_connection: bool = False,  # noqa: FBT001, FBT002 - the library's signature
    ) -> None:
        if initial_connection and self._encrypted:
            info.pop("connect_urls", None)  # from a server that is not verified yet
            info["tls_required"] = info.get("tls_required") or info.get("tls_available", False)
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("ssl_object") is not None:
            # Otherwise asyncio warns when the connection ends. A connection that the server has
            # already closed has no protocol.
            with contextlib.suppress(AttributeError):
                writer.transport.get_protocol()._over_ssl = True  # noqa: SLF001
        elif self._encrypted:
            raise Unencrypted(
                "this server has no TLS, but the URL or a configured certificate requires it; give "
                "the server a certificate, or use nats:// without certificates"
            )
        return super()._connect_command()

    async def _process_err(self, err_msg: str) -> None:
        # The library would close for good. A client that is really refused learns so on reconnect.
        if self.is_connected and any(each in err_msg.lower() for each in _ENDED):
            await self._process_op_err(errors.Error(f"nats: {err_msg}"))
            return
        await super()._process_err(err_msg)

    @property
    def own_password(self) -> str | None:
        """Return the password in the URL of the current server."""
        return self._current_server.uri.password if self._current_server else None

    async def _process_op_err(self, e: Exception) -> None:
        if self.is_connected:
            self._abort()
        await super()._process_op_err(e)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
            if self.is_connecting:
                # The server's own ping came before its pong, which the library then misses: it
                # would stay in "connecting".
                self._status = Client.CONNECTED
                await self.flush(_PONG_S)
        except BaseException:
            self._abort()  # the next attempt would leave this connection open
            raise

    def _abort(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
