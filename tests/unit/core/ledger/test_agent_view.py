"""Tests of what the agent of a node receives with a placement in addition to the pod's shares."""

from apportion.core.ledger.agent_view import handed
from apportion_schemas import Ask, Device, PodPlaced, PodSubmitted, Score, Shape, Share

CARD = Device(
    id="GPU-1", index=0, family="nvidia", model="A", memory_mib=8000, physical_memory_mib=8000
)
MAIN = Share(container="main", device="GPU-1", memory_mib=2000, cores=30)
PLACED = PodPlaced(
    pod="a", namespace="default", name="a", attempt=1, node="n1", shares=(MAIN,),
    score=Score(node="n1", total=1.0),
)  # fmt: skip
ASK = Ask(container="main", family="nvidia", memory_mib=2000, cores=30)


def pod(**more: object) -> PodSubmitted:
    return PodSubmitted(
        uid="a", namespace="default", name="a", shape=Shape(asks=(ASK,)), dialect="hami", **more  # type: ignore[arg-type]
    )  # fmt: skip


def test_most_pods_need_no_more_words() -> None:
    """If a pod has no init containers and no HAMi-core settings, the node's agent gets the
    placement unchanged."""
    assert handed(PLACED, pod(), [CARD]) is PLACED


def test_an_init_container_has_what_it_borrows() -> None:
    """An init container may use a main container's device, and gets the amounts that the init
    container itself requests."""
    fetch = Ask(container="fetch", family="nvidia", memory_mib=500, init=True)
    found = handed(PLACED, pod(borrowing=(fetch,), init_containers=("fetch",)), [CARD])
    assert found.borrowed == (Share(container="fetch", device="GPU-1", memory_mib=500, cores=0),)
    assert found.shares == PLACED.shares


def test_a_high_priority_is_a_control_unless_the_container_says_its_own() -> None:
    """`nvidia.com/priority: 0` becomes HAMi's `CUDA_TASK_PRIORITY=0`, unless the container sets
    that variable."""
    found = handed(PLACED, pod(high_priority=("main",)), [CARD])
    assert found.controls == {"main": {"CUDA_TASK_PRIORITY": "0"}}
    own = {"main": {"CUDA_TASK_PRIORITY": "1", "ACTIVE_OOM_KILLER": "false"}}
    assert handed(PLACED, pod(high_priority=("main",), controls=own), [CARD]).controls == own
