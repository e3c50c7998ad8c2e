"""Properties of the moves that `defrag` proposes, which are checked by making them with the engine.

After any history, all moved pods and the beneficiary are placed, and fewer GPUs move than become
free."""

from typing import Any

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from apportion.core.answers.plans import DefragAnswer, DefragRequest, DefragStep
from apportion.core.devices.cordons import cordoning, lifting
from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import State
from apportion.core.placement.preemption.victims import exceeded
from apportion.lab.changes import submitted_again
from apportion.lab.course import Course
from apportion.lab.defrag import defrag
from apportion.lab.planning import begun
from apportion_schemas import Ask, PodGone, PodSubmitted, Policy, PolicyChanged
from tests.properties.core_histories import Step, trying
from tests.properties.core_playing import follow
from tests.properties.crowded_histories import budgets, crowded_histories
from tests.support.fleet import A100_40, A100_80, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod

LATER = "2026-01-01T10:00:00.000000Z"
RACK = "example.com/rack"
BOTH = pytest.mark.parametrize("free_nodes", [0, 2])


def gpus(state: State, uid: str) -> float:
    """Return the GPUs of a placed pod: of each share, its largest part of the device."""
    placement = state.pods[uid].placement
    assert placement is not None
    by_id = state.nodes[placement.node].by_id
    containers: dict[str, float] = {}
    for share in placement.shares:
        device = by_id[share.device].device
        part = max(share.memory_mib / device.memory_mib, share.cores / device.cores)
        part = max(part, 1 / device.slots)
        containers[share.container] = containers.get(share.container, 0.0) + part
    first = {each.container for each in state.pods[uid].submitted.shape.asks if each.init}
    others = sum(much for name, much in containers.items() if name not in first)
    return max([others, *(much for name, much in containers.items() if name in first)])


def settle(course: Course) -> None:
    for _ in course.settle():
        pass


def made(course: Course, step: DefragStep, moved: dict[str, str]) -> None:
    """Make the moves of a step with the engine. `moved` gets the new uids by old uid."""
    before = {uid for uid, each in course.state.pods.items() if each.placement is not None}
    out = sum(gpus(course.state, each.uid) for each in step.moves)
    idle = sum(all(d.idle for d in node.devices) for node in course.state.nodes.values())
    for name in step.nodes:
        course.apply(cordoning(name, "", by="test", reason="defrag"))
    rest = list(step.moves)
    while rest:
        unit = [
            each for each in rest if each is rest[0] or (each.gang and each.gang == rest[0].gang)
        ]
        rest = [each for each in rest if each not in unit]
        for each in unit:
            moved[each.uid] = f"test-{len(moved)}"
            again = submitted_again(course.state.pods[each.uid].submitted, moved[each.uid])
            course.apply(again)
        for each in unit:
            course.apply(PodGone(uid=each.uid))
        settle(course)
    if step.kind == "node":
        (name,) = step.nodes
        assert all(device.idle for device in course.state.nodes[name].devices)
        now = sum(all(d.idle for d in node.devices) for node in course.state.nodes.values())
        assert now > idle
        freed: float = sum(device.open for device in course.state.nodes[name].devices)
    else:
        for name in step.nodes:
            course.apply(lifting(name, "", of="test", by="test", reason="defrag"))
        settle(course)
        placed = {uid: each for uid, each in course.state.pods.items() if each.placement}
        came = {uid: each for uid, each in placed.items() if uid not in before}
        mine = [
            uid for uid, each in came.items() if uid not in moved.values()
            and step.name in {each.full_name, each.submitted.group}
        ]  # fmt: skip
        assert mine
        assert {came[uid].full_name for uid in mine} <= set(step.pods)
        freed = sum(gpus(course.state, uid) for uid in mine)
    assert out < freed
    assert step.gpus_moved == pytest.approx(out, abs=0.01 * len(step.moves))
    assert step.gpus_freed == pytest.approx(freed, abs=0.05)
    for each in step.moves:
        there = course.state.pods[moved[each.uid]].placement
        assert there is not None
        assert there.node == each.to
        assert there.node not in step.nodes


def check(ledger: Ledger, **fields: Any) -> DefragAnswer:
    """Ask for moves, make them on a copy, and check every promise."""
    before = digest(ledger.state)
    answer = defrag(ledger.state, DefragRequest(**fields), time=LATER)
    assert digest(ledger.state) == before
    assert answer == defrag(ledger.state, DefragRequest(**fields), time=LATER)
    course, comers = begun(ledger.state, LATER)
    for _ in comers.settle():
        pass
    evicted, lost = len(course.evicted), 0.0
    originals = [course.state.pods[each.uid] for step in answer.steps for each in step.moves]
    assert len(originals) <= fields.get("moves_max", 10)
    assert not exceeded(course.state, originals)
    assert all(each.submitted.evictable for each in originals)
    moved: dict[str, str] = {}
    for step in answer.steps:
        made(course, step, moved)
        lost += step.lost_gpu_hours
    assert len(course.evicted) == evicted
    assert lost <= fields.get("lost_gpu_hours_max", lost) + 0.001 * len(answer.steps)
    assert not {step.name for step in answer.steps} & {each.name for each in answer.blocked}
    return answer


_SMALL = st.sampled_from((cards(1), cards(1), cards(2), ask(40_000), ask(20_000, cores=30)))

_LARGE = st.sampled_from((cards(2), cards(4), ask(60_000), ask(60_000, count=2)))


@st.composite
def fragmented(draw: st.DrawFn) -> Ledger:
    """Draw a cluster in which small pods came and went, and large pods and gangs are pending."""
    sizes, models = st.sampled_from((2, 4)), st.sampled_from((A100_80, A100_80, A100_40))
    nodes = draw(st.lists(st.tuples(sizes, models), min_size=2, max_size=5))
    ledger = Ledger(*(rack(f"n{at}", gpus, model=model) for at, (gpus, model) in enumerate(nodes)))
    policies: tuple[Policy, ...] = ("price", "binpack", "spread")
    policy = draw(st.sampled_from(policies))
    ledger.play(PolicyChanged(by="test", node_policy=policy, device_policy=policy))
    ledger.play(*(observed(f"n{at}", labels={RACK: f"r{at % 2}"}) for at in range(len(nodes))))
    ledger.play(*draw(st.lists(budgets, max_size=1)))
    asks = draw(st.lists(_SMALL, min_size=2, max_size=14))
    fields = st.fixed_dictionaries({
        "evictable": st.sampled_from((True, True, True, False)),
        "checkpoint_s": st.sampled_from((0, 7 * 3600)),
        "labels": st.sampled_from(({}, {"app": "x"})),
        "priority": st.sampled_from((0, 0, 5)),
    })  # fmt: skip
    for number, each in enumerate(asks):
        ledger.submit(pod(f"s{number}", each, **draw(fields)))
    ledger.settle()
    for number in draw(st.sets(st.integers(0, len(asks) - 1), max_size=10)):
        ledger.gone(f"s{number}")
    large: list[PodSubmitted] = []
    if draw(st.booleans()):
        asks = draw(st.lists(_LARGE, min_size=1, max_size=3))
        large += [pod(f"l{number}", each) for number, each in enumerate(asks)]
    else:
        ledger.play(gang("team/job", 2, required_level=draw(st.sampled_from(("", RACK)))))
        wanted: Ask = draw(st.sampled_from((cards(2), cards(2), cards(1), cards(4))))
        large += [member(f"m{number}", wanted) for number in range(2)]
    ledger.submit(*large)
    return ledger.settle()


@BOTH
@trying(60)
@given(
    ledger=fragmented(), moves_max=st.integers(1, 6), lost=st.sampled_from((None, 5.0, 15.0))
)  # fmt: skip
def test_moves_keep_their_promises_in_fragmented_clusters(
    ledger: Ledger, moves_max: int, lost: float | None, free_nodes: int
) -> None:
    """In a cluster with gaps, the proposed moves all fit, and so does the beneficiary."""
    limits = {} if lost is None else {"lost_gpu_hours_max": lost}
    check(ledger, moves_max=moves_max, free_nodes=free_nodes, **limits)


@BOTH
@trying(40)
@given(steps=crowded_histories())
def test_moves_keep_their_promises_after_any_history(steps: list[Step], free_nodes: int) -> None:
    """The same holds after histories with queues, gangs, faults, cordons and evictions."""
    ledger = Ledger()
    follow(ledger, steps)
    ledger.settle()
    check(ledger, free_nodes=free_nodes)


def test_moves_are_drawn() -> None:
    """The drawn clusters have moves for pods, for gangs and for nodes."""
    found: list[DefragStep] = []

    @seed(5)
    @trying(150)
    @given(fragmented())
    def play(ledger: Ledger) -> None:
        for free_nodes in (0, 1):
            answer = defrag(ledger.state, DefragRequest(free_nodes=free_nodes), time=LATER)
            found.extend(answer.steps)

    play()
    assert {step.kind for step in found} == {"pod", "gang", "node"}
    assert any(len(step.moves) > 1 for step in found)
