"""Following the configuration, as a user who may read nothing else of the ledger.

Every other reader asks the stream's leader for single records, by which he sees how far to read and
that the ledger is still the one he has read; whoever may ask for one may ask for any. This one has
no such right. How far to read he knows from how many records the leader counts on the subject, and
where the ledger's beginning was dropped he begins with the record that is kept beside the
snapshots. Invariant: no configuration in force is passed over, however often the connection is
lost; the same record may come twice, and an older one after a newer, which the fold passes over.
What it cannot see is another record in the place of one that it has read, as in a ledger that was
put back from a copy: the other readers see that, and stop. Nor does it see which formats operators
have enabled, or what they have set aside: operators alone write where it reads, so a configuration
of a newer version counts as enabled, and halts it until it is upgraded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from apportion.core.ledger.rules import Enabled, Rules
from apportion.runtime.jetstream import stream
from apportion.runtime.jetstream.following import Follower
from apportion.runtime.jetstream.object_store import Bucket
from apportion.runtime.jetstream.snapshots import BEGINNING, CONFIGURATION, KeptConfiguration
from apportion.runtime.jetstream.wire import Wire
from apportion.runtime.ledger.port import ALL_SUBJECTS, LedgerTrimmed, Record, Subscription
from apportion_schemas import ConfigurationChanged
from apportion_schemas.formats import VERSION_MAX


def configuration_rules() -> Rules:
    """By which rules the configuration is read here."""
    return Rules(enabled={ConfigurationChanged.__name__: (Enabled(VERSION_MAX, at=0),)})


class ConfigurationFollower(Follower):
    """See ledger.Subscription. It is told of a made-anew ledger, and not of a trimmed one."""

    def __init__(self, wire: Wire, deliver: Callable[[Record], None]) -> None:
        super().__init__(wire, self._count, start=1, subjects=[CONFIGURATION])
        self._tell = deliver
        self._kept = KeptConfiguration(Bucket(wire, BEGINNING))
        self._delivered = 0

    @property
    def in_touch(self) -> bool:
        """Whether a configuration that is applied now would come."""
        return self._live != 0

    def _count(self, record: Record) -> None:
        self._tell(record)
        self._delivered += 1

    async def _look(self) -> None:
        info = await stream.read_info(self._wire, subject=CONFIGURATION)
        if not self._caught_up.is_set():
            self._goal = info.state.subjects.get(CONFIGURATION, 0)
        try:
            self._check_stream(info)
        except LedgerTrimmed:
            record = await self._kept.read()
            if record is not None and record.revision > self._position:
                try:
                    self._tell(record)
                except Exception as failure:  # noqa: BLE001 - the reader's own error ends its following
                    self._fail(failure)
        self._note_goal()

    def _note_goal(self) -> None:
        if self._goal is not None and self._delivered >= self._goal:
            self._caught_up.set()


class ConfigurationLedger:
    """The ledger as far as such a user reads it; see ledger.Readable."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._follower: ConfigurationFollower | None = None

    @property
    def in_touch(self) -> bool:
        """Whether a configuration that is applied now would come."""
        return self._follower is not None and self._follower.in_touch

    async def follow(
        self,
        deliver: Callable[[Record], None],
        *,
        start: int = 1,  # noqa: ARG002 - what is kept may stand before it
        subjects: Sequence[str] = (ALL_SUBJECTS,),  # noqa: ARG002 - it is always the same one
    ) -> Subscription:
        """See ledger.Readable. Raises LedgerUnavailable, LedgerHole, NotPermitted."""
        self._follower = ConfigurationFollower(self._wire, deliver)
        await self._follower.begin()
        return self._follower
