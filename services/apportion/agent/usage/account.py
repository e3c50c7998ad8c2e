"""Adds up the use of each share by the hour: memory and compute over time, and the peak.

Invariants: every sampled interval is in exactly one record. A share or program whose sums do not
fit into an event is dropped and logged, and all others are kept."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from apportion.agent.usage.uses import Key, Look, Use
from apportion_schemas import MigInstance, ShareUsed, UnsharedUsed, UsageRecorded
from apportion_schemas.quantities import TEXT_MAX
from apportion_schemas.usage import SHARES_MAX, UNSHARED_MAX

_MIB: Final = 1 << 20
# If compute was not measured for longer, a record with little work reports none at all, because a
# share may have worked in the rest of the time.
UNMEASURED_MAX_S: Final = 60.0
_TIME_MAX: Final = 1 << 37  # seconds since 1970; beyond the year 6000, datetime fails
_Used = TypeVar("_Used", ShareUsed, UnsharedUsed)

_log = logging.getLogger(__name__)


class _Sums(Struct, kw_only=True):
    """The totals of a share or program."""

    seconds: float = 0.0
    memory_mib_seconds: float = 0.0
    memory_mib_peak: int = 0

    def add(self, held_mib: int, seconds: float) -> None:
        """Add one sample, which counts for the `seconds` since the previous sample."""
        self.seconds += seconds
        self.memory_mib_seconds += held_mib * seconds
        self.memory_mib_peak = max(self.memory_mib_peak, held_mib)


class _Share(_Sums):
    """The sums of one share so far, with the latest size of the share."""

    pod: str
    namespace: str
    name: str
    container: str
    device: str
    instance: MigInstance | None
    memory_mib: int = 0
    cores: int = 0
    cores_seconds: float | None = None
    cores_peak: int | None = None
    bound: int = 0
    unmeasured: float = 0.0  # seconds without a measurement of compute

    @property
    def key(self) -> Key:
        """Return the unique key of the share, equal to the `Use.key` of its samples."""
        return self.pod, self.container, self.device, self.instance

    def add_use(self, use: Use, seconds: float) -> None:
        """Add one sample of memory and compute, which counts for `seconds`."""
        self.add(use.memory_used // _MIB, seconds)
        self.memory_mib, self.cores = use.memory_limit // _MIB, use.cores_limit
        self.bound = use.bound
        if use.cores_used is not None:
            self.cores_seconds = (self.cores_seconds or 0.0) + use.cores_used * seconds
            self.cores_peak = max(self.cores_peak or 0, use.cores_used)
        else:
            self.unmeasured += seconds

    def works(self, below: int) -> bool:
        """Return True if the peak is `below` percent of the share or more, and not 0."""
        return (self.cores_peak or 0) * 100 >= max(below * (self.cores or 100), 1)


class _Unshared(_Sums):
    device: str
    command: str
    pod: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the unique key of a program that uses a device without a share."""
        return self.device, self.command, self.pod


class _Saved(Struct):
    """An account in the form in which it is saved on disk. Times are in seconds since 1970."""

    began_s: float
    shares: list[_Share]
    unshared: list[_Unshared]
    ended_s: float = 0.0


_decode = msgspec.msgpack.Decoder(list[_Saved]).decode


class Account:
    """One node's sums of use from `began_s` to `ended_s` (seconds since 1970; 0 while open)."""

    def __init__(
        self,
        began_s: float,
        ended_s: float = 0.0,
        shares: Iterable[_Share] = (),
        unshared: Iterable[_Unshared] = (),
    ) -> None:
        self.began_s = began_s
        self.ended_s = ended_s
        self._shares = {each.key: each for each in shares}
        self._unshared = {each.key: each for each in unshared}

    def add(self, look: Look, seconds: float) -> None:
        """Add one sample, which counts for `seconds`."""
        for use in look.uses:
            if use.key not in self._shares:
                named = (use.pod, use.namespace, use.name, use.container)
                self._shares[use.key] = _Share(*named, use.device, use.instance)
            self._shares[use.key].add_use(use, seconds)
        held: Counter[tuple[str, str, str]] = Counter()  # by program: processes come and go
        for each in look.unshared:
            held[each.device, each.owner.command[:TEXT_MAX], each.owner.pod] += each.memory
        for key, memory in held.items():
            self._unshared.setdefault(key, _Unshared(*key)).add(memory // _MIB, seconds)

    def shares(self, below: int = 0, *, working: bool) -> set[Key]:
        """Return the measured shares that worked, by `idle.below`, or those that did not."""
        return {
            key
            for key, each in self._shares.items()
            if each.cores_peak is not None and each.works(below) is working
        }

    def records(self, node: str) -> Iterator[UsageRecorded]:
        """Split a closed account into as few events as possible; yield none if nothing was used."""
        shares = list(_used(ShareUsed, self._shares.values()))
        most = sorted(self._unshared.values(), key=lambda each: -each.memory_mib_seconds)
        unshared = tuple(_used(UnsharedUsed, most[:UNSHARED_MAX]))
        seconds = max(0, round(self.ended_s - self.began_s))
        for at in range(0, len(shares) or min(1, len(unshared)), SHARES_MAX):
            part = tuple(shares[at : at + SHARES_MAX])
            yield UsageRecorded(
                node=node, seconds=seconds, shares=part, unshared=() if at else unshared
            )

    def to_saved(self) -> _Saved:
        """Return the account in the form in which it is saved on disk."""
        shares, unshared = list(self._shares.values()), list(self._unshared.values())
        return _Saved(self.began_s, shares, unshared, self.ended_s)


def saved(accounts: Iterable[Account]) -> bytes:
    """Encode the accounts as bytes for the file on disk."""
    return msgspec.msgpack.encode([each.to_saved() for each in accounts])


def restored(data: bytes) -> list[Account]:
    """Decode saved accounts. Raises ValueError if the bytes are invalid."""
    accounts = []
    for each in _decode(data):
        if not 0 <= each.began_s < _TIME_MAX or not 0 <= each.ended_s < _TIME_MAX:
            raise ValueError(f"invalid period from {each.began_s} to {each.ended_s}")
        accounts.append(Account(each.began_s, each.ended_s, each.shares, each.unshared))
    return accounts


def _used(kind: type[_Used], sums: Iterable[_Share | _Unshared]) -> Iterator[_Used]:
    for each in sums:
        fields = {name: getattr(each, name) for name in kind.__struct_fields__}
        if isinstance(each, _Share) and each.unmeasured > UNMEASURED_MAX_S and not each.works(50):
            fields |= {"cores_seconds": None, "cores_peak": None}
        try:
            whole = {n: round(v) if isinstance(v, float) else v for n, v in fields.items()}
            yield msgspec.convert(whole, kind)
        except (ValueError, OverflowError) as error:  # includes msgspec's errors
            name = str(each.key[:3])
            _log.warning("usage of %s omitted from the record: %s", name, error)
