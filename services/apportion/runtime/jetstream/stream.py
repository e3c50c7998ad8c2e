"""Creates the ledger's stream, checks its settings, and reports each that deviates.

Invariant: no service uses a stream from which events could be deleted individually, rolled up,
expired or stored in part. Only the bootstrap user, which can neither read nor write events, may
drop the archived beginning."""

import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from apportion.core.ledger.rules import RULES, Rules, Said, rules_of, said_at
from apportion.runtime.jetstream.wire import STREAM, ApiRefused, Wire, call_api
from apportion.runtime.ledger.port import (
    ALL_SUBJECTS,
    LedgerDrifted,
    LedgerError,
    LedgerUnavailable,
    NotPermitted,
    Record,
)
from apportion.runtime.process.logs import get_logger

_log = get_logger(__name__)
STREAM_NOT_FOUND: Final = frozenset({10059})
NAME_IN_USE: Final = frozenset({10058})
NO_MESSAGE: Final = frozenset({10037})
_NO_ROOM = 10047
# error codes of a server without room in memory, on disk or in the stream
FULL = frozenset({10023, 10028, _NO_ROOM, 10077})
DUPLICATE_WINDOW_S = 120
MAX_MESSAGE_BYTES = 1 << 20
FULL_BYTES = 16 << 10  # a stream with less room refuses appends, or will soon

# Settings that the ledger's guarantees rest on; a missing one counts as its zero value.
# `deny_purge`, which the server never revokes, is also fine: the ledger then stays whole.
WANTED: Mapping[str, object] = {
    "subjects": [ALL_SUBJECTS],
    "storage": "file",
    "retention": "limits",
    "discard": "new",
    "deny_delete": True,
    "allow_rollup_hdrs": False,
    "allow_atomic": True,
    "allow_msg_ttl": False,
    "max_age": 0,
    "max_msgs": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": MAX_MESSAGE_BYTES,
    "duplicate_window": DUPLICATE_WINDOW_S * 1_000_000_000,
    "mirror": None,
    "sources": None,
    "republish": None,
    "subject_transform": None,
    "sealed": False,
    "no_ack": False,
    "discard_new_per_subject": False,
    "allow_msg_counter": False,
    "allow_msg_schedules": False,
    "allow_batched": False,
    "subject_delete_marker_ttl": 0,
}
# Settings that the operator may choose or that change no record. A new server setting must be
# classified first (`tests/integration/ledger/test_stream.py`). The server itself refuses any
# `persist_mode` but the default with `allow_atomic`.
FREE = frozenset({
    "name", "description", "metadata", "deny_purge", "max_bytes", "max_consumers",
    "consumer_limits", "num_replicas", "placement", "compression", "first_seq",
    "allow_direct", "mirror_direct", "persist_mode",
})  # fmt: skip


class StreamState(msgspec.Struct, frozen=True):
    """The first and last revision of the stream, and its size."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] = {}  # number of records on each requested subject


class StreamPeer(msgspec.Struct, frozen=True):
    """A server that replicates the stream from its leader."""

    name: str
    current: bool = True
    offline: bool = False


class StreamCluster(msgspec.Struct, frozen=True):
    """The cluster's servers that store the stream."""

    leader: str = ""
    replicas: tuple[StreamPeer, ...] = ()


class StreamInfo(msgspec.Struct, frozen=True):
    """The stream as the server describes it."""

    config: dict[str, Any]
    state: StreamState
    created: str
    ts: str = ""  # the server's current time
    cluster: StreamCluster | None = None

    @property
    def lost(self) -> int:
        """Return the number of records missing between the first and the last revision."""
        state = self.state
        there = state.last_seq - state.first_seq + 1 if state.messages else 0
        return max(there - state.messages, 0)

    @property
    def free(self) -> float:
        """Return the unused part of `max_bytes`, from 0 to 1; see `Look.free`."""
        most = self.config.get("max_bytes", -1)
        left = most - self.state.bytes
        return 1.0 if most <= 0 else 0.0 if left < FULL_BYTES else left / most


class Look(msgspec.Struct, frozen=True):
    """The result of a check of the stream: changed settings, lost records and free space."""

    drifted: tuple[str, ...] = ()  # settings that differ
    lost: int = 0  # records
    free: float = 1.0  # of `max_bytes`: 0 if one more batch may not fit, 1 without a limit
    room_bytes: int = 0  # `max_bytes`, or 0


class Stored(msgspec.Struct, frozen=True):
    """A record as the server stores it."""

    seq: int
    subject: str
    hdrs: str = ""  # in base64
    data: bytes = b""
    time: str = ""  # by the server's clock

    @property
    def at(self) -> datetime:
        """Return the time at which the server stored the record, by the server's clock."""
        return datetime.fromisoformat(self.time)

    @property
    def record(self) -> Record:
        """Return the record in the form that readers receive."""
        return Record(self.seq, self.subject, self.data)


class _StoredAnswer(msgspec.Struct, frozen=True):
    message: Stored


_decode_info = msgspec.json.Decoder(StreamInfo).decode
_decode_stored = msgspec.json.Decoder(_StoredAnswer).decode


async def find(wire: Wire, *, subject: str = "") -> StreamInfo | None:
    """Return the stream's info, or None without a stream. Raises LedgerUnavailable."""
    body = {"subjects_filter": subject} if subject else None
    answer = await call_api(wire, f"STREAM.INFO.{STREAM}", body, absent=STREAM_NOT_FOUND)
    return _decode_info(answer) if answer else None


async def read_info(wire: Wire, *, subject: str = "") -> StreamInfo:
    """Return the stream's info; see `find`. Raises LedgerUnavailable if there is no stream."""
    info = await find(wire, subject=subject)
    if info is None:
        raise LedgerUnavailable(
            f"the server has no stream {STREAM}; create it with the bootstrap user "
            "(`apportion up` does this)"
        )
    return info


async def read_record(wire: Wire, revision: int) -> Record | None:
    """Return the record at that revision, or None. Raises LedgerUnavailable."""
    stored = await read_stored(wire, {"seq": revision})
    return None if stored is None else stored.record


async def read_rules(wire: Wire) -> Rules:
    """Return the ledger's current reading rules. Raises LedgerUnavailable, NotPermitted."""
    return rules_of(await read_said(wire))


async def read_said(wire: Wire) -> list[Said]:
    """Return the ledger's FormatEnabled and RevisionSetAside events.

    Raises LedgerUnavailable, NotPermitted."""
    said: list[Said] = []
    at = 1
    while stored := await read_stored(wire, {"seq": at, "next_by_subj": RULES}):
        found = said_at(stored.seq, stored.subject, stored.data)
        said += [found] if found is not None else []
        at = stored.seq + 1
    return said


async def newest_stored_by(wire: Wire, time: datetime) -> int:
    """Return the newest revision stored up to `time` (binary search). Raises LedgerUnavailable."""
    state = (await read_info(wire)).state
    below, above = state.first_seq - 1, state.last_seq + 1
    while above - below > 1:
        middle = (below + above) // 2
        stored = await read_stored(wire, {"seq": middle})
        if stored is None or stored.at <= time:
            below = middle
        else:
            above = middle
    return below if below >= state.first_seq else 0


async def newest_on(wire: Wire, subject: str) -> int:
    """Return the newest revision on `subject`, or 0 if none. Raises LedgerUnavailable."""
    stored = await read_stored(wire, {"last_by_subj": subject})
    return 0 if stored is None else stored.seq


async def read_stored(wire: Wire, query: Mapping[str, object]) -> Stored | None:
    """Return the record that `STREAM.MSG.GET` finds for `query`, or None.

    Raises LedgerUnavailable."""
    answer = await call_api(wire, f"STREAM.MSG.GET.{STREAM}", query, absent=NO_MESSAGE)
    return _decode_stored(answer).message if answer else None


def drift(
    of: str, found: Mapping[str, object], wanted: Mapping[str, object]
) -> list[LedgerDrifted]:
    """Return an error for each setting of `wanted` that differs in `found`."""
    return [
        LedgerDrifted(f"{of} {name}", found.get(name), value)
        for name, value in wanted.items()
        if found.get(name) != value and (found.get(name) or value)
    ]


def stream_drift(info: StreamInfo) -> list[LedgerDrifted]:
    """Return an error for each setting of the stream that differs from WANTED."""
    return drift(f"stream {STREAM}", info.config, WANTED)


async def check(wire: Wire) -> StreamInfo:
    """Return the stream's info. Raises LedgerDrifted if a setting differs."""
    info = await read_info(wire)
    if info.config.get("mirror") == COPY["mirror"]:  # the auditors' copy only mirrors the stream
        return info
    for error in stream_drift(info):
        raise error
    return info


class SizeRefused(LedgerError):
    """Error: the requested stream size exceeds the server's limit or its disk."""

    def __init__(self, max_bytes: int) -> None:
        self.why = (
            f"{max_bytes} exceeds the space that nats-server has left for streams (max_file_store "
            "or disk); use fewer bytes, use -1 for the whole disk, or free space"
        )
        super().__init__(f"max_bytes: {self.why}")


async def create(wire: Wire, *, replicas: int, max_bytes: int) -> StreamInfo:
    """Create the stream, or check an existing one. Raises LedgerError."""
    if await find(wire) is None:
        # A server refuses settings that it does not know, even if they are off.
        wanted = {name: value for name, value in WANTED.items() if value}
        wanted |= {"name": STREAM, "num_replicas": replicas, "max_bytes": max_bytes}
        try:
            # The stream may have been created in the meantime; the check below covers that.
            await call_api(wire, f"STREAM.CREATE.{STREAM}", wanted, absent=NAME_IN_USE)
        except ApiRefused as refused:
            if refused.error.err_code == _NO_ROOM:
                raise SizeRefused(max_bytes) from refused
            raise LedgerError(
                f"the server cannot create stream {STREAM} with {replicas} replicas and "
                f"max_bytes {max_bytes}: {refused.error.description}"
            ) from refused
    info = await check(wire)
    found = info.config.get("num_replicas")
    if found != replicas:
        raise LedgerDrifted(f"stream {STREAM} num_replicas", found, replicas)
    return info


COPY_API: Final = "$JS.AUDIT.API"  # the auditors' copy is in an account of its own
# The auditors' copy, with the stream's revisions.
COPY: Final[Mapping[str, object]] = {
    "name": STREAM,
    "storage": "file",
    "mirror": {"name": STREAM, "external": {"api": "$JS.APPORTION.API", "deliver": "copy.audit"}},
    "deny_delete": True,
    "num_replicas": 1,
    # After a crash, the copy gets missing records from the stream, so it needs no fsync.
    "persist_mode": "async",
}


async def copy_for_auditors(wire: Wire) -> None:
    """Create the stream's copy for auditors if the server allows it. Raises LedgerError."""
    try:
        await call_api(wire, f"STREAM.CREATE.{STREAM}", COPY, api=COPY_API, absent=NAME_IN_USE)
    except ApiRefused as refused:
        raise LedgerError(str(refused)) from refused
    except (LedgerUnavailable, NotPermitted) as failure:
        _log.warning("the auditors' copy of the ledger cannot be created", error=str(failure))


async def drop(wire: Wire, *, last: int) -> StreamInfo:
    """Drop revisions up to `last`, which `retention` has checked. Raises LedgerError."""
    try:
        await call_api(wire, f"STREAM.PURGE.{STREAM}", {"seq": last + 1})
    except ApiRefused as refused:
        raise LedgerError(
            f"the server cannot drop the beginning of stream {STREAM}: "
            f"{refused.error.description}; a stream created with deny_purge can never be trimmed"
        ) from refused
    with contextlib.suppress(LedgerError):  # a server without auditors has no copy
        await call_api(wire, f"STREAM.PURGE.{STREAM}", {"seq": last + 1}, api=COPY_API)
    return await check(wire)


async def resize(wire: Wire, *, max_bytes: int) -> StreamInfo:
    """Set the size limit as the bootstrap user; -1 allows the whole disk. Raises LedgerError."""
    info = await check(wire)
    try:
        await call_api(wire, f"STREAM.UPDATE.{STREAM}", {**info.config, "max_bytes": max_bytes})
    except ApiRefused as refused:
        if refused.error.err_code == _NO_ROOM:
            raise SizeRefused(max_bytes) from refused
        raise LedgerError(
            f"the server cannot give stream {STREAM} {max_bytes} bytes: "
            f"{refused.error.description}; raise its max_file_store first"
        ) from refused
    return await check(wire)
