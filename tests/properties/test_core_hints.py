"""Property: if an event makes a refused pod fit, the table of queueing hints lists that event's
type.

The table lists, for each reason of a refusal, the events after which the scheduler tries again."""

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
    """Draw the adoption of a pod that another scheduler has bound, with the shares found in the
    pod's annotations."""
    pod, claim = draw(submissions()), draw(claims())
    shares = claim.shares if draw(st.booleans()) else ()
    return PodAdopted(pod=pod.uid, node=draw(names), submitted=pod, shares=shares)


GANGS_OWN = {RefusalCode.GANG_INCOMPLETE}
SORTS: tuple[st.SearchStrategy[Payload | Effect], ...] = (
    *(payloads, queued_payloads, limited_payloads) * 2,
    *(effects,) * 3,
    adoptions(),
    st.builds(PodGroupGone, group=st.sampled_from(GANGS[-2:])),
)


@st.composite
def steps(draw: st.DrawFn) -> Payload | Effect:
    """Draw any event that is not part of a decision."""
    return draw(SORTS[draw(st.integers(0, len(SORTS) - 1))])


crowds = st.tuples(
    st.just([rack("roomy", 2)]),
    st.lists(reports(), min_size=1, max_size=3, unique_by=lambda report: report.node),
    st.lists(submissions(), min_size=6, max_size=12),
).map(lambda parts: [step for part in parts for step in part])


@contextmanager
def as_if_nobody_had_heard(ledger: Ledger) -> Iterator[None]:
    """Remove all refusals from the state until the block ends, so that a new engine reports every
    refusal again."""
    heard = {uid: pod.refusal for uid, pod in ledger.state.pods.items()}
    for pod in ledger.state.pods.values():
        pod.refusal = None
    yield
    for uid, refusal in heard.items():
        ledger.state.pods[uid].refusal = refusal


def considered(ledger: Ledger) -> tuple[dict[str, PodRefused], list[str]]:
    """Let a new engine decide on the ledger's state, as if no pod had been refused yet.

    Return the refused pods with their refusals, and the placed pods in order."""
    with as_if_nobody_had_heard(ledger):
        events = ledger.consider().events
    refused = {event.pod: event for event in events if isinstance(event, PodRefused)}
    return refused, [event.pod for event in events if isinstance(event, PodPlaced)]


def named_for(refused: PodRefused) -> set[type[Payload]]:
    """Return the event types that the hints table lists for this refusal's reasons."""
    return {hint.event for code in refused.reasons for hint in BY_REASON[code]}


@trying(40)
@given(crowds, exactly(steps(), 12))
def test_events_that_end_a_refusal_are_in_its_hints(
    begun: list[Payload], later: list[Payload | Effect]
) -> None:
    """If an event makes a refused pod fit, the hints for the pod's refusal list that event's type.

    The test leaves out gangs that had too little room, because any event may change their order."""
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
    """Return False if this step submits or adopts a pod of a gang, and True for any other step."""
    submitted = step.submitted if isinstance(step, PodAdopted) else step
    return not (isinstance(submitted, PodSubmitted) and submitted.group)


@trying(40)
@given(crowds, exactly(steps(), 16))
def test_every_pod_that_fits_is_woken(begun: list[Payload], later: list[Payload | Effect]) -> None:
    """After each event, a long-running engine makes the same decision as a new engine."""
    played: list[Step] = [step for step in begun if alone(step)]
    for step in later:
        played += [step, Decide()] if alone(step) else []
    follow(Ledger(), [Decide(), *played])


@trying(40)
@given(crowds, exactly(steps(), 12), st.integers(0, 7))
def test_what_a_refused_placement_gives_back_is_offered_again(
    begun: list[Payload], later: list[Payload | Effect], pick: int
) -> None:
    """If a pod ends before its placement is folded, the engine retries the pods that it has
    refused."""
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
