"""For every history: what lets a pod have a place stands in the table, and wakes it.

The table of queueing hints is held to what the filters and the limits do, event by event."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.placement.queueing.hints import BY_REASON
from apportion_schemas import (
    PodAdopted,
    PodGone,
    PodGroupGone,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    RefusalCode,
)
from apportion_schemas.quantities import Payload
from tests.properties.core_fleets import names, reports
from tests.properties.core_histories import (
    GANGS,
    Decide,
    Effect,
    Step,
    claims,
    effects,
    exactly,
    limited_payloads,
    payloads,
    queued_payloads,
    submissions,
    trying,
)
from tests.properties.core_playing import follow, told
from tests.support.deciding import decided
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger


@st.composite
def adoptions(draw: st.DrawFn) -> PodAdopted:
    """A pod that somebody else has bound, with what it says that it holds."""
    pod, claim = draw(submissions()), draw(claims())
    shares = claim.shares if draw(st.booleans()) else ()
    return PodAdopted(pod=pod.uid, node=draw(names), submitted=pod, shares=shares)


GANGS_OWN = {RefusalCode.GANG_INCOMPLETE, RefusalCode.GANG_TOO_LARGE}
SORTS: tuple[st.SearchStrategy[Payload | Effect], ...] = (
    *(payloads, queued_payloads, limited_payloads) * 2,
    *(effects,) * 3,
    adoptions(),
    st.builds(PodGroupGone, group=st.sampled_from(GANGS[-2:])),
)


@st.composite
def steps(draw: st.DrawFn) -> Payload | Effect:
    """Anything that may happen but a decision."""
    return draw(SORTS[draw(st.integers(0, len(SORTS) - 1))])


crowds = st.tuples(
    st.just([rack("roomy", 2)]),
    st.lists(reports(), min_size=1, max_size=3, unique_by=lambda report: report.node),
    st.lists(submissions(), min_size=6, max_size=12),
).map(lambda parts: [step for part in parts for step in part])


@contextmanager
def as_if_nobody_had_heard(ledger: Ledger) -> Iterator[None]:
    """No pod has been refused: who is new to the state says of each why it has no place."""
    heard = {uid: pod.refusal for uid, pod in ledger.state.pods.items()}
    for pod in ledger.state.pods.values():
        pod.refusal = None
    yield
    for uid, refusal in heard.items():
        ledger.state.pods[uid].refusal = refusal


def considered(ledger: Ledger) -> tuple[dict[str, PodRefused], list[str]]:
    """Who is refused now and why, and who would have a place, in order."""
    with as_if_nobody_had_heard(ledger):
        events = ledger.consider().events
    refused = {event.pod: event for event in events if isinstance(event, PodRefused)}
    return refused, [event.pod for event in events if isinstance(event, PodPlaced)]


def named_for(refused: PodRefused) -> set[type[Payload]]:
    """The events that the table names for what keeps the pod from having a place."""
    return {hint.event for code in refused.reasons for hint in BY_REASON[code]}


@trying(40)
@given(crowds, exactly(steps(), 12))
def test_what_lets_a_refused_pod_in_stands_in_its_row(
    begun: list[Payload], later: list[Payload | Effect]
) -> None:
    """No event that the table leaves out for a reason makes it pass.

    Asked of the first that then has a place: others may have one for its sake. A gang for which
    there were too few places may have them in another order, after any event."""
    ledger = Ledger()
    follow(ledger, [*begun])
    for step in later:
        ledger.settle()
        waited, _ = considered(ledger)
        data = told(ledger, step)
        if data is None:
            continue
        ledger.take(data)
        for uid in considered(ledger)[1][:1]:
            refused = waited.get(uid)
            if refused is not None and (
                refused.gang is None or refused.reasons.keys() <= GANGS_OWN
            ):
                assert type(data) in named_for(refused), refused


def alone(step: Step) -> bool:
    """Whether the step is about no gang, whose places may depend on any placement."""
    submitted = step.submitted if isinstance(step, PodAdopted) else step
    return not (isinstance(submitted, PodSubmitted) and submitted.group)


@trying(40)
@given(crowds, exactly(steps(), 16))
def test_whoever_could_have_a_place_is_woken(
    begun: list[Payload], later: list[Payload | Effect]
) -> None:
    """After each event the decision is that of an engine that has never seen anybody wait."""
    played: list[Step] = [step for step in begun if alone(step)]
    for step in later:
        played += [step, Decide()] if alone(step) else []
    follow(Ledger(), [Decide(), *played])


@trying(40)
@given(crowds, exactly(steps(), 12), st.integers(0, 7))
def test_what_a_refused_placement_gives_back_is_offered_again(
    begun: list[Payload], later: list[Payload | Effect], pick: int
) -> None:
    """A pod ends after it was decided for: who was refused beside it is asked again."""
    ledger = Ledger()
    follow(ledger, [step for step in begun if alone(step)])
    for step in later:
        follow(ledger, [step] if alone(step) else [])
        events = decided(ledger.engine).events
        placed = [event for event in events if isinstance(event, PodPlaced)]
        if placed:
            ledger.take(PodGone(uid=placed[pick % len(placed)].pod))
        for event in events:
            ledger.take(event)
        follow(ledger, [Decide()])
