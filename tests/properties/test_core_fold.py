"""Properties of folding any history: no event breaks an invariant, and every reader gets the same
state."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.ledger import fold
from apportion.core.ledger.digest import digest
from apportion.core.ledger.invariants import violations
from apportion.core.ledger.state import State
from apportion_schemas import Event, PodGone, PodPlaced, decode, encode, subject_of
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import Effect, effects, exactly, payloads, trying, weighed
from tests.support.ledger_of import event_of, facts, replayed

SETTINGS = trying(50)
HISTORIES = exactly(weighed((1, payloads), (1, effects)), 60)


def played(steps: list[Payload | Effect]) -> tuple[State, list[Event]]:
    """Play the steps, and check the state after every event. Return the state and all events."""
    state = State()
    events: list[Event] = []
    for step in steps:
        data = step.about(state) if isinstance(step, Effect) else step
        if data is None:
            continue
        event = event_of(data)
        before = facts(state)
        change = fold.apply(state, len(events) + 1, event)
        events.append(event)
        assert not violations(state)
        if change.refused and not isinstance(data, PodPlaced):
            assert facts(state) == before
        if change.refused:
            assert state.refused_events[-1].revision == len(events)
    return state, events


@SETTINGS
@given(HISTORIES)
def test_no_event_breaks_an_invariant(steps: list[Payload | Effect]) -> None:
    """No event makes the fold raise an exception or break an invariant of the state.

    An event that the fold refuses changes only the record of refusals and the pod's attempt number.
    """
    state, events = played(steps)
    assert state.revision == len(events)


@SETTINGS
@given(HISTORIES, st.data())
def test_every_reader_comes_to_the_same_state(
    steps: list[Payload | Effect], data: st.DataObject
) -> None:
    """A state folded from decoded events, some delivered twice, equals that of the originals."""
    state, events = played(steps)
    again = State()
    for revision, event in enumerate(events, 1):
        read = decode(encode(event), subject=subject_of(event.data))
        fold.apply(again, revision, read)
        old = data.draw(st.integers(1, revision))
        fold.apply(again, old, events[old - 1])
    assert digest(again) == digest(state) == digest(replayed(*(event.data for event in events)))


@SETTINGS
@given(HISTORIES)
def test_when_all_pods_are_gone_everything_is_free(steps: list[Payload | Effect]) -> None:
    """When all pods have ended, all capacity is free, whatever happened earlier."""
    state, events = played(steps)
    for revision, uid in enumerate(list(state.pods), len(events) + 1):
        fold.apply(state, revision, event_of(PodGone(uid=uid)))
    assert not violations(state)
    for node in state.nodes.values():
        assert (node.cpu_used_milli, node.memory_used_mib, node.extended_used) == (0, 0, {})
        for device in node.devices:
            assert device.idle
            assert device.memory_free_mib == device.device.memory_mib
            assert device.cores_free == device.device.cores
            assert not device.slices
    assert not state.failing
    assert not [group for group in state.groups.values() if group.pods]
