"""Read a time span of the ledger and decide its pods again, for `replay` and `shadow`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from apportion.cli.client.connection import Where
from apportion.cli.client.ledger import with_ledger
from apportion.cli.exits import NotFound, Outdated, Wrong
from apportion.cli.render.output import bar
from apportion.core.answers.replays import ReplayAnswer, ShadowAnswer
from apportion.core.ledger.state import State
from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.course import CourseFailed
from apportion.lab.ledgers import SpanInvalid, Wanted, now, read_archives, read_ledger
from apportion.lab.recording import Limits, Recording, RecordingFailed
from apportion.lab.replaying import Otherwise, replay
from apportion.lab.shadowing import Seen, Shadowing
from apportion.runtime.files.fleets import FleetInvalid, read_fleet
from apportion.runtime.ledger.archive import ArchiveError
from apportion_schemas import UnknownEvent


class Asked(Struct, frozen=True, kw_only=True):
    """The options of a replay or shadow, as the user typed them."""

    begin: str = ""
    end: str = ""
    policy: str = ""
    fleet: Path | None = None
    lose: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    archives: tuple[Path, ...] = ()


def replayed(where: Where, asked: Asked) -> ReplayAnswer:
    """Return the result of a replay. Raises Wrong, NotFound, Unreachable, Outdated."""
    with _said():
        otherwise = Otherwise(
            changes=Changes(lose=asked.lose, add=asked.add, policy=asked.policy),
            fleet=tuple(read_fleet(asked.fleet)) if asked.fleet is not None else (),
        )
        wanted = Wanted(asked.begin, asked.end, now())
        with bar("reading") as tell:
            if asked.archives:
                recording = read_archives(asked.archives, wanted, Recording, tell=tell)
            else:
                recording = with_ledger(
                    where.reach(), lambda ledger: read_ledger(ledger, wanted, Recording, tell=tell)
                )
        with bar("replaying") as tell:
            return replay(recording.finish(), otherwise, tell=tell)


def shadowed(where: Where, asked: Asked, follow: Seen | None) -> ShadowAnswer | None:
    """Return the answer of `shadow`, or None after Ctrl-C. Raises the errors of `replayed`."""
    wanted, endless = Wanted(asked.begin, asked.end, now()), follow is not None

    def sink(began: State, limits: Limits) -> Shadowing:
        upto = sys.maxsize if endless else limits.upto
        return Shadowing(began, after=limits.after, upto=upto, follow=follow)

    try:
        with _said(), bar("comparing", quiet=endless) as tell:
            if asked.archives:
                return read_archives(asked.archives, wanted, sink, tell=tell).finish()
            return with_ledger(
                where.reach(),
                lambda ledger: read_ledger(ledger, wanted, sink, tell=tell, endless=endless),
            ).finish()
    except KeyboardInterrupt:
        if follow is None:
            raise
        return None


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except (SpanInvalid, WishInvalid, FleetInvalid) as error:
        raise Wrong(str(error)) from None
    except UnknownEvent as error:
        raise Outdated(str(error)) from None
    except (ArchiveError, RecordingFailed, CourseFailed, OSError) as error:
        raise NotFound(str(error)) from None
