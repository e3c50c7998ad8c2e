"""The stream that is the ledger: how it must be set up, and a name for every way it is not.

Invariant: no service appends to or folds a stream from which events could be deleted one by one,
rolled up, aged out or stored in part. Its beginning, once it is in an archive, may be dropped: by
the bootstrap user, who can neither read nor write an event, and by `retention` alone."""

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
FULL = frozenset({10023, 10028, _NO_ROOM, 10077})
"""Error codes of a server that has no room left, in memory, on its disk or in the stream."""
DUPLICATE_WINDOW_S = 120
MAX_MESSAGE_BYTES = 1 << 20
FULL_BYTES = 16 << 10
"""A stream with less room than this refuses what is appended, or will at once."""

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
"""Every setting that the ledger's promises rest on; what is not set is as good as its zero.

With `deny_purge`, which the server never takes back, a ledger is kept whole for ever: sound, too.
"""
FREE = frozenset(
    {
        "name",
        "description",
        "metadata",
        "deny_purge",
        "max_bytes",
        "max_consumers",
        "consumer_limits",
        "num_replicas",
        "placement",
        "compression",
        "first_seq",
        "allow_direct",
        "mirror_direct",
        "persist_mode",
    }
)
"""What is the operator's, or changes no record: a server that knows another setting is looked at
(`tests/integration/ledger/test_stream.py`) before it is ours. Of `persist_mode` the server itself
refuses any but the default beside `allow_atomic`.
"""


class StreamState(msgspec.Struct, frozen=True):
    """What the server holds: revisions `first_seq` to `last_seq`.

    `subjects` has how many of them are on each subject that was asked about."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] = {}


class StreamPeer(msgspec.Struct, frozen=True):
    """A server that follows the leader of the stream."""

    name: str
    current: bool = True
    offline: bool = False


class StreamCluster(msgspec.Struct, frozen=True):
    """The servers that hold the stream beside its leader."""

    leader: str = ""
    replicas: tuple[StreamPeer, ...] = ()


class StreamInfo(msgspec.Struct, frozen=True):
    """The stream as its server describes it; `created` tells a new stream from the old one.

    `ts` is the server's time, as it writes times. `cluster` tells of the servers that hold it."""

    config: dict[str, Any]
    state: StreamState
    created: str
    ts: str = ""
    cluster: StreamCluster | None = None

    @property
    def lost(self) -> int:
        """How many records are gone between the first and the last that are there."""
        state = self.state
        there = state.last_seq - state.first_seq + 1 if state.messages else 0
        return max(there - state.messages, 0)

    @property
    def free(self) -> float:
        """See Look."""
        most = self.config.get("max_bytes", -1)
        left = most - self.state.bytes
        return 1.0 if most <= 0 else 0.0 if left < FULL_BYTES else left / most


class Look(msgspec.Struct, frozen=True):
    """What a look at the ledger's set-up found: settings in words, and records that are gone.

    `free` is the part of `max_bytes` that is left: 0 where one more batch may not fit, 1 without.
    `room_bytes` is `max_bytes`, 0 without."""

    drifted: tuple[str, ...] = ()
    lost: int = 0
    free: float = 1.0
    room_bytes: int = 0


class Stored(msgspec.Struct, frozen=True):
    """A record as the server stores it: when, by its clock, and its headers, in base64."""

    seq: int
    subject: str
    hdrs: str = ""
    data: bytes = b""
    time: str = ""

    @property
    def at(self) -> datetime:
        """When the server stored it, by its clock."""
        return datetime.fromisoformat(self.time)

    @property
    def record(self) -> Record:
        """What readers get of it."""
        return Record(self.seq, self.subject, self.data)


class _StoredAnswer(msgspec.Struct, frozen=True):
    message: Stored


_decode_info = msgspec.json.Decoder(StreamInfo).decode
_decode_stored = msgspec.json.Decoder(_StoredAnswer).decode


async def find(wire: Wire, *, subject: str = "") -> StreamInfo | None:
    """The stream's settings and state, None where there is no stream. Raises LedgerUnavailable.

    With a `subject` it also tells how many records are there."""
    body = {"subjects_filter": subject} if subject else None
    answer = await call_api(wire, f"STREAM.INFO.{STREAM}", body, absent=STREAM_NOT_FOUND)
    return _decode_info(answer) if answer else None


async def read_info(wire: Wire, *, subject: str = "") -> StreamInfo:
    """See `find`. Raises LedgerUnavailable, also where there is no stream."""
    info = await find(wire, subject=subject)
    if info is None:
        raise LedgerUnavailable(
            f"the server has no stream {STREAM}; make it with the bootstrap user "
            "(`apportion up` does so)"
        )
    return info


async def read_record(wire: Wire, revision: int) -> Record | None:
    """The record at that revision, None where there is none. Raises LedgerUnavailable."""
    stored = await read_stored(wire, {"seq": revision})
    return None if stored is None else stored.record


async def read_rules(wire: Wire) -> Rules:
    """By which rules the ledger is read, as of now. Raises LedgerUnavailable, NotPermitted."""
    return rules_of(await read_said(wire))


async def read_said(wire: Wire) -> list[Said]:
    """All that operators have said of how the ledger is read, as far as it is there.

    Raises LedgerUnavailable, NotPermitted."""
    said: list[Said] = []
    at = 1
    while stored := await read_stored(wire, {"seq": at, "next_by_subj": RULES}):
        found = said_at(stored.seq, stored.subject, stored.data)
        said += [found] if found is not None else []
        at = stored.seq + 1
    return said


async def newest_stored_by(wire: Wire, time: datetime) -> int:
    """The newest revision that was stored at or before this time; 0 where all are younger.

    It halves what is left with each question to the server. Raises LedgerUnavailable."""
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
    """The newest revision on `subject`, which may hold wildcards; 0 where it has none.

    Raises LedgerUnavailable."""
    stored = await read_stored(wire, {"last_by_subj": subject})
    return 0 if stored is None else stored.seq


async def read_stored(wire: Wire, query: Mapping[str, object]) -> Stored | None:
    """The record that a `STREAM.MSG.GET` finds, None without one. Raises LedgerUnavailable."""
    answer = await call_api(wire, f"STREAM.MSG.GET.{STREAM}", query, absent=NO_MESSAGE)
    return _decode_stored(answer).message if answer else None


def drift(
    of: str, found: Mapping[str, object], wanted: Mapping[str, object]
) -> list[LedgerDrifted]:
    """One error for each setting of `wanted` that `found` has otherwise; `of` is whose they are."""
    return [
        LedgerDrifted(f"{of} {name}", found.get(name), value)
        for name, value in wanted.items()
        if found.get(name) != value and (found.get(name) or value)
    ]


def stream_drift(info: StreamInfo) -> list[LedgerDrifted]:
    """One error for each setting of the stream that is not as WANTED."""
    return drift(f"stream {STREAM}", info.config, WANTED)


async def check(wire: Wire) -> StreamInfo:
    """The stream, if it is set up as the ledger needs it; otherwise raises LedgerDrifted.

    The auditors' copy is not: nobody appends to it, and what it lacks it takes from the stream."""
    info = await read_info(wire)
    if info.config.get("mirror") == COPY["mirror"]:
        return info
    for error in stream_drift(info):
        raise error
    return info


class SizeRefused(LedgerError):
    """The stream's size is beyond what the server's limit, or its disk, leaves."""

    def __init__(self, max_bytes: int) -> None:
        self.why = (
            f"{max_bytes} is more than nats-server has left for streams (its max_file_store, or "
            "its disk); write fewer bytes, write -1 for what the disk holds, or make room"
        )
        super().__init__(f"max_bytes: {self.why}")


async def create(wire: Wire, *, replicas: int, max_bytes: int) -> StreamInfo:
    """Make the stream, or check the one that is there.

    Raises LedgerDrifted, NotPermitted, LedgerUnavailable, LedgerError when the server will not make
    it (too few servers for `replicas`, say)."""
    if await find(wire) is None:
        # A server refuses settings that it does not know, also where they are off.
        wanted = {name: value for name, value in WANTED.items() if value}
        wanted |= {"name": STREAM, "num_replicas": replicas, "max_bytes": max_bytes}
        try:
            # One of that name may have been made in the meantime: the check looks at it.
            await call_api(wire, f"STREAM.CREATE.{STREAM}", wanted, absent=NAME_IN_USE)
        except ApiRefused as refused:
            if refused.error.err_code == _NO_ROOM:
                raise SizeRefused(max_bytes) from refused
            raise LedgerError(
                f"the server will not make stream {STREAM} with {replicas} replicas and "
                f"max_bytes {max_bytes}: {refused.error.description}"
            ) from refused
    info = await check(wire)
    found = info.config.get("num_replicas")
    if found != replicas:
        raise LedgerDrifted(f"stream {STREAM} num_replicas", found, replicas)
    return info


COPY_API: Final = "$JS.AUDIT.API"
"""By which the bootstrap user reaches the auditors' copy, which is in an account of its own."""
COPY: Final[Mapping[str, object]] = {
    "name": STREAM,
    "storage": "file",
    "mirror": {"name": STREAM, "external": {"api": "$JS.APPORTION.API", "deliver": "copy.audit"}},
    "deny_delete": True,
    "num_replicas": 1,
    # What it lacks after a crash it takes from the stream again: nothing of it is fsynced.
    "persist_mode": "async",
}
"""The auditors' copy: revisions are those of the stream."""


async def copy_for_auditors(wire: Wire) -> None:
    """Make the auditors' copy where there is none; for the bootstrap user.

    A server without their account has none, which is said and is no error. Raises LedgerError."""
    try:
        await call_api(wire, f"STREAM.CREATE.{STREAM}", COPY, api=COPY_API, absent=NAME_IN_USE)
    except ApiRefused as refused:
        raise LedgerError(str(refused)) from refused
    except (LedgerUnavailable, NotPermitted) as failure:
        _log.warning("auditors have no copy of the ledger to read", error=str(failure))


async def drop(wire: Wire, *, last: int) -> StreamInfo:
    """Drop the revisions up to `last`, on every server that holds them; for the bootstrap user.

    Whoever calls has made sure that they are not needed; see `retention`. Raises LedgerError."""
    try:
        await call_api(wire, f"STREAM.PURGE.{STREAM}", {"seq": last + 1})
    except ApiRefused as refused:
        raise LedgerError(
            f"the server will not drop the beginning of stream {STREAM}: "
            f"{refused.error.description}; one made with deny_purge is kept whole for ever"
        ) from refused
    with contextlib.suppress(LedgerError):  # a server without auditors has no copy
        await call_api(wire, f"STREAM.PURGE.{STREAM}", {"seq": last + 1}, api=COPY_API)
    return await check(wire)


async def resize(wire: Wire, *, max_bytes: int) -> StreamInfo:
    """Let the stream take so many bytes, -1 for what the disk holds; for the bootstrap user.

    Raises LedgerDrifted, NotPermitted, LedgerUnavailable, LedgerError when the server will not."""
    info = await check(wire)
    try:
        await call_api(wire, f"STREAM.UPDATE.{STREAM}", {**info.config, "max_bytes": max_bytes})
    except ApiRefused as refused:
        if refused.error.err_code == _NO_ROOM:
            raise SizeRefused(max_bytes) from refused
        raise LedgerError(
            f"the server will not give stream {STREAM} {max_bytes} bytes: "
            f"{refused.error.description}; raise its max_file_store first"
        ) from refused
    return await check(wire)
