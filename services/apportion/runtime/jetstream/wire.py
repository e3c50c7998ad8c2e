"""The server connection that the ledger's modules use, independent of the client library.

Invariant: a request ends in a reply or a LedgerError. If the outcome is unknown, the error is
LostReply, never LedgerUnavailable."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable

STREAM = "APPORTION"
API_TIMEOUT_S = 5.0


class LostReply(LedgerError):
    """Error: the request was sent but no reply came, so the server may have executed it."""


class Message(Protocol):
    """A delivered message. `headers` are set only for control messages, not for records."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


Receiver = Callable[[Message], Awaitable[None]]
Unsubscribe = Callable[[], Awaitable[None]]


class Wire(Protocol):
    """A connection to nats-server, as the ledger's modules use it."""

    @property
    def user(self) -> str:
        """Return the user of this connection, or "" if the server has no users."""

    @property
    def owner(self) -> str:
        """Return the prefix of the names of our consumers. May be empty, as `user` may."""

    @property
    def connected(self) -> bool:
        """Return True if a message can be sent now."""

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until connected. Raises LedgerUnavailable after `timeout_s`."""

    def new_inbox(self) -> str:
        """Return a new subject that only this connection receives."""

    def new_delivery(self) -> str:
        """Return a new subject on which the server delivers a consumer's records to us."""

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str]
    ) -> None:
        """Send a message without confirmation. Raises LedgerUnavailable."""

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: dict[str, str],
        also: frozenset[str] = frozenset(),
    ) -> Message:
        """Send a request and return the reply.

        Raises LostReply, LedgerUnavailable, NotPermitted (for `subject` or one in `also`)."""

    async def subscribe(
        self, subject: str, receive: Receiver, *, waits: bool = False, group: str = ""
    ) -> Unsubscribe:
        """Call and await `receive` for each message on `subject`, one message at a time.

        Pass `waits=True` if `receive` awaits something; messages are then queued. Within a `group`,
        each message goes to one subscriber. Raises NotPermitted."""

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after each reconnection until the returned function is called."""

    async def turned_away(self) -> LedgerError:
        """Wait until the server no longer accepts this user, and return the reason as an error."""

    async def close(self) -> None:
        """Disconnect. Pending requests raise LostReply."""


class ApiError(msgspec.Struct, frozen=True):
    """The error in an API answer of the server."""

    code: int = 0
    err_code: int = 0
    description: str = "no description"


class Answer(msgspec.Struct, frozen=True):
    """The common fields of all API answers of the server."""

    error: ApiError | None = None


class ApiRefused(LedgerUnavailable):
    """Error: the server refused an API request."""

    def __init__(self, what: str, error: ApiError) -> None:
        super().__init__(f"the server rejected {what}: {error.description} ({error.err_code})")
        self.error = error


_decode_answer = msgspec.json.Decoder(Answer).decode


async def call_api(
    wire: Wire,
    what: str,
    body: Mapping[str, object] | None = None,
    *,
    api: str = "$JS.API",
    absent: frozenset[int] = frozenset(),
) -> bytes:
    """Send an API request and return the reply; b"" if its error code is in `absent`.

    The request must be safe to repeat. Raises ApiRefused, NotPermitted, LedgerUnavailable."""
    payload = b"" if body is None else msgspec.json.encode(body)
    await wire.wait_connected(API_TIMEOUT_S)
    try:
        reply = await wire.request(f"{api}.{what}", payload, timeout_s=API_TIMEOUT_S, headers={})
    except LostReply as lost:
        raise LedgerUnavailable(f"no answer to {what}: {lost}") from lost
    try:
        answer = _decode_answer(reply.data)
    except msgspec.DecodeError as bad:
        raise LedgerUnavailable(f"the answer to {what} is not JSON: {bad}") from bad
    if answer.error is not None:
        if answer.error.err_code in absent:
            return b""
        raise ApiRefused(what, answer.error)
    return reply.data
