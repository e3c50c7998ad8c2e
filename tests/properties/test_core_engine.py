"""Properties of the scheduling engine's decisions after any history.

The decisions are valid and repeatable, depend only on the state, and end after a few rounds."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.placement.engine import DecisionEvent
from apportion_schemas import NodeReported, PodPlaced, PodRefused, PodSubmitted, PricesLearnt
from apportion_schemas.quantities import Payload
from tests.properties.core_fleets import reports
from tests.properties.core_histories import Step, histories, prices, submissions, trying
from tests.properties.core_playing import certain, fall_silent, follow
from tests.support.deciding import decided
from tests.support.ledger_of import Ledger, placed

SETTINGS = trying(50)


@SETTINGS
@given(histories())
def test_decisions_are_valid_and_depend_only_on_the_state(steps: list[Step]) -> None:
    """If the engine's decision is folded at once, the fold accepts all of its events.

    A new engine makes the same decision on the same state."""
    follow(Ledger(), steps)


@SETTINGS
@given(histories())
def test_decisions_end_without_new_events(steps: list[Step]) -> None:
    """If no other events arrive, the engine has nothing left to decide after a few decisions."""
    ledger = Ledger()
    follow(ledger, steps)
    fall_silent(ledger)
    assert ledger.decide() == []
    assert certain(ledger.consider()) == []


@SETTINGS
@given(histories())
def test_pods_pending_in_the_end_fit_nowhere(steps: list[Step]) -> None:
    """When the engine has nothing left to decide, each pod is placed, refused, gated, or waiting
    for the rest of its gang."""
    ledger = Ledger()
    follow(ledger, steps)
    ledger.settle()
    for pod in ledger.state.pods.values():
        if pod.placement is None and pod.refusal is None and not pod.submitted.gates:
            group = ledger.state.groups.get(pod.submitted.group)
            assert group is not None
            assert group.observed is None


@SETTINGS
@given(histories())
def test_decisions_that_end_early_come_to_the_same(steps: list[Step]) -> None:
    """If each decision of the engine is cut short, the engine still places the same pods on the
    same nodes in the end."""
    whole, pieces = Ledger(), Ledger()
    follow(whole, steps)
    follow(pieces, steps)
    whole.settle()
    for _ in range(1000):
        decision = pieces.engine.decide(looks_max=1)
        pieces.play(*decision.events)
        if not decision.events and not decision.more:
            break
    assert {uid: whole.where(uid) for uid in placed(whole)} == {
        uid: pieces.where(uid) for uid in placed(pieces)
    }


def first_of(events: list[Payload]) -> list[DecisionEvent]:
    """Fold these events in order. Return the events of the first decision after them."""
    ledger = Ledger()
    for data in events:
        ledger.take(data)
    return decided(ledger.engine).events


@SETTINGS
@given(
    st.lists(reports(), max_size=4, unique_by=lambda report: report.node),
    st.lists(submissions(), min_size=1, max_size=6, unique_by=lambda pod: pod.uid),
    st.lists(prices, max_size=1),
    st.data(),
)
def test_the_order_in_which_nodes_are_learnt_does_not_count(
    nodes: list[NodeReported],
    pods: list[PodSubmitted],
    learnt: list[PricesLearnt],
    data: st.DataObject,
) -> None:
    """A decision and its scores do not depend on the order in which nodes were reported."""
    nodes = [own_devices(report) for report in nodes]
    other = data.draw(st.permutations(nodes))
    assert first_of([*learnt, *nodes, *pods]) == first_of([*learnt, *other, *pods])


def own_devices(report: NodeReported) -> NodeReported:
    """Return the report without the devices whose ids other nodes may report too.

    Such a device belongs to the node that reports it first, so the order of reports would matter.
    """
    own = tuple(device for device in report.devices if device.id.startswith(report.node))
    return NodeReported(node=report.node, devices=own, host=report.host)


def test_refused_and_placed_are_told_apart() -> None:
    """The type `DecisionEvent` includes both placements and refusals."""
    assert set(DecisionEvent.__args__) >= {PodPlaced, PodRefused}
