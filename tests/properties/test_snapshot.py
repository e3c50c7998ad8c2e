"""Property: a snapshot at any revision, plus the events after that revision, gives the same state
as all events."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.devices.shares import DeviceState
from apportion.core.ledger import snapshot as kept
from apportion.core.ledger.snapshot import Taking, restore, take
from apportion.core.ledger.state import NodeState, State
from apportion_schemas.quantities import Payload
from tests.support.happenings import happen, happenings
from tests.support.states import assert_same


def folded(events: list[Payload], state: State | None = None) -> State:
    """Fold these events into `state`, or into an empty state if none is given. Return the state."""
    state = state or State()
    for data in events:
        happen(state, data)
    return state


@given(happenings(), st.data())
def test_snapshot_and_tail_are_the_fold(events: list[Payload], data: st.DataObject) -> None:
    """A state that is saved, restored and then continued equals a state folded without a break.

    This holds at any revision."""
    cut = data.draw(st.integers(0, len(events)))
    half = folded(events[:cut])
    restored = restore(take(half))
    assert_same(restored, half)
    assert_same(folded(events[cut:], restored), folded(events))


@given(happenings(), st.data())
def test_a_snapshot_taken_while_the_fold_goes_on_is_of_its_end(
    events: list[Payload], data: st.DataObject
) -> None:
    """A snapshot that is taken in several steps contains the state after the last step.

    This holds although events arrive between the steps."""
    cut = data.draw(st.integers(0, len(events)))
    state = folded(events[:cut])
    taking = Taking(state)
    for event in events[cut:]:
        taking.step(data.draw(st.integers(0, 3)))
        taking.observe(happen(state, event))
    taken = taking.finish()
    assert taken.revision == state.revision
    assert_same(restore(b"".join(taken.parts)), state)


def test_nothing_of_the_state_is_forgotten() -> None:
    """Every field of the state is stored in the snapshot, except those that this test lists as
    derived from other fields."""
    none = set[str]()
    for of, record, derived, of_record in (  # fields derived from the rest, on either side
        (State, kept._Head, {"shapes"}, none),
        (NodeState, kept._Node, {"by_id", "host", "pods"}, none),
        (DeviceState, kept._Device, none, none),
    ):
        names = [field.name for field in structs.fields(of) if field.name not in derived]
        kept_names = [name for name in record.__struct_fields__ if name not in of_record]
        assert sorted(names) == sorted(kept_names), of
        assert of in {State, NodeState} or names == kept_names, of  # constructed by position
