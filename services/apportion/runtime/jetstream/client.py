"""Connects to the ledger's nats-server, and sends and receives messages.

The client reconnects without end. A lost connection or a forbidden subject ends the request.
Invariants: no message shows a password, key or token. While disconnected, the client sends nothing,
so an unsent append raises LedgerUnavailable, and only a sent append raises OutcomeUnknown."""

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from apportion.core.identity.permissions import DELIVERIES
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.ledger import Appender, AppendWatch, JetStreamLedger
from apportion.runtime.jetstream.nats_client import (
    Client,
    LeavingClient,
    Server,
    Subscription,
    Unencrypted,
    errors,
)
from apportion.runtime.jetstream.wire import LostReply, Message, Receiver, Unsubscribe
from apportion.runtime.ledger.port import (
    LedgerError,
    LedgerUnavailable,
    NotPermitted,
    NotServed,
    ServerTooOld,
)
from apportion.runtime.process.clock import BackOff
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.reach import CannotShow, Reach, reach_of
from apportion.runtime.process.tls import NATS_TLS, ClientTls, explained, files_of
from apportion.runtime.process.waiting import end

__all__ = ["Connection", "JetStreamLedger", "check_stream", "connect", "create_stream"]
CONNECT_TIMEOUT_S = 10.0
ACK_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
CALLOUT_S = 30.0  # time for a callout to restart before a token counts as invalid
BACK_OFF = BackOff(0.05, 1.0)
PING_INTERVAL_S = 2  # a server that misses two pings is dropped at the third, after 6 s
# The first versions with all security fixes published by mid-2026.
FIXED_SERVER = (2, 14, 0)
FIXED_2_12 = (2, 12, 7)
_PENDING: Final[dict[str, Any]] = {"pending_msgs_limit": 1 << 20, "pending_bytes_limit": 256 << 20}
_VIOLATION = re.compile(
    r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE
)
_NO_RESPONDERS = "503"

_log = get_logger(__name__)


def secure(client: LeavingClient, reach: Reach) -> None:
    """Configure the client's TLS from the settings. Raises ConfigError."""
    tls = ClientTls(files_of(NATS_TLS))
    required = reach.encrypted or tls.files.named
    if required:
        tls.context()  # report an unusable file at once
    client.secure(tls, required=required)


def refusal(reach: Reach, distrusted: str) -> LedgerError:
    """Return the error for a rejected login; it is LedgerUnavailable if a retry may help."""
    if distrusted:
        return LedgerUnavailable(f"cannot connect to {reach.shown}: {distrusted}")
    if reach.key:
        shown = f"key is wrong or revoked; check {reach.key}"
    elif reach.token:
        shown = f"token {reach.token} is wrong, or the callout service is down; check its log"
    else:
        shown = "password is wrong; check the user and password in APPORTION_NATS_URL"
    said = f"{reach.shown} rejects user {reach.user!r}: the user or its {shown}"
    return LedgerUnavailable(said) if reach.token else NotPermitted(said)


def refuses(failure: Exception) -> bool:
    """Return True if the server rejects our credentials, or the credentials are unreadable."""
    nothing_to_show = isinstance(failure.__cause__, CannotShow)
    return nothing_to_show or "authorization violation" in str(failure).lower()


def turned_away(reach: Reach, distrusted: str) -> LedgerError:
    """Return the error for a server that no longer accepts this user."""
    if distrusted:
        return refusal(reach, distrusted)
    if reach.key:
        ended = (
            f"key {reach.key} was revoked or deleted; `apportion user list` lists the "
            "users, and `apportion user add` creates a key"
        )
    elif reach.token:
        ended = (
            f"token {reach.token} was revoked or has expired; write a new one there with "
            "`kubectl create token`, and restart"
        )
    else:
        ended = "password was revoked or changed; check the user and password in APPORTION_NATS_URL"
    return NotPermitted(f"{reach.shown} no longer accepts user {reach.user!r}: the {ended}")


def forbidden(reach: Reach, verb: str, subject: str) -> NotPermitted:
    """Return the error for a `subject` that the server forbids to this user."""
    return NotPermitted(
        f"{reach.shown} does not permit user {reach.user!r} to {verb} {subject}; "
        "connect with the role that owns this subject (nats.conf lists the roles)"
    )


class _Asked:
    """The pending requests of one connection, each of which gets exactly one result."""

    def __init__(self) -> None:
        # By token: the subjects whose refusal ends a request, and its reply.
        self._waiting: dict[str, tuple[frozenset[str], asyncio.Future[Message]]] = {}
        self._tokens = itertools.count(1)

    @contextlib.contextmanager
    def one(self, subjects: frozenset[str]) -> Iterator[tuple[str, asyncio.Future[Message]]]:
        token = str(next(self._tokens))
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[token] = subjects, reply
        try:
            yield token, reply
        finally:
            del self._waiting[token]

    async def arrived(self, message: Message) -> None:
        _, reply = self._waiting.get(message.subject.rpartition(".")[2], (None, None))
        if reply is not None and not reply.done():
            reply.set_result(message)

    def lose(self, why: str) -> None:
        for _, reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(LostReply(why))

    def forbid(self, subject: str, failure: Callable[[str], Exception]) -> None:
        for subjects, reply in self._waiting.values():
            for denied in subjects:
                if denied.lower() == subject and not reply.done():  # the library lowers the case
                    reply.set_exception(failure(denied))


class Connection:
    """The connection to one nats-server; implements `wire.Wire`."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._url = reach.shown
        self.user = reach.user
        self.server_version = ""
        self._client = LeavingClient(self._error)
        self._up = asyncio.Event()
        self._closed = False
        self._refused = asyncio.Event()
        self._distrusted = ""
        self._last_error = "no server answered"
        self._asked = _Asked()
        self._inbox = ""
        self._reconnected: list[Callable[[], None]] = []
        self._refused_subscriptions: set[str] = set()

    async def open(self, *, name: str, timeout_s: float) -> None:
        """Connect to the server. Raises LedgerUnavailable, NotPermitted, ServerTooOld."""
        try:
            self._reach.check()
            secure(self._client, self._reach)
        except (CannotShow, ConfigError) as failure:
            raise NotPermitted(str(failure)) from failure
        connecting = asyncio.ensure_future(self._connect(name))
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait(
                {connecting, refused}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._refused.is_set():
                raise refusal(self._reach, self._distrusted)
            if not connecting.done():
                raise LedgerUnavailable(
                    f"no connection to {self._url} within {timeout_s:g} s ({self._last_error}); "
                    "is nats-server running there, and is APPORTION_NATS_URL right?"
                )
            connecting.result()
        except (errors.Error, OSError, ValueError) as failure:
            raise LedgerUnavailable(f"cannot connect to {self._url}: {failure}") from failure
        finally:
            refused.cancel()
            await end(connecting)
        self.server_version = check_version(self._client)
        self._up.set()
        self._inbox = self._client.new_inbox()
        await self._listen(f"{self._inbox}.*", self._asked.arrived)

    async def _connect(self, name: str) -> None:
        reach = self._reach
        # A server that another server named has no password in its URL: use the first one.
        here = lambda: self._client.own_password or reach.password or ""  # noqa: E731
        word = self._token_here if reach.token else here if reach.password else None
        await self._client.connect(
            servers=[part.strip() for part in reach.url.split(",")],
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
            user=self.user if word else None,
            password=word,
            signature_cb=self._client.answer_with(reach.read_key) if reach.key else None,
        )

    def _token_here(self) -> str:
        try:
            return self._reach.read_token()
        except CannotShow as failure:
            raise OSError(str(failure)) from failure  # the library reports it and retries

    @property
    def owner(self) -> str:
        """Return the prefix for the names of this connection's consumers: the user's name."""
        return self.user

    @property
    def connected(self) -> bool:
        """Return True if a message can be sent now."""
        return self._up.is_set() and self._client.is_connected

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until connected. Raises LedgerUnavailable after `timeout_s`."""
        if self.connected:
            return
        self._up.clear()  # the client notices a loss shortly before it calls `_down`
        if self._closed:
            raise LedgerUnavailable(f"the connection to {self._url} is closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise LedgerUnavailable(
                f"not connected to {self._url} for {timeout_s:g} s ({self._last_error}); "
                "still reconnecting"
            ) from None

    def new_inbox(self) -> str:
        """Return a new subject that only this connection receives."""
        return self._client.new_inbox()

    def new_delivery(self) -> str:
        """Return a new subject on which the server delivers a consumer's records to us."""
        return f"{DELIVERIES}.{self.user or 'anyone'}.{self._client.new_inbox().rpartition('.')[2]}"

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str]
    ) -> None:
        """Send without confirmation; see `Wire.publish`."""
        if not self.connected:
            raise LedgerUnavailable(f"not connected to {self._url} ({self._last_error})")
        try:
            await self._client.send(subject, payload, reply, headers)
        except errors.Error as failure:
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
        """Send a request and return the reply; see `Wire.request`."""
        try:
            with self._asked.one(also | {subject}) as (token, reply):
                await self.publish(
                    subject, payload, reply=f"{self._inbox}.{token}", headers=headers
                )
                async with asyncio.timeout(timeout_s):
                    message = await reply
        except TimeoutError:
            raise LostReply(f"no answer from {self._url} within {timeout_s:g} s") from None
        if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
            raise NotServed(
                f"no service answers {subject} at {self._url}: the stream, JetStream or the "
                "requested service is missing"
            )
        return message

    async def _listen(
        self, subject: str, receive: Receiver, *, waits: bool = False, group: str = ""
    ) -> Subscription:
        subscription = await self._client.subscribe(subject, group, receive, **_PENDING)
        if not waits:
            self._client.take_at_once(subscription, receive)
        return subscription

    async def subscribe(
        self, subject: str, receive: Receiver, *, waits: bool = False, group: str = ""
    ) -> Unsubscribe:
        """Call and await `receive` for each message on `subject`; see `Wire.subscribe`."""
        self._refused_subscriptions.discard(subject.lower())  # the server may have new rules
        try:
            subscription = await self._listen(subject, receive, waits=waits, group=group)
        except errors.Error as failure:
            raise LedgerUnavailable(f"cannot subscribe to {subject}: {failure}") from failure

        async def unsubscribe() -> None:
            self._client.forget(subscription)
            with contextlib.suppress(errors.Error):
                await subscription.unsubscribe()

        try:
            # A refusal arrives before the answer to a later ping. The client sends its first ping
            # ahead of its queue, so only the second ping is later.
            await self._answered()
            await self._answered()
        except (errors.Error, LostReply) as failure:
            await unsubscribe()
            raise LedgerUnavailable(f"cannot subscribe to {subject}: {failure}") from failure
        if subject.lower() in self._refused_subscriptions:
            await unsubscribe()
            raise forbidden(self._reach, "subscribe to", subject)
        return unsubscribe

    async def _answered(self) -> None:
        """Wait until the server has answered a ping. Raises LostReply if the connection is lost.

        The wait runs in its own task, because up to Python 3.11 `asyncio.wait_for` loses a
        cancellation that arrives with the answer. The client forgets pings that were sent before a
        reconnection."""
        flushing = asyncio.ensure_future(self._client.flush())
        with self._asked.one(frozenset()) as (_, lost):
            ends: set[asyncio.Future[Any]] = {flushing, lost}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                flushing.cancel()
            (lost if lost.done() else flushing).result()

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after each reconnection until the returned function is called."""
        self._reconnected.append(call)
        return lambda: self._reconnected.remove(call)

    async def turned_away(self) -> LedgerError:
        """Wait until the server no longer accepts this user, and return the reason as an error."""
        await self._refused.wait()
        while self._reach.token and not self._distrusted:
            self._refused.clear()
            try:
                await self.wait_connected(CALLOUT_S)
            except LedgerUnavailable:
                break
            await self._refused.wait()
        return turned_away(self._reach, self._distrusted)

    async def close(self) -> None:
        """Disconnect. Pending requests raise LostReply."""
        self._closed = True
        with contextlib.suppress(errors.Error, OSError):
            if self._client.is_connected:
                await self._client.flush(2)
        await self._client.stop_reconnecting()
        # In its own task: if it is reconnecting, the client raises CancelledError although we
        # were not cancelled.
        closing = asyncio.ensure_future(self._client.close())
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        self._lose("closed")

    def _lose(self, reason: str) -> None:
        self._up.clear()
        self._asked.lose(f"connection to {self._url} {reason}")

    async def _down(self) -> None:
        self._lose("lost")
        if not self._closed:
            _log.warning("connection lost, reconnecting", server=self._url, error=self._last_error)

    async def _again(self) -> None:
        self._up.set()
        _log.info("reconnected", server=self._url)
        for call in list(self._reconnected):
            call()

    async def _gone(self) -> None:
        self._lose("closed")

    async def _error(self, failure: Exception) -> None:
        unencrypted = isinstance(failure, Unencrypted)
        distrusted = str(failure) if unencrypted else explained(failure, NATS_TLS)
        self._distrusted = distrusted or self._distrusted
        self._last_error = distrusted or str(failure) or type(failure).__name__
        if distrusted or refuses(failure):
            self._refused.set()
            return
        violation = _VIOLATION.search(self._last_error)
        if violation is None:
            return
        verb, subject = violation.group(1).lower(), violation.group(2).lower()
        if verb == "subscription":
            self._refused_subscriptions.add(subject)
            return
        self._asked.forbid(subject, lambda sent: forbidden(self._reach, "send to", sent))


def _choose_server(pool: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
    # Random choice and pause: clients spread, and a frozen server costs one try.
    fewest = min(server.reconnects for server in pool)
    best = [server for server in pool if server.reconnects == fewest]
    server = random.choice(best)  # noqa: S311 - spreads load, guards nothing
    longest_s = BACK_OFF.after(1 + server.reconnects)
    return server, random.uniform(longest_s / 2, longest_s)  # noqa: S311 - jitter


def check_version(client: Client) -> str:
    """Return the server's version, or "" for a development build. Raises ServerTooOld."""
    found = client.connected_server_version
    try:
        version = (found.major, found.minor, found.patch)
    except ValueError:
        return ""
    text = ".".join(map(str, version))
    if version < FIXED_SERVER and not FIXED_2_12 <= version < (2, 13, 0):
        raise ServerTooOld(text)
    return text


async def connect(
    to: Reach | str,
    *,
    name: str,
    timeout_s: float = CONNECT_TIMEOUT_S,
    ack_timeout_s: float = ACK_TIMEOUT_S,
    watch: AppendWatch = lambda *_: None,
    opened: Callable[[Reach], Connection] = Connection,
) -> JetStreamLedger:
    """Connect to the ledger at a URL (`nats://user:password@host:port`) or a Reach.

    The server lists the connection as `name`. The stream is not checked. Raises LedgerUnavailable,
    NotPermitted, ServerTooOld."""
    reach = reach_of(to)
    wire = opened(reach)
    try:
        await wire.open(name=name, timeout_s=timeout_s)
    except BaseException:
        await wire.close()
        raise
    appender = Appender(wire, ack_timeout_s=ack_timeout_s, key=reach.read_ledger_key())
    return JetStreamLedger(wire, appender, watch=watch)


async def create_stream(
    ledger: JetStreamLedger, *, replicas: int = 1, max_bytes: int = -1
) -> stream.StreamInfo:
    """Create the stream, the snapshot bucket and the auditors' copy, as the bootstrap user.

    Raises LedgerDrifted, NotPermitted, LedgerUnavailable, LedgerError."""
    # Imported late: a snapshot needs the whole state, other clients do not.
    from apportion.runtime.jetstream.snapshots import Snapshots  # noqa: PLC0415

    info = await stream.create(ledger.wire, replicas=replicas, max_bytes=max_bytes)
    try:
        await Snapshots(ledger.wire).create(replicas=replicas)
    except (LedgerUnavailable, NotPermitted) as failure:
        _log.warning(
            "cannot store snapshots, so restarts read the whole ledger", error=str(failure)
        )
    await stream.copy_for_auditors(ledger.wire)
    return info


async def check_stream(ledger: JetStreamLedger) -> stream.StreamInfo:
    """Return the stream's info. Raises LedgerDrifted with the first setting that differs."""
    return await stream.check(ledger.wire)
