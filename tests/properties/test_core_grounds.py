"""Property: the state keeps enough about a placement to rebuild the PodPlaced event."""

from hypothesis import given, settings
from msgspec import inspect, structs

from apportion.core.ledger.rationale import Rationale, placed_of, placement_of, rationale_of
from apportion.core.ledger.state import Placement, PodState
from apportion_schemas import PodPlaced, PodSubmitted, Score, Shape
from tests.properties.event_strategies import values


@settings(max_examples=200, deadline=None)
@given(placed=values(inspect.type_info(PodPlaced)))
def test_a_placement_gives_its_event_back(placed: PodPlaced) -> None:
    """The `PodPlaced` event can be rebuilt from the state, except for the fields copied from the
    pod's submission."""
    placed = structs.replace(placed, borrowed=(), controls={})
    submitted = PodSubmitted(
        uid=placed.pod, namespace=placed.namespace, name=placed.name, shape=Shape(), dialect="plain"
    )
    kept = placement_of(placed)
    assert placed_of(PodState(submitted, b"", 1, ""), kept) == placed
    assert (kept.node, kept.attempt, kept.shares) == (placed.node, placed.attempt, placed.shares)


def test_where_nobody_decided_there_are_no_rationale() -> None:
    """A placement that no scheduler decided, such as that of an adopted pod, has an empty
    rationale."""
    found = rationale_of(Placement("n1", 1, ()))
    assert found == Rationale(Score(node="n1", total=0.0))
