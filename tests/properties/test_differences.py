"""Properties of the list of differences between two revisions of any history.

Each difference is traced to the event that caused it. An event causes differences only in the
objects that it names."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.explain.differences import LISTS, Part, Picture, picture, touched
from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.gateway.past.index import DEVICE, LIMIT, NODE, POD
from apportion.gateway.past.indexing import KINDS, Indexer, open_index
from apportion.runtime.ledger.port import Record
from apportion_schemas import decode, encode, subject_of
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import Effect, effects, exactly, payloads, trying, weighed
from tests.support.ledger_of import event_of

SETTINGS = trying(50)
HISTORIES = exactly(weighed((1, payloads), (1, effects)), 60)
Rows = list[tuple[Any, ...]]


def happened(state: State, steps: list[Payload | Effect]) -> Iterator[Payload]:
    """Yield the event of each step in turn. Skip a step for which the state has no suitable pod or
    device."""
    for step in steps:
        data = step.about(state) if isinstance(step, Effect) else step
        if data is not None:
            yield data


def rows(before: Picture, after: Picture) -> dict[str, Rows]:
    """Return all differences between two copies of the state, by the name of their list."""
    return {name: [tuple(row) for row in differ(before, after)] for name, differ in LISTS.items()}


@SETTINGS
@given(HISTORIES)
def test_an_event_makes_no_difference_outside_of_what_it_touches(
    steps: list[Payload | Effect],
) -> None:
    """An event changes only the objects that it names. An event that the fold refuses changes
    nothing."""
    state = State()
    for data in happened(state, steps):
        part = touched(state, data)
        whole = picture(state)
        seen = picture(state, part or Part())
        change = fold.apply(state, state.revision + 1, event_of(data))
        found = rows(whole, picture(state))
        assert found == rows(seen, picture(state, part or Part())), type(data)
        if change.refused or part is None:
            assert not any(found.values()), type(data)


@SETTINGS
@given(HISTORIES, st.data())
def test_each_difference_has_the_event_that_made_it(
    steps: list[Payload | Effect], drawn: st.DataObject
) -> None:
    """For every object that differs between two revisions, the index finds the event that changed
    the object."""
    with TemporaryDirectory() as folder:
        index, checkpoints = open_index(Path(folder), "c")
        indexer = Indexer(State(), index, checkpoints)
        pictures = [picture(indexer.state)]
        for data in happened(indexer.state, steps):
            record = Record(len(pictures), subject_of(data), encode(event_of(data)))
            indexer.apply(record, decode(record.payload, subject=record.subject))
            pictures.append(picture(indexer.state))
        first = drawn.draw(st.integers(0, len(pictures) - 1))
        last = drawn.draw(st.integers(first, len(pictures) - 1))
        made = {
            (name, key, what): revision
            for revision in range(first + 1, last + 1)
            for name, found in rows(pictures[revision - 1], pictures[revision]).items()
            for key, _, what, *_ in found
        }
        for name, found in rows(pictures[first], pictures[last]).items():
            keys = {row[0] for row in found}
            by = index.changed_by(KINDS[name], keys, after=first, upto=last)
            assert {(row[0], row[2]): made[name, row[0], row[2]] for row in found}.items() <= (
                by.items()
            )
            assert {key for key, _ in by} <= keys
        changed = index.changed(after=first, upto=last)
        for kind in (POD, NODE, DEVICE, LIMIT):
            assert set(changed.get(kind, ())) == {key for of, key, _ in made if KINDS[of] == kind}
        index.close()
