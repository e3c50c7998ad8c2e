"""Read a time span of the ledger and decide its pods again, for `replay` and `shadow`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from apportion.cli.client.configuration import read_configuration_file
from apportion.cli.client.connection import Where
from apportion.cli.client.ledger import with_ledger
from apportion.cli.exits import NotFound, Outdated, Wrong
from apportion.cli.render.output import bar, warn
from apportion.core.answers.replays import ReplayAnswer, ShadowAnswer
from apportion.core.ledger.state import State
from apportion.core.reports.answers import CapacityAnswer
from apportion.core.reports.prices import PriceError, Prices
from apportion.lab.capacity import capacity, known_types, named_types
from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.course import CourseFailed
from apportion.lab.gates import GateInvalid, bounds_of
from apportion.lab.ledgers import SpanInvalid, Wanted, now, read_archives, read_ledger
from apportion.lab.recording import Limits, Recorded, Recording, RecordingFailed
from apportion.lab.replaying import Otherwise, replay
from apportion.lab.setups import SetupInvalid, read_setup
from apportion.lab.shadowing import Seen, Shadowing
from apportion.runtime.files.fleets import FleetInvalid, read_fleet
from apportion.runtime.files.manifests import read_manifest_files
from apportion.runtime.jetstream.reports import read_prices
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
    files: tuple[str, ...] = ()
    config: str = ""
    gates: tuple[str, ...] = ()
    prices: Path | None = None


def replayed(where: Where, asked: Asked) -> ReplayAnswer:
    """Return the result of a replay. Raises Wrong, NotFound, Unreachable, Outdated."""
    with _said():
        bounds = bounds_of(asked.gates)
        fleet = tuple(read_fleet(asked.fleet)) if asked.fleet is not None else ()
        configuration = read_configuration_file(asked.config)[1] if asked.config else None
        documents = list(read_manifest_files(asked.files, sys.stdin.buffer))
        prices = read_prices(asked.prices) if asked.prices is not None else None
        recorded = _recorded(where, asked, prices)
        files = read_setup(
            documents, configuration or recorded.beginning().configuration,
            replaces=configuration is not None,
        )  # fmt: skip
        if files.skipped:
            warn(files.skipped)
        if files.setup.hyper_nodes and not fleet and not recorded.in_kubernetes:
            warn("HyperNodes have no effect: this period has no nodes of Kubernetes")
        for source, line, note in files.notes:
            warn(f"{source}, line {line}, {note.field}: {note.said}")
        changes = Changes(lose=asked.lose, add=asked.add, policy=asked.policy)
        # All replays learn prices, so that users can compare one with another.
        otherwise = Otherwise(changes=changes, fleet=fleet, setup=files.setup, learns=True)
        with bar("replaying") as tell:
            return replay(recorded, otherwise, bounds=bounds, prices=prices, tell=tell)


def node_types_tried(
    where: Where, asked: Asked, specs: Sequence[str], count: int
) -> CapacityAnswer:
    """Return how much less pods would have waited with more nodes. Raises as `replayed`."""
    with _said():
        prices = read_prices(asked.prices) if asked.prices is not None else None
        named = named_types(specs)
        recorded = _recorded(where, asked)
        types = named or known_types(recorded, prices)
        with bar("replaying") as tell:
            return capacity(recorded, types, prices, count=count, tell=tell)


def _recorded(where: Where, asked: Asked, prices: Prices | None = None) -> Recorded:
    sink = partial(Recording, prices=prices)
    wanted = Wanted(asked.begin, asked.end, now())
    with bar("reading") as tell:
        if asked.archives:
            return read_archives(asked.archives, wanted, sink, tell=tell).finish()
        return with_ledger(
            where.reach(), lambda ledger: read_ledger(ledger, wanted, sink, tell=tell)
        ).finish()


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
    except (SpanInvalid, WishInvalid, FleetInvalid, GateInvalid) as error:
        raise Wrong(str(error)) from None
    except UnknownEvent as error:
        raise Outdated(str(error)) from None
    except PriceError as error:
        raise NotFound(f"--prices: {error}") from None
    except (ArchiveError, RecordingFailed, CourseFailed, SetupInvalid, OSError) as error:
        raise NotFound(str(error)) from None
