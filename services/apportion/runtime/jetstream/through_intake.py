"""Lets the agent of one node read the ledger through an intake.

Such an agent may not use the server's JetStream API (`core.intake.sight`). Invariant: each request
to that API goes to an intake, and all others go to the server."""

import zlib
from typing import Final

import msgspec

from apportion.core.identity.identity import readers_of_node
from apportion.core.intake.answers import subject_of_node
from apportion.core.intake.sight import STATE, SUBJECT, Asked
from apportion.core.ledger.snapshot import SnapshotError
from apportion.core.ledger.state import State
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import Connection
from apportion.runtime.jetstream.snapshots import Snapshots, restored
from apportion.runtime.jetstream.wire import ApiRefused, Message, call_api
from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable, NotPermitted
from apportion.runtime.process.reach import Reach
from apportion_schemas.decoding import from_outside

ANSWER_S: Final = 10.0
STATE_BYTES_MAX: Final = 64 << 20
_API: Final = "$JS.API."
_encode = msgspec.json.Encoder().encode


class _Part(msgspec.Struct, frozen=True):
    part: bytes


_decode_part = from_outside(msgspec.json.Decoder(_Part).decode)


class NodeConnection(Connection):
    """A node agent's connection, which reads through an intake once the server refuses reads."""

    def __init__(self, reach: Reach, node: str) -> None:
        super().__init__(reach)
        self._intakes = subject_of_node(node, SUBJECT)
        self._reader = readers_of_node(node)[0].rpartition("-")[0]
        self.through_intake = False

    @property
    def owner(self) -> str:
        """Return the prefix of our consumers' names; see `Wire.owner`."""
        return self._reader if self.through_intake else self.user

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: dict[str, str],
        also: frozenset[str] = frozenset(),
    ) -> Message:
        """Send a request. API requests go to an intake once the server refuses them."""
        if not self.through_intake and subject.startswith(f"{_API}STREAM."):
            try:
                return await super().request(
                    subject, payload, timeout_s=timeout_s, headers=headers, also=also
                )
            except NotPermitted:  # permanently: a server may get its new rules while we run
                self.through_intake = True
                for call in list(self._reconnected):  # the old consumers can no longer be managed
                    call()
        if self.through_intake and subject.startswith(_API):
            asked = Asked(subject.removeprefix(_API), msgspec.Raw(payload or b"{}"))
            subject, payload, timeout_s = self._intakes, _encode(asked), max(timeout_s, ANSWER_S)
        return await super().request(
            subject, payload, timeout_s=timeout_s, headers=headers, also=also
        )


class NodeSnapshots(Snapshots):
    """Loads a node agent's state from an intake, if the ledger's beginning was dropped."""

    async def restore(self, *, at_most: int | None = None) -> State:  # noqa: ARG002 - always newest
        """Return this node's state from an intake. Raises LedgerUnavailable, NotPermitted."""
        rules = await stream.read_rules(self._wire)
        try:
            answer = await call_api(self._wire, STATE)
        except ApiRefused as refused:
            raise LedgerError(str(refused)) from refused
        try:
            unpacked = zlib.decompressobj()
            data = unpacked.decompress(_decode_part(answer).part, STATE_BYTES_MAX)
            state = restored(bytearray(data))
        except (msgspec.MsgspecError, zlib.error, SnapshotError) as error:
            raise LedgerUnavailable(
                f"cannot read the intake's state of this node ({error}); run agents and intakes of "
                "the same build"
            ) from None
        if not state.rules.go_on(rules, state.revision):
            raise LedgerUnavailable(
                "the intake has not yet read which events an operator has set aside"
            )
        return state
