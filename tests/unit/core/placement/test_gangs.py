"""Tests of gangs: the minimum number of pods is placed in one decision, and further pods one by
one."""

from typing import Any

import pytest

from apportion.core.ledger.state import GroupState
from apportion.core.placement.gangs import GangDeficit, deficit_of
from apportion_schemas import (
    BindFailed,
    PodGroupObserved,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    RefusalCode,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import T4, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod
from tests.support.pods import placed as placement

C = RefusalCode
BIG = ask(99_999)


def workers(count: int, *asks: Any, task: str = "worker", first: int = 0) -> list[PodSubmitted]:
    """Return gang members `worker-0`, `worker-1` and so on. Each requests one whole device by
    default."""
    numbers = range(first, first + count)
    return [member(f"{task}-{n}", *(asks or (cards(),)), task=task) for n in numbers]


def placed(events: list[Payload]) -> list[str]:
    return [event.pod for event in events if isinstance(event, PodPlaced)]


def test_all_of_a_gang_in_one_decision() -> None:
    """The scheduler places a gang in one decision and one batch."""
    ledger = Ledger(rack("n1", 4), rack("n2", 4), gang(min_available=4), *workers(4, cards(2)))
    assert placed(ledger.decide()) == [f"worker-{n}" for n in range(4)]
    held = [device for n in range(4) for device in ledger.devices(f"worker-{n}")]
    assert len(set(held)) == 8


def test_none_of_a_gang_that_does_not_fit_whole() -> None:
    """A gang that does not fit as a whole reserves nothing, and its refusal shows how many members
    would fit."""
    ledger = Ledger(rack("n1", 7), gang(min_available=4), *workers(4, cards(2)))
    events = ledger.decide()
    assert placed(events) == []
    assert len(events) == 4
    assert all(device.idle for device in ledger.node().devices)
    refused = ledger.refusal("worker-0")
    assert refused.reasons == {}
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.present, refused.gang.fitting) == (4, 4, 3)
    ledger.report(rack("n2", 2))
    assert len(placed(ledger.decide())) == 4


def test_a_refusal_counts_no_node_against_what_the_gang_itself_would_take() -> None:
    """When a gang does not fit, its refusal does not count the nodes that would take some of the
    gang's pods."""
    ledger = Ledger(rack("n2", 2), pod("other", cards(2))).settle()
    ledger.report(rack("n1", 2)).play(gang(min_available=2)).submit(*workers(2, cards(2)))
    ledger.settle()
    refused = ledger.refusal("worker-0")
    assert (refused.reasons, refused.nodes) == ({C.DEVICE_IN_USE: 1}, 2)
    assert [miss.node for miss in refused.nearest] == ["n2"]
    assert refused.gang is not None
    assert (refused.gang.needed, refused.gang.fitting) == (2, 1)


def test_incomplete_gang_waits_for_its_members() -> None:
    """An incomplete gang is refused once; when the last missing member is submitted, all members
    are placed."""
    ledger = Ledger(rack("n1", 8), gang(min_available=3), *workers(2))
    assert [type(event) for event in ledger.decide()] == [PodRefused, PodRefused]
    assert ledger.decide() == []
    ledger.submit(*workers(1, first=2))
    assert placed(ledger.decide()) == ["worker-0", "worker-1", "worker-2"]


def test_nothing_of_a_gang_before_it_is_declared() -> None:
    """The members of an undeclared gang stay pending without a refusal."""
    ledger = Ledger(rack("n1", 8), *workers(3))
    assert ledger.decide() == []
    ledger.gone("worker-2").submit(*workers(1, first=2))
    assert ledger.decide() == []
    ledger.play(gang(min_available=3))
    assert len(placed(ledger.decide())) == 3


def test_elastic_members_come_one_by_one() -> None:
    """Once a gang has its minimum, the scheduler places its other pods one by one, as room
    allows."""
    ledger = Ledger(rack("n1", 4), gang(min_available=2), *workers(6))
    events = ledger.decide()
    assert placed(events) == [f"worker-{n}" for n in range(4)]
    assert ledger.reasons("worker-5") == {C.DEVICE_IN_USE: 1}
    assert ledger.refusal("worker-5").gang is None
    ledger.gone("worker-0")
    assert placed(ledger.decide()) == ["worker-4"]


def test_a_member_that_joins_late_takes_a_place() -> None:
    """The scheduler places a member that joins a running gang."""
    ledger = Ledger(rack("n1", 4), gang(min_available=2), *workers(2)).settle()
    ledger.submit(*workers(1, first=2))
    assert placed(ledger.decide()) == ["worker-2"]


def test_members_that_fit_nowhere_hold_up_no_others() -> None:
    """If a pod of a gang fits nowhere but enough of its other pods fit, the gang starts without
    it."""
    odd = member("odd", BIG, task="worker")
    ledger = Ledger(rack("n1", 3), gang(min_available=2), odd, *workers(2))
    assert placed(ledger.decide()) == ["worker-0", "worker-1"]
    assert ledger.reasons("odd") == {C.MEMORY_INSUFFICIENT: 1}


def test_elastic_member_that_fits_nowhere_holds_up_no_others() -> None:
    """If a running gang's next pod fits nowhere, the scheduler still places the pods behind it."""
    ledger = Ledger(rack("n1", 3), gang(min_available=1), *workers(1)).settle()
    ledger.submit(member("odd", BIG, priority=9), *workers(3, first=1))
    assert placed(ledger.decide()) == ["worker-1", "worker-2"]
    ledger.gone("worker-0")
    assert placed(ledger.decide()) == ["worker-3"]


def test_each_task_has_its_minimum() -> None:
    """A gang of one launcher and two workers does not start with three workers: each task needs its
    own minimum."""
    declared = gang(min_available=3, min_tasks={"launcher": 1, "worker": 2})
    ledger = Ledger(rack("n1", 3), declared, *workers(3))
    assert placed(ledger.decide()) == []
    assert ledger.reasons("worker-0") == {C.GANG_INCOMPLETE: 0}
    ledger.submit(*workers(1, task="launcher"))
    assert sorted(placed(ledger.decide())) == ["launcher-0", "worker-0", "worker-1"]


def test_a_task_that_is_met_counts_for_the_rest_of_the_decision() -> None:
    """A decision that places a task's minimum of pods also places the gang's other pods."""
    declared = gang(min_available=1, min_tasks={"launcher": 1})
    ledger = Ledger(rack("n1", 3), declared, *workers(1, task="launcher"), *workers(2))
    assert placed(ledger.decide()) == ["launcher-0", "worker-0", "worker-1"]
    assert ledger.decide() == []


def test_a_gang_that_lost_a_member_asks_for_one() -> None:
    """If a pod of a running gang ends, one new pod is enough: the running pods count."""
    ledger = Ledger(rack("n1", 4), gang(min_available=4), *workers(4)).settle()
    ledger.gone("worker-1").submit(*workers(1, first=9))
    assert placed(ledger.decide()) == ["worker-9"]


def test_a_voided_member_is_placed_again_alone() -> None:
    """If one placement of a running gang is voided, the scheduler places only that pod again."""
    ledger = Ledger(rack("n1", 3), gang(min_available=2), *workers(2)).settle()
    ledger.play(BindFailed(pod="worker-0", node="n1", attempt=1, message="x", final=True))
    ledger.decide()
    assert placed(ledger.decide()) == ["worker-0"]
    assert ledger.placement("worker-0").attempt == 2


def test_a_gang_larger_than_a_batch_has_one_of_its_own() -> None:
    """A gang that is larger than a batch is not split: it gets a batch of its own."""
    ledger = Ledger(rack("n1", 8), pod("single", ask(1)), gang(min_available=6), *workers(6))
    assert placed(ledger.decide(events_max=4)) == ["single"]
    assert len(placed(ledger.decide(events_max=4))) == 6


def test_placements_by_another_scheduler_count() -> None:
    """Pods of a gang that another scheduler has placed count towards the gang's minimum.

    The remaining pods are placed one by one."""
    ledger = Ledger(rack("n1", 2), gang(min_available=3), *workers(3, cards(2))).settle()
    assert ledger.reasons("worker-0") == {}
    ledger.play(placement("worker-1", "n1"), placement("worker-2", "n1"))
    assert placed(ledger.decide()) == ["worker-0"]


def test_declaring_a_gang_anew_asks_again() -> None:
    """If a new declaration lowers a gang's minimum, the scheduler retries the gang."""
    ledger = Ledger(rack("n1", 2), gang(min_available=3), *workers(3)).settle()
    assert not ledger.where("worker-0")
    ledger.play(gang(min_available=2))
    assert placed(ledger.decide()) == ["worker-0", "worker-1"]


def test_refused_gang_leaves_room_for_others() -> None:
    """If a gang does not fit, pods behind it in the same decision can use the room that it had
    reserved."""
    ledger = Ledger(
        rack("n1", 2),
        rack("n2", 1, model=T4),
        gang(min_available=4),
        *workers(4),
        pod("p", cards(2)),
    )
    assert placed(ledger.decide()) == ["p"]
    assert ledger.decide() == []


def group_of(declared: PodGroupObserved | None, *pods: PodSubmitted) -> GroupState:
    """Return the state of gang `team/job` with these pending pods, and with this declaration if
    any."""
    ledger = Ledger(*pods, *([declared] if declared else []))
    return ledger.state.groups["team/job"]


@pytest.mark.parametrize(
    ("declared", "tasks", "others", "pods"),
    [
        (gang(min_available=0), {}, 1, 1),
        (gang(min_available=1), {}, 1, 1),
        (gang(min_available=3), {}, 3, 3),
        (gang(min_available=3, min_tasks={"a": 1}), {"a": 1}, 2, 3),
        (gang(min_available=3, min_tasks={"a": 1, "b": 2}), {"a": 1, "b": 2}, 0, 3),
        (gang(min_available=1, min_tasks={"a": 1, "b": 2}), {}, 1, 1),
        (gang(min_available=2, min_tasks={"a": 0}), {}, 2, 2),
    ],
)
def test_lack(declared: PodGroupObserved, tasks: dict[str, int], others: int, pods: int) -> None:
    """A gang's deficit is the number of missing pods, for each task and for the whole gang."""
    deficit = deficit_of(group_of(declared, member("m")))
    assert deficit is not None
    assert (dict(deficit.tasks), deficit.others, deficit.pods) == (tasks, others, pods)


def test_lack_shrinks_by_who_is_placed() -> None:
    """A placed pod first reduces the deficit of its task. Once the task lacks no pods, each further
    pod reduces the deficit of the whole gang."""
    group = group_of(gang(min_available=3, min_tasks={"a": 1}), member("m", task="a"))
    (one,) = group.pods.values()
    deficits: list[GangDeficit | None] = [deficit_of(group)]
    for _ in range(4):
        before = deficits[-1]
        deficits.append(before.less(one) if before else None)
    assert [deficit.pods if deficit else None for deficit in deficits] == [3, 2, 1, 0, None]


def test_an_undeclared_gang_lacks_nobody_knows_what() -> None:
    """A gang that is not declared has no known deficit."""
    assert deficit_of(group_of(None, member("m"))) is None
