"""Sealing: the ids by which the server takes each decision once."""

from apportion.core.ledger.state import State
from apportion.scheduler.fencing import _id
from apportion_schemas import PlacementVoided, PodAdopted
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, placed, pod, share

VOID = PlacementVoided(pod="p1", node="n1", attempt=1, reason="no such card")


def id_of_void(state: State) -> str:
    """The id under which the place of the pod is voided."""
    return _id(VOID, state)


def test_a_place_is_voided_once_in_each_life_of_its_pod() -> None:
    """One that was adopted may have been voided by the same attempt before."""
    first = Ledger(node("n1", gpu("g0")), pod("p1"), placed("p1", "n1", [share("g0")]))
    assert id_of_void(first.state) == "p1/1/voided"
    again = (
        first.play(VOID)
        .gone("p1")
        .play(
            PodAdopted(
                pod="p1",
                node="n1",
                submitted=pod("p1", ask(1000)),
                shares=(share("g0"),),
                attempt=1,
            )
        )
    )
    assert id_of_void(again.state) == f"p1/1/voided/{again.pod('p1').submitted_revision}"
