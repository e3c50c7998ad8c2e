"""The client library, with a shorter way for messages, and without its patience: all that names it.

Some of that needs private members of the library. tests/unit/runtime/test_private_members.py lists
them, each with its reason, and the version that they were seen in. Invariant: a message arrives as
it would by the library's own way."""

import asyncio
import base64
import contextlib
import re
import sys
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Any

from apportion.runtime.jetstream.wire import Receiver
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.reach import CannotShow, KeyPair
from apportion.runtime.process.tls import ClientTls

# The library takes aiohttp where it is there, for web sockets, which no URL of ours names: that is
# a tenth of a second of every verb. Whoever serves HTTP imports it as ever.
_LEAN = "aiohttp" not in sys.modules
if _LEAN:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # it is not there, says the import
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
_ENDED = ("authentication expired", "authentication revoked", "authorization violation")
"""What a server says as it ends the connection of somebody who may well come again."""
_PONG_S = 2
"""How long a server may take for a second pong."""


class Unencrypted(ConnectionError):
    """The server at hand has no TLS, and the URL wants it: it was told nothing."""


class _Arrived:
    """A message as it arrived; see wire.Message. A record of the stream is without its headers."""

    __slots__ = ("data", "headers", "reply", "subject")

    def __init__(
        self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None
    ) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = headers


class Messages(Parser):
    """The client's parser, with a short way for messages that have arrived whole, as most have."""

    _whole = 0
    """How many bytes the message takes that has begun, where that is known."""

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived; the beginning of a message is kept for what comes next."""
        if self.state == AWAITING_CONTROL_LINE:
            if self.buf and len(self.buf) + len(data) < self._whole:
                self.buf.extend(data)  # a large one is put together once, not at every read
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
        """Hand on the whole messages that `data` begins with; how many bytes they take."""
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
    """The client, without its patience for a server that it has given up, and quicker.

    Before it turns to another server it waits until what it still has to send is sent, which a
    frozen server, or one behind a broken line, never takes. And it hands each message to a task by
    a queue, its headers read, which takes two thirds of the time that a message takes.

    Where TLS is wanted, a server that has not shown its certificate is told nothing and believed
    nothing: the library would go on without, and say who we are."""

    _tls: ClientTls | None = None
    _encrypted = False

    def __init__(self, tell: Callable[[Exception], Awaitable[None]]) -> None:
        super().__init__()
        self._ps = Messages(self)
        self._tell = tell
        self._at_once: dict[int, Receiver] = {}

    def take_at_once(self, subscription: Subscription, receive: Receiver) -> None:
        """Hand the messages of a subscription on as they arrive, before anything else is read."""
        self._at_once[subscription._id] = receive  # noqa: SLF001 - messages come with it alone

    def forget(self, subscription: Subscription) -> None:
        """Its messages go the client's own way again."""
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
        except Exception as failure:  # noqa: BLE001 - as with the client's own: told, and it goes on
            await self._tell(failure)

    async def _process_pong(self) -> None:
        # Who gave up waiting still gets the server's answer, at which the client would end reading.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def send(self, subject: str, payload: bytes, reply: str, headers: dict[str, str]) -> None:
        """The client's `publish` without what makes up three quarters of its time.

        Raises errors.Error: this cannot be a message."""
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
        """What answers a server's challenge, at every connect, with the key that `read` gives."""

        def signature(nonce: str) -> bytes:
            try:
                key = read()
            except CannotShow as failure:
                raise OSError(str(failure)) from failure  # it is told, and tried again
            self._public_nkey = key.public
            return base64.b64encode(key.sign(nonce.encode()))

        return signature

    def secure(self, tls: ClientTls, *, required: bool) -> None:
        """Trust and show what these files say; `required`: with any server, or not at all."""
        self._tls, self._encrypted = tls, required

    @property
    def ssl_context(self) -> SSLContext:
        """By the files as they are now."""
        if self._tls is None:
            return super().ssl_context
        try:
            return self._tls.context()
        except ConfigError as failure:
            raise OSError(str(failure)) from failure  # it is told, and tried again

    async def _process_info(
        self,
        info: dict[str, Any],
        initial_connection: bool = False,  # noqa: FBT001, FBT002 - the library's signature
    ) -> None:
        if initial_connection and self._encrypted:
            info.pop("connect_urls", None)  # nobody has shown yet who it is that names servers
            info["tls_required"] = info.get("tls_required") or info.get("tls_available", False)
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.get_extra_info("ssl_object") is not None:
            # asyncio complains at the end of a connection whose protocol does not know it. One that
            # the server has ended at once has none any more.
            with contextlib.suppress(AttributeError):
                writer.transport.get_protocol()._over_ssl = True  # noqa: SLF001
        elif self._encrypted:
            raise Unencrypted(
                "this server has no TLS, and the URL or a certificate wants it: nothing was said "
                "to it; give the server a certificate, or write nats:// and name none"
            )
        return super()._connect_command()

    async def _process_err(self, err_msg: str) -> None:
        # The client would be closed for good; whoever may not come back is told when he tries.
        if self.is_connected and any(each in err_msg.lower() for each in _ENDED):
            await self._process_op_err(errors.Error(f"nats: {err_msg}"))
            return
        await super()._process_err(err_msg)

    @property
    def own_password(self) -> str | None:
        """What the URL of the server at hand holds."""
        return self._current_server.uri.password if self._current_server else None

    async def _process_op_err(self, e: Exception) -> None:
        if self.is_connected:
            self._abort()
        await super()._process_op_err(e)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
            if self.is_connecting:
                # The server's own ping came before its pong, for which the library no longer looks:
                # it would be connecting for ever.
                self._status = Client.CONNECTED
                await self.flush(_PONG_S)
        except BaseException:
            self._abort()  # the next attempt would forget this connection, and leave it open
            raise

    def _abort(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
