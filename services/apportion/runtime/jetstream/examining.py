"""Collects facts for `doctor` about the ledger's server, stream and clocks; read-only.

Invariant: a fact that this user may not request, or that gets no answer, is left out. `examine`
fails only if the server does not answer requests about the stream."""

import contextlib
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from apportion.core.doctor.facts import LedgerFacts, Skew
from apportion.core.identity.permissions import matches
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.client import Connection
from apportion.runtime.jetstream.snapshots import Snapshots
from apportion.runtime.jetstream.stream import StreamInfo
from apportion.runtime.jetstream.wire import API_TIMEOUT_S, STREAM, LostReply, Wire
from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable, ServerTooOld
from apportion.runtime.process.clock import Clock
from apportion_schemas import CATALOGUE, decode
from apportion_schemas.catalogue import SUBJECTS
from apportion_schemas.envelope import EventError

USER_INFO: Final = "$SYS.REQ.USER.INFO"
# an intake attests a snapshot within seconds; on a large ledger, within minutes
ATTESTED_WITHIN_S: Final = 300.0
# requests by which every role reads
READS: Final = (f"$JS.API.STREAM.INFO.{STREAM}", f"$JS.API.STREAM.MSG.GET.{STREAM}")
# an event may be this much older than its append, if its writer waited for the ledger
DELAY_S: Final = 30.0


class _Permissions(msgspec.Struct, frozen=True):
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class _Sides(msgspec.Struct, frozen=True):
    publish: _Permissions | None = None


class _User(msgspec.Struct, frozen=True):
    permissions: _Sides | None = None


class _UserInfo(msgspec.Struct, frozen=True):
    data: _User


_decode_user = msgspec.json.Decoder(_UserInfo).decode


async def examine(wire: Wire, *, clock: Clock, server_says: Mapping[str, Any]) -> LedgerFacts:
    """Return facts about the ledger. `server_says` is the server's `/varz`. Raises LedgerError."""
    before = clock.now()
    info = await stream.read_info(wire)
    skew_s = (before + (clock.now() - before) / 2 - datetime.fromisoformat(info.ts)).total_seconds()
    version = wire.server_version if isinstance(wire, Connection) else ""
    user = wire.user if isinstance(wire, Connection) else ""
    newest, age_s, doubtful = await _newest_snapshot(wire, info)
    storage = server_says.get("jetstream", {})
    config = storage.get("config", {})
    peers = info.cluster.replicas if info.cluster else ()
    return LedgerFacts(
        user=user,
        server=version,
        oldest=ServerTooOld.needed,
        replicas=info.config.get("num_replicas", 1),
        lagging=tuple(peer.name for peer in peers if peer.offline or not peer.current),
        drifted=tuple(str(error) for error in stream.stream_drift(info)),
        lost_records=info.lost,
        size_bytes=info.state.bytes,
        max_bytes=info.config.get("max_bytes", -1),
        first_revision=info.state.first_seq,
        last_revision=info.state.last_seq,
        skews=(Skew("this machine", skew_s), *await _writers(wire)),
        missing=await _missing(wire, user),
        sync_always=bool(config.get("sync_always", False)) if storage else None,
        store_bytes=storage.get("stats", {}).get("storage", 0),
        store_max_bytes=config.get("max_storage", 0),
        snapshot_revision=newest,
        snapshot_age_s=age_s,
        snapshots_doubtful=doubtful,
    )


async def _newest_snapshot(wire: Wire, info: StreamInfo) -> tuple[int, float, int]:
    """Return the newest attested revision, its age, and the number of overdue attestations."""
    doubtful = 0
    with contextlib.suppress(LedgerError):
        snapshots = Snapshots(wire)
        attested = await snapshots.attested() if (written := await snapshots.written()) else ()
        for stored in written:
            if stored.key not in attested:
                at = None
                with contextlib.suppress(LedgerUnavailable):  # a forged revision may be any number
                    at = await stream.read_stored(wire, {"seq": stored.revision})
                now = datetime.fromisoformat(info.ts)
                late = at is None or (now - at.at).total_seconds() > ATTESTED_WITHIN_S
                doubtful += late
        for stored in (await snapshots.stored())[:1]:
            made = stored.entry.mtime
            now = datetime.fromisoformat(info.ts)
            age_s = (now - datetime.fromisoformat(made)).total_seconds() if made else 0.0
            return stored.revision, age_s, doubtful
    return 0, 0.0, doubtful


async def _writers(wire: Wire) -> list[Skew]:
    """Return the clock skew between the last writer on each channel and the server."""
    found: dict[str, Skew] = {}
    for channel in dict.fromkeys(row.channel for row in CATALOGUE):
        with contextlib.suppress(LedgerError, EventError, ValueError):
            newest = await stream.read_stored(wire, {"last_by_subj": f"{SUBJECTS}.{channel}.>"})
            if newest is None:
                continue
            event = decode(newest.data, subject=newest.subject)
            seconds = (datetime.fromisoformat(event.time) - newest.at).total_seconds()
            behind = seconds < -DELAY_S
            found[event.source] = Skew(event.source, seconds if seconds > 0 or behind else 0.0)
    return list(found.values())


async def _missing(wire: Wire, user: str) -> tuple[str, ...] | None:
    """Return the subjects that this user's role needs but may not use; None if that is unknown."""
    try:
        reply = await wire.request(USER_INFO, b"", timeout_s=API_TIMEOUT_S, headers={})
        permissions = _decode_user(reply.data).data.permissions
    except (LedgerError, LostReply, msgspec.DecodeError):
        return None
    if permissions is None or permissions.publish is None:
        return ()  # a user without limits
    written = {f"{SUBJECTS}.{row.channel}.x" for row in CATALOGUE if row.writer == user}
    wanted = sorted(written) + list(READS)
    allow, deny = permissions.publish.allow, permissions.publish.deny
    return tuple(each for each in wanted if not covers(allow, each) or covers(deny, each))


def covers(patterns: Collection[str], subject: str) -> bool:
    """Return True if a pattern, with NATS wildcards, matches the subject."""
    return any(matches(pattern, subject) for pattern in patterns)
