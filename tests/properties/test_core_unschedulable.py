"""Property: in any full cluster, a pod that waits for room is placed as soon as another pod
ends."""

from hypothesis import given
from hypothesis import strategies as st

from apportion_schemas import NodeReported, PlacementVoided, PodGone, PodSubmitted
from tests.properties.core_fleets import reports
from tests.properties.core_histories import Decide, Effect, Step, picks, submissions, trying
from tests.properties.core_playing import follow
from tests.support.ledger_of import Ledger

DECIDE = Decide()
leaving = st.builds(Effect, st.sampled_from((PodGone, PodGone, PlacementVoided)), picks)


@trying(60)
@given(
    st.lists(reports(), min_size=1, max_size=2, unique_by=lambda report: report.node),
    st.lists(submissions(), min_size=8, max_size=16),
    st.lists(leaving | leaving | submissions(), min_size=8, max_size=16),
)
def test_an_unschedulable_pod_gets_the_room_that_another_leaves(
    nodes: list[NodeReported], arriving: list[PodSubmitted], later: list[Step]
) -> None:
    """After each event, the engine decides like a new engine, so it overlooks no waiting pod."""
    steps: list[Step] = [*nodes, *arriving, DECIDE]
    for step in later:
        steps += [step, DECIDE]
    follow(Ledger(), steps)
