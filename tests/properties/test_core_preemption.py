"""Properties of evictions: no decision evicts more pods than needed, or only a part of a gang."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from hypothesis import given, seed

from apportion.core.ledger import fold, snapshot
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.affinity.neighbours import Neighbours
from apportion.core.placement.finder import PlaceFinder
from apportion.core.placement.gangs import held
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.limits.limits import Limits
from apportion.core.placement.reservations import Reservations
from apportion_schemas import NodeCordoned, PodEvicted, PodGone
from tests.properties.core_histories import Step, trying
from tests.properties.core_playing import follow
from tests.properties.crowded_histories import crowded_histories
from tests.support.ledger_of import Ledger, event_of

SETTINGS = trying(60)


def without(state: State, gone: set[str], only: str) -> State:
    """Return a copy of the state without the pods `gone`, in which all nodes except `only` are
    cordoned."""
    copied = snapshot.restore(snapshot.take(state))
    for data in [PodGone(uid=uid) for uid in sorted(gone)] + [
        NodeCordoned(node=name, by="test", reason="another") for name in state.nodes if name != only
    ]:
        fold.apply(copied, copied.revision + 1, event_of(data))
    return copied


def fits(state: State, uid: str) -> bool:
    """Return True if the pod fits somewhere in this state, according to a newly built index."""
    limits, neighbours = Limits(state), Neighbours(state)
    reservations = Reservations(state, Columns(state), limits, neighbours)
    finder = PlaceFinder(state, limits, neighbours, reservations)
    return finder.find(state.pods[uid]) is not None


def gang_of(pod: PodState, state: State) -> str:
    """Return the gang whose pods must be evicted together with this pod, or ""."""
    group = pod.submitted.group
    return group if group and state.groups[group].together else ""


def units(pods: list[PodState], state: State) -> list[set[str]]:
    """Group these pods into the sets that are evicted together.

    Each set has a single pod, or all placed pods of a gang."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        group = gang_of(pod, state)
        found[group or pod.uid] = (
            {each.uid for each in held(state.groups[group])} if group else {pod.uid}
        )
    return list(found.values())


@contextmanager
def watched(state: State) -> Iterator[None]:
    """When the block ends, check all evictions that were added to the state during the block."""
    before = set(state.evictions)
    yield
    new = [event for uid, event in state.evictions.items() if uid not in before]
    for event in new:
        victim, one = state.pods[event.pod], state.pods[event.beneficiary]
        assert victim.submitted.priority < one.submitted.priority
        assert one.submitted.preempts
        group = gang_of(victim, state)
        if group:
            assert {each.uid for each in held(state.groups[group])} <= set(state.evictions)
    for beneficiary in sorted({event.beneficiary for event in new}):
        if state.pods[beneficiary].submitted.group:
            continue
        mine = [event for event in new if event.beneficiary == beneficiary]
        check_need(state, before, mine)


def check_need(state: State, leaving: set[str], events: list[PodEvicted]) -> None:
    """Check that the preemptor fits once all victims of `events` end, but not if one victim stays.

    Pods in `leaving` with a lower priority, which are already being evicted, count as gone."""
    uid, node = events[0].beneficiary, events[0].nominated
    going = {event.pod for event in events}
    lower = {
        each for each in leaving
        if state.pods[each].submitted.priority < state.pods[uid].submitted.priority
        and state.evictions[each].node == node
    }  # fmt: skip
    assert fits(without(state, going | lower, node), uid)
    for unit in units([state.pods[each] for each in sorted(going)], state):
        assert not fits(without(state, (going - unit) | lower, node), uid), unit


@SETTINGS
@given(crowded_histories())
def test_only_pods_of_lower_priority_no_more_than_needed_and_whole_gangs(steps: list[Step]) -> None:
    """The engine evicts only pods of lower priority, no more than needed, and gangs only as a
    whole."""
    follow(Ledger(), steps, watched=watching)


def watching(state: State) -> AbstractContextManager[None]:
    return watched(state)


@SETTINGS
@given(crowded_histories())
def test_a_new_engine_evicts_no_pod_in_the_end(steps: list[Step]) -> None:
    """When an engine has nothing left to decide, a new engine on the same state evicts no pod."""
    ledger = Ledger()
    follow(ledger, steps)
    ledger.settle()
    assert not [event for event in ledger.decide() if isinstance(event, PodEvicted)]
    again = ledger.consider().events
    assert not [event for event in again if isinstance(event, PodEvicted)]


def test_evictions_are_drawn() -> None:
    """Generated histories contain many evictions, some of pods protected by a disruption budget."""
    found: list[PodEvicted] = []

    @seed(5)
    @trying(300)
    @given(crowded_histories())
    def play(steps: list[Step]) -> None:
        ledger = Ledger()
        follow(ledger, steps)
        found.extend(event for event in ledger.events if isinstance(event, PodEvicted))

    play()
    assert len(found) >= 20
    assert any(event.budgets for event in found)
