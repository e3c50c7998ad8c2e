"""The ledger on NATS JetStream: the only module that knows the client library.

It keeps the connection: reconnects for ever with jitter, ends every wait when the connection is
lost or the server forbids a subject, and never shows a password. Invariant: nothing is sent while
disconnected, so what cannot be sent is unavailable, and only what was sent can be unknown.

Some of that needs private members of the library. tests/unit/runtime/test_private_members.py lists
them, each with its reason, and the version that they were seen in.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.ledger import AppendWatch, JetStreamLedger, unwatched
from apportion.runtime.jetstream.wire import LostReply, Message, Receiver, Unsubscribe
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted, ServerTooOld
from apportion.runtime.process.backoff import BackOff
from apportion.runtime.process.logs import get_logger

# The library takes aiohttp where it is there, for web sockets, which no URL of ours names: that is
# a tenth of a second of every verb. Whoever serves HTTP imports it as ever.
_LEAN = "aiohttp" not in sys.modules
if _LEAN:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]  # it is not there, says the import
import nats.errors  # noqa: E402
from nats.aio.client import Client, Server  # noqa: E402
from nats.aio.subscription import Subscription  # noqa: E402
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser  # noqa: E402

if _LEAN:
    del sys.modules["aiohttp"]

__all__ = ["Connection", "JetStreamLedger", "check_stream", "connect", "create_stream", "shown"]

CONNECT_TIMEOUT_S = 10.0
ACK_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
BACK_OFF = BackOff(0.05, 1.0)
PING_INTERVAL_S = 2
"""A server that leaves two pings without an answer is given up: at the third, six seconds on."""
OLDEST_SERVER = (2, 12, 0)
FIXED_SERVER = (2, 14, 0)
FIXED_2_12 = (2, 12, 7)
"""From these on, every security fix that was published by the middle of 2026 is in."""
PENDING_MESSAGES = 1 << 20
PENDING_BYTES = 256 << 20

_log = get_logger(__name__)
_VIOLATION = re.compile(
    r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE
)
_NO_RESPONDERS = "503"
_RECORD_REPLY = b"$JS.ACK."
_MESSAGES = (b"HMSG ", b"MSG ")
_BLANK = re.compile(r"\s")


def shown(url: str) -> str:
    """`url`, of one server or of several, without user and password, for messages and logs."""
    servers = (urlsplit(_full(part.strip())) for part in url.split(","))
    return ",".join(f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in servers)


def _full(url: str) -> str:
    return url if "://" in url else f"nats://{url}"


class _Waiting:
    """One request under way and the subjects whose refusal ends it."""

    __slots__ = ("reply", "subjects")

    def __init__(self, subjects: frozenset[str]) -> None:
        self.subjects = subjects
        self.reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


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


class _LeavingClient(Client):
    """The client, without its patience for a server that it has given up, and quicker.

    Before it turns to another server it waits until what it still has to send is sent, which a
    frozen server, or one behind a broken line, never takes. And it hands each message to a task by
    a queue, its headers read, which takes two thirds of the time that a message takes.
    """

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

        Raises:
            nats.errors.Error: this cannot be a message.
        """
        if not subject or _BLANK.search(subject + reply):
            raise nats.errors.BadSubjectError
        if len(payload) > self.max_payload:
            raise nats.errors.MaxPayloadError
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if not lines.count("\n") == lines.count("\r") == len(headers):
            raise nats.errors.BadHeaderError(lines)
        if lines:
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            line = f"HPUB {subject} {reply} {len(head)} {len(head) + len(payload)}\r\n".encode()
        else:
            head = b""
            line = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        await self._send_command(b"%b%b%b\r\n" % (line, head, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

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
        except BaseException:
            self._abort()  # the next attempt would forget this connection, and leave it open
            raise

    def _abort(self) -> None:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()


class Connection:
    """One connection to nats-server; see wire.Wire and, for `server_version`, check_version."""

    def __init__(self, url: str) -> None:
        self._url = shown(url)
        first = urlsplit(_full(url.partition(",")[0].strip()))
        self.user = first.username or ""
        self.server_version = "", False
        self._password = first.password
        self._client = _LeavingClient(self._error)
        self._up = asyncio.Event()
        self._closed = False
        self._refused = asyncio.Event()
        self._last_error = "no server answered"
        self._waiting: dict[str, _Waiting] = {}
        self._tokens = itertools.count(1)
        self._inbox = ""
        self._reconnected: list[Callable[[], None]] = []
        self._refused_subscriptions: set[str] = set()

    async def open(self, url: str, *, name: str, timeout_s: float) -> None:
        """Connect. Raises LedgerUnavailable, NotPermitted, ServerTooOld."""
        connecting = asyncio.ensure_future(self._connect(url, name))
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait(
                {connecting, refused}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._refused.is_set():
                raise self._wrong_user()
            if not connecting.done():
                raise LedgerUnavailable(
                    f"no connection to {self._url} within {timeout_s:g} s ({self._last_error}); "
                    "is nats-server running there, and is APPORTION_NATS_URL right?"
                )
            connecting.result()
        except (nats.errors.Error, OSError, ValueError) as failure:
            raise LedgerUnavailable(f"cannot connect to {self._url}: {failure}") from failure
        finally:
            connecting.cancel()
            refused.cancel()
            await asyncio.gather(connecting, refused, return_exceptions=True)
        self.server_version = check_version(self._client)
        self._up.set()
        self._inbox = self._client.new_inbox()
        await self._listen(f"{self._inbox}.*", self._reply_arrived)

    async def _connect(self, url: str, name: str) -> None:
        await self._client.connect(
            servers=[part.strip() for part in url.split(",")],
            name=name,
            error_cb=self._error,
            disconnected_cb=self._down,
            reconnected_cb=self._again,
            closed_cb=self._gone,
            connect_timeout=2,
            reconnect_time_wait=0.2,  # type: ignore[arg-type] # a float works and is documented
            max_reconnect_attempts=-1,
            reconnect_to_server_handler=_choose_server,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=2,
            inbox_prefix=f"_INBOX_{self.user}" if self.user else "_INBOX",
            user=self.user if self._password else None,
            password=self._password_here if self._password else None,
        )

    def _password_here(self) -> str:
        """The password that our URL has for the server at hand.

        One that another server named comes without, and would refuse us: it gets the first one.
        """
        return self._client.own_password or self._password or ""

    @property
    def connected(self) -> bool:
        """See wire.Wire."""
        return self._up.is_set() and self._client.is_connected

    async def wait_connected(self, timeout_s: float) -> None:
        """See wire.Wire."""
        if self.connected:
            return
        self._up.clear()  # the client notices a loss a little before it tells us
        if self._closed:
            raise LedgerUnavailable(f"the connection to {self._url} is closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise LedgerUnavailable(
                f"not connected to {self._url} for {timeout_s:g} s ({self._last_error}); "
                "reconnecting goes on"
            ) from None

    def new_inbox(self) -> str:
        """See wire.Wire."""
        return self._client.new_inbox()

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str]
    ) -> None:
        """See wire.Wire."""
        if not self.connected:
            raise LedgerUnavailable(f"not connected to {self._url} ({self._last_error})")
        try:
            await self._client.send(subject, payload, reply, headers)
        except nats.errors.Error as failure:
            raise LedgerUnavailable(f"cannot send to {subject}: {failure}") from failure

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: dict[str, str],
        also: frozenset[str] = frozenset(),
    ) -> Message:
        """See wire.Wire."""
        token = str(next(self._tokens))
        waiting = self._waiting[token] = _Waiting(also | {subject})
        try:
            await self.publish(subject, payload, reply=f"{self._inbox}.{token}", headers=headers)
            async with asyncio.timeout(timeout_s):
                message = await waiting.reply
        except TimeoutError:
            raise LostReply(f"no answer from {self._url} within {timeout_s:g} s") from None
        finally:
            del self._waiting[token]
        if message.headers and not message.data and _status(message) == _NO_RESPONDERS:
            raise LedgerUnavailable(
                f"nobody takes {subject} at {self._url}: the stream, or JetStream, or the service "
                "asked for, is not there"
            )
        return message

    async def _listen(
        self, subject: str, receive: Receiver, *, waits: bool = False
    ) -> Subscription:
        subscription = await self._client.subscribe(
            subject,
            cb=receive,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )
        if not waits:
            self._client.take_at_once(subscription, receive)
        return subscription

    async def subscribe(
        self, subject: str, receive: Receiver, *, waits: bool = False
    ) -> Unsubscribe:
        """See wire.Wire."""
        try:
            subscription = await self._listen(subject, receive, waits=waits)
        except nats.errors.Error as failure:
            raise LedgerUnavailable(f"cannot listen on {subject}: {failure}") from failure

        async def unsubscribe() -> None:
            self._client.forget(subscription)
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

        try:
            # A refusal arrives before the server's answer to a ping sent later; the client sends
            # its first ping ahead of what it has queued, so only the second one is later.
            await self._answered()
            await self._answered()
        except (nats.errors.Error, LostReply) as failure:
            await unsubscribe()
            raise LedgerUnavailable(f"cannot listen on {subject}: {failure}") from failure
        if subject.lower() in self._refused_subscriptions:
            raise self._not_permitted("listen on", subject)
        return unsubscribe

    async def _answered(self) -> None:
        """Return once the server has answered a ping. Raises LostReply where it cannot any more.

        The client waits by `asyncio.wait_for`, which up to Python 3.11 forgets a cancellation that
        comes with the answer: a reader that is being stopped would go on. So it waits in a task of
        its own. It also forgets, once it is connected again, what it has asked before, and would
        wait ten seconds for nothing.
        """
        token = str(next(self._tokens))
        waiting = self._waiting[token] = _Waiting(frozenset())
        flushing = asyncio.ensure_future(self._client.flush())
        ends: set[asyncio.Future[Any]] = {flushing, waiting.reply}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            flushing.cancel()
            del self._waiting[token]
        (waiting.reply if waiting.reply.done() else flushing).result()

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """See wire.Wire."""
        self._reconnected.append(call)
        return lambda: self._reconnected.remove(call)

    async def close(self) -> None:
        """Leave. Requests under way end as LostReply."""
        self._closed = True
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._client.is_connected:
                await self._client.flush(2)
        await self._close_client()
        self._lose("closed")

    async def _close_client(self) -> None:
        # In a task of its own: closed while it reconnects, the client raises CancelledError here
        # although nobody cancelled us.
        closing = asyncio.ensure_future(self._client.close())
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    async def _reply_arrived(self, message: Message) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None and not waiting.reply.done():
            waiting.reply.set_result(message)

    def _lose(self, reason: str) -> None:
        self._up.clear()
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(LostReply(f"connection to {self._url} {reason}"))

    async def _down(self) -> None:
        self._lose("lost")
        if not self._closed:
            _log.warning("connection lost, reconnecting", server=self._url, error=self._last_error)

    async def _again(self) -> None:
        self._up.set()
        _log.info("connected again", server=self._url)
        for call in list(self._reconnected):
            call()

    async def _gone(self) -> None:
        self._lose("closed")

    async def _error(self, failure: Exception) -> None:
        text = str(failure) or type(failure).__name__
        self._last_error = text
        violation = _VIOLATION.search(text)
        if violation is None:
            if "authorization violation" in text.lower():
                self._refused.set()
            return
        # The client library hands errors over in lower case.
        verb, subject = violation.group(1).lower(), violation.group(2).lower()
        if verb == "subscription":
            self._refused_subscriptions.add(subject)
            return
        for waiting in self._waiting.values():
            for forbidden in waiting.subjects:
                if forbidden.lower() == subject and not waiting.reply.done():
                    waiting.reply.set_exception(self._not_permitted("send to", forbidden))

    def _wrong_user(self) -> NotPermitted:
        return NotPermitted(
            f"{self._url} refuses user {self.user!r}: user or password is wrong; "
            "check the user and password in APPORTION_NATS_URL"
        )

    def _not_permitted(self, verb: str, subject: str) -> NotPermitted:
        return NotPermitted(
            f"{self._url} forbids user {self.user!r} to {verb} {subject}; "
            "connect as the role that owns this subject (nats.conf lists the roles)"
        )


def _status(message: Message) -> str:
    headers: dict[str, Any] = message.headers or {}
    return str(headers.get("Status", ""))


def _choose_server(pool: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
    """A random one of those that failed least, after a random pause that grows with the failures.

    So no herd forms, and a server that is frozen costs one try.
    """
    fewest = min(server.reconnects for server in pool)
    best = [server for server in pool if server.reconnects == fewest]
    server = random.choice(best)  # noqa: S311 - spreads load, guards nothing
    longest_s = BACK_OFF.after(1 + server.reconnects)
    return server, random.uniform(longest_s / 2, longest_s)  # noqa: S311 - jitter


def check_version(client: Client) -> tuple[str, bool]:
    """The server's version, and whether security fixes are missing from it, which is warned of.

    The version is empty for a development build that names none; the stream check decides then.
    Raises ServerTooOld below OLDEST_SERVER.
    """
    found = client.connected_server_version
    try:
        version = (found.major, found.minor, found.patch)
    except ValueError:
        return "", False
    text = ".".join(map(str, version))
    if version < OLDEST_SERVER:
        raise ServerTooOld(text)
    outdated = version < FIXED_SERVER and not FIXED_2_12 <= version < (2, 13, 0)
    if outdated:
        _log.warning(
            "nats-server lacks security fixes, upgrade it",
            found=text,
            recommended=ServerTooOld.recommended,
        )
    return text, outdated


async def connect(
    url: str,
    *,
    name: str,
    timeout_s: float = CONNECT_TIMEOUT_S,
    ack_timeout_s: float = ACK_TIMEOUT_S,
    watch: AppendWatch = unwatched,
) -> JetStreamLedger:
    """A ledger on the server at `url` (`nats://user:password@host:port`, several by comma).

    `name` is shown in the server's list of connections. Raises LedgerUnavailable, NotPermitted,
    ServerTooOld. The stream is not looked at: see create_stream and check_stream.
    """
    wire = Connection(url)
    try:
        await wire.open(url, name=name, timeout_s=timeout_s)
    except BaseException:
        await wire.close()
        raise
    return JetStreamLedger(wire, ack_timeout_s=ack_timeout_s, watch=watch)


async def create_stream(
    ledger: JetStreamLedger, *, replicas: int = 1, max_bytes: int = -1
) -> stream.StreamInfo:
    """Make the ledger's stream, or check the one that is there; for the bootstrap user.

    Beside it, the bucket of its snapshots is made.

    Raises LedgerDrifted, NotPermitted, LedgerUnavailable, LedgerError.
    """
    # A snapshot knows the whole state; nobody else who connects needs to.
    from apportion.runtime.jetstream.snapshots import Snapshots  # noqa: PLC0415

    info = await stream.create(ledger.wire, replicas=replicas, max_bytes=max_bytes)
    await Snapshots(ledger.wire).create(replicas=replicas)
    return info


async def check_stream(ledger: JetStreamLedger) -> stream.StreamInfo:
    """The stream's settings and state. Raises LedgerDrifted naming the first wrong setting."""
    return await stream.check(ledger.wire)
