"""The connection as the ledger's parts use it, independent of the client library.

Invariant: a request ends in a reply or a LedgerError; if its outcome is open, the error is
LostReply, never LedgerUnavailable."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable

STREAM = "APPORTION"
API_TIMEOUT_S = 5.0


class LostReply(LedgerError):
    """The request was sent but no reply came; the request may have been executed."""


class Message(Protocol):
    """A message as delivered; `headers` only of control messages, not of records."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


Receiver = Callable[[Message], Awaitable[None]]
Unsubscribe = Callable[[], Awaitable[None]]


class Wire(Protocol):
    """One connection to the server."""

    @property
    def user(self) -> str:
        """Return the user of this connection; empty if the server has no users."""

    @property
    def owner(self) -> str:
        """Return the prefix of our consumers' names; may be empty like `user`."""

    @property
    def connected(self) -> bool:
        """Return True if a message sent now would go out."""

    async def wait_connected(self, timeout_s: float) -> None:
        """Return once connected. Raises LedgerUnavailable after `timeout_s`."""

    def new_inbox(self) -> str:
        """Return a new subject that only this connection receives."""

    def new_delivery(self) -> str:
        """Return a new subject for deliveries of a consumer of this connection."""

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str]
    ) -> None:
        """Send without confirmation. Raises LedgerUnavailable."""

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: dict[str, str],
        also: frozenset[str] = frozenset(),
    ) -> Message:
        """Send and return the reply; a refusal of a subject in `also` ends the wait, too.

        Raises LostReply, NotPermitted, and LedgerUnavailable if there is no receiver."""

    async def subscribe(
        self, subject: str, receive: Receiver, *, waits: bool = False, group: str = ""
    ) -> Unsubscribe:
        """Await `receive` for each message on `subject`, one after the other.

        A `receive` that awaits others must pass `waits`, which queues messages. Each message
        goes to one subscriber of `group`. Raises NotPermitted."""

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after each reconnection until the returned function is called."""

    async def turned_away(self) -> LedgerError:
        """Wait until the server no longer accepts us, and return why."""

    async def close(self) -> None:
        """Disconnect. Pending requests end as LostReply."""


class ApiError(msgspec.Struct, frozen=True):
    """An error in an answer of the server."""

    code: int = 0
    err_code: int = 0
    description: str = "no description"


class Answer(msgspec.Struct, frozen=True):
    """The common part of all answers of the server."""

    error: ApiError | None = None


class ApiRefused(LedgerUnavailable):
    """The server answered an API request with an error."""

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
    """Return the reply to an API request; empty for an error code in `absent`.

    Requests must be repeatable. Raises ApiRefused, NotPermitted, LedgerUnavailable."""
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
