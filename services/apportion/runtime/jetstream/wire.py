"""What the ledger's parts need of a connection, so that one module alone knows the client library.

Invariant: a request that was handed to the connection ends in a reply or in a LedgerError, and an
error that leaves the outcome open is LostReply, never LedgerUnavailable."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable

STREAM = "APPORTION"
API_TIMEOUT_S = 5.0


class LostReply(LedgerError):
    """The request went out and no reply came back; it may have been carried out."""


class Message(Protocol):
    """One message as the connection delivers it; `reply` is empty where none is wanted.

    `headers` are those of control messages; a record's are for the server and are not read."""

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
        """Whose name we connect under; empty where the server knows no users."""

    @property
    def owner(self) -> str:
        """How the names of our consumers begin; empty as `user` is."""

    @property
    def connected(self) -> bool:
        """Whether something sent now would go out."""

    async def wait_connected(self, timeout_s: float) -> None:
        """Return once connected. Raises LedgerUnavailable after `timeout_s`."""

    def new_inbox(self) -> str:
        """A subject that only this connection is told of."""

    def new_delivery(self) -> str:
        """A subject on which a consumer of this connection, and of no other, delivers."""

    async def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str]
    ) -> None:
        """Send; nothing is known of its arrival. Raises LedgerUnavailable."""

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: dict[str, str],
        also: frozenset[str] = frozenset(),
    ) -> Message:
        """Send and return the reply. `also` are further subjects whose refusal ends the wait.

        Raises LostReply, NotPermitted, and LedgerUnavailable when nobody listens."""

    async def subscribe(
        self, subject: str, receive: Receiver, *, waits: bool = False, group: str = ""
    ) -> Unsubscribe:
        """Await `receive` for each message on `subject`, one after the other.

        Nothing else arrives meanwhile, so a `receive` that `waits` for others must say so; messages
        then gather. Of a `group` one subscriber gets each message. Raises NotPermitted."""

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after each reconnection until the returned function is called."""

    async def turned_away(self) -> LedgerError:
        """Why the server lets us in no more, as soon as it does not: nobody else is told."""

    async def close(self) -> None:
        """Leave. Requests under way end as LostReply."""


class ApiError(msgspec.Struct, frozen=True):
    """How the server says no."""

    code: int = 0
    err_code: int = 0
    description: str = "no description"


class Answer(msgspec.Struct, frozen=True):
    """What every answer of the server has."""

    error: ApiError | None = None


class ApiRefused(LedgerUnavailable):
    """The server answered an API request with an error.

    Where trying again is of no use, the caller raises a LedgerError in its place."""

    def __init__(self, what: str, error: ApiError) -> None:
        super().__init__(f"the server refused {what}: {error.description} ({error.err_code})")
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
    """The reply to one `$JS.API` request, empty where the server answers with a code of `absent`.

    Raises ApiRefused, LedgerUnavailable (also when no reply came: callers only read or repeat
    requests that do no harm twice), NotPermitted."""
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
