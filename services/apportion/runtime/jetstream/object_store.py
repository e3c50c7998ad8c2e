"""A bucket of the NATS object store, readable by `nats object ls` and all clients.

Chunks are written first and the entry that names them last, so only complete objects are found.
Invariant: `get` returns the bytes that were put, checked by length and SHA-256, or raises."""

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec

from apportion.runtime.jetstream.stream import FULL, NAME_IN_USE, STREAM_NOT_FOUND
from apportion.runtime.jetstream.wire import Answer, ApiRefused, LostReply, Message, Wire, call_api
from apportion.runtime.ledger.port import LedgerError, LedgerFull, LedgerUnavailable, NotServed
from apportion_schemas.decoding import from_outside

CHUNK_BYTES = 768 << 10  # below the server's limit of 1 MiB for one message
TIMEOUT_S = 10.0
ASKED_AT_ONCE = 4  # pieces: three megabytes within the time of one request
STORE_API = "$JS.STORE.API"  # buckets are in an account of their own
_DIGEST = "SHA-256="


class BadObject(LedgerError):
    """Error: the stored object differs from the bytes that were put."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of one stored object, in the format of all NATS clients."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    mtime: str = ""
    metadata: dict[str, str] = {}
    options: dict[str, int] = {}
    deleted: bool = False


class _Found(msgspec.Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct, frozen=True):
    state: _Found


_decode_entry = from_outside(msgspec.json.Decoder(Entry).decode)
_decode_ack = from_outside(msgspec.json.Decoder(Answer).decode)
_decode_info = from_outside(msgspec.json.Decoder(_Info).decode)


class Bucket:
    """One bucket of the object store over one connection."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name
        self._stream = f"OBJ_{name}"

    async def create(self, *, replicas: int, description: str) -> None:
        """Create the bucket unless it exists. Raises LedgerError."""
        if await self.exists():
            return
        config: dict[str, object] = {
            "name": self._stream,
            "description": description,
            "subjects": [f"$O.{self._name}.C.>", f"$O.{self._name}.M.>"],
            "storage": "file",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "num_replicas": replicas,
        }
        create = f"STREAM.CREATE.{self._stream}"
        try:
            await call_api(self._wire, create, config, api=STORE_API, absent=NAME_IN_USE)
        except ApiRefused as refused:
            raise LedgerError(
                f"the server cannot create bucket {self._name} with {replicas} replicas: "
                f"{refused.error.description}"
            ) from refused

    async def exists(self) -> bool:
        """Return True if the bucket exists on this server. Raises LedgerUnavailable."""
        info = f"STREAM.INFO.{self._stream}"
        try:
            return bool(await call_api(self._wire, info, api=STORE_API, absent=STREAM_NOT_FOUND))
        except NotServed:
            return False

    async def entries(self) -> list[Entry]:
        """Return the entries of all valid objects, in no particular order."""
        found = []
        for subject in await self._subjects("M"):
            data = await self._ask({"last_by_subj": subject})
            if data is not None:
                try:
                    entry = _decode_entry(data[0])
                except msgspec.DecodeError:
                    continue
                if not entry.deleted:
                    found.append(entry)
        return found

    async def put(
        self, name: str, nuid: str, parts: Sequence[bytes], metadata: Mapping[str, str]
    ) -> None:
        """Store `parts` as object `name`, in chunks named after `nuid`. Raises LedgerError."""
        digest, size, chunks = sha256(), 0, 0
        for chunk in _chunks(parts):
            digest.update(chunk)
            size, chunks = size + len(chunk), chunks + 1
            await self._publish(f"$O.{self._name}.C.{nuid}", chunk, {})
        entry = Entry(
            name=name, bucket=self._name, nuid=nuid, size=size, chunks=chunks,
            digest=_DIGEST + base64.urlsafe_b64encode(digest.digest()).decode(),
            metadata=dict(metadata), options={"max_chunk_size": CHUNK_BYTES},
        )  # fmt: skip
        await self._publish(self._subject(name), msgspec.json.encode(entry), {"Nats-Rollup": "sub"})

    async def get(self, entry: Entry, *, size_max: int) -> bytearray:
        """Return the bytes of an entry's object. Raises BadObject, LedgerUnavailable."""
        if entry.size > size_max:
            raise BadObject(f"{entry.name} has {entry.size} bytes; the limit is {size_max}")
        data, digest, after = bytearray(), sha256(), 0
        while len(data) < entry.size:
            left = -(-(entry.size - len(data)) // CHUNK_BYTES)
            # Request several revisions at once. Mostly each has a chunk; where chunks of another
            # writer are in between, several answers are the same.
            asks = (
                self._ask({"next_by_subj": f"$O.{self._name}.C.{entry.nuid}", "seq": place})
                for place in range(after + 1, after + 1 + min(left, ASKED_AT_ONCE))
            )
            answers = await asyncio.gather(*asks)
            pieces = sorted({place: piece for piece, place in filter(None, answers)}.items())
            if not pieces:
                raise BadObject(f"{entry.name} is incomplete after byte {len(data)}")
            for after, piece in pieces:  # noqa: B007 - the last place is where to continue
                digest.update(piece)
                data += piece
        written = _DIGEST + base64.urlsafe_b64encode(digest.digest()).decode()
        if len(data) != entry.size or written != entry.digest:
            raise BadObject(f"{entry.name} is corrupt: its digest does not match")
        return data

    async def put_alone(self, name: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Store a message under `name` without an entry; replace the previous message."""
        await self._publish(self._alone(name), payload, {**headers, "Nats-Rollup": "sub"})

    async def get_alone(self, name: str) -> tuple[bytes, Mapping[str, str]] | None:
        """Return the message that `put_alone` stored and its headers, or None if there is none.

        Raises LedgerUnavailable, NotPermitted."""
        found = await self._direct(f".{self._alone(name)}", b"")
        return None if found is None else (found.data, found.headers or {})

    async def get_last(self, name: str) -> bytes | None:
        """Return what `put_alone` stored, or None. Raises LedgerUnavailable, NotPermitted."""
        found = await self._ask({"last_by_subj": self._alone(name)})
        return None if found is None else found[0]

    async def delete(self, entry: Entry) -> None:
        """Delete the entry, then its chunks. Raises LedgerUnavailable, NotPermitted."""
        await self._purge(self._subject(entry.name))
        await self._purge(f"$O.{self._name}.C.{entry.nuid}")

    async def forget_pieces(self, nuid: str) -> None:
        """Delete the chunks of this `nuid`. The caller makes sure that no entry names them."""
        await self._purge(f"$O.{self._name}.C.{nuid}")

    async def pieces(self) -> set[str]:
        """Return every `nuid` that has chunks, whether or not an entry names it."""
        return {subject.rpartition(".")[2] for subject in await self._subjects("C")}

    def _alone(self, name: str) -> str:
        return f"$O.{self._name}.C.{name}"

    def _subject(self, name: str) -> str:
        return f"$O.{self._name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    async def _subjects(self, kind: str) -> list[str]:
        body = {"subjects_filter": f"$O.{self._name}.{kind}.>"}
        answer = await call_api(self._wire, f"STREAM.INFO.{self._stream}", body, api=STORE_API)
        return sorted(_decode_info(answer).state.subjects or ())

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._wire.wait_connected(TIMEOUT_S)
        try:
            reply = await self._wire.request(subject, payload, timeout_s=TIMEOUT_S, headers=headers)
        except LostReply as lost:
            raise LedgerUnavailable(f"no acknowledgement from bucket {self._name}: {lost}") from (
                lost
            )
        error = _decode_ack(reply.data).error
        if error is not None and error.err_code in FULL:
            raise LedgerFull(error.description)
        if error is not None:
            raise LedgerUnavailable(f"cannot write to bucket {self._name}: {error.description}")

    async def _ask(self, body: Mapping[str, object]) -> tuple[bytes, int] | None:
        found = await self._direct("", msgspec.json.encode(body))
        if found is None:
            return None
        return found.data, int((found.headers or {})["Nats-Sequence"])

    async def _direct(self, of_subject: str, payload: bytes) -> Message | None:
        await self._wire.wait_connected(TIMEOUT_S)
        api = f"{STORE_API}.DIRECT.GET.{self._stream}{of_subject}"
        try:
            reply = await self._wire.request(api, payload, timeout_s=TIMEOUT_S, headers={})
        except LostReply as lost:
            raise LedgerUnavailable(f"no answer from bucket {self._name}: {lost}") from lost
        return reply if "Nats-Sequence" in (reply.headers or {}) else None

    async def _purge(self, subject: str) -> None:
        purge = f"STREAM.PURGE.{self._stream}"
        await call_api(self._wire, purge, {"filter": subject}, api=STORE_API)


def _chunks(parts: Sequence[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)
