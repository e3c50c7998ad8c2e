"""Tests of the moves that `defrag` proposes: which pods it moves, for which pending pod or node, at
what cost, and why it proposes none."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from apportion.core.answers.plans import DefragAnswer, DefragRequest, DefragStep, PlanProgress
from apportion.lab.changes import WishInvalid
from apportion.lab.defrag import BLOCKED_MAX, TRIES_MAX, defrag, may_move
from apportion_schemas import (
    Ask,
    BudgetObserved,
    DeviceConstraints,
    LabelExpression,
    NodeCordoned,
    NodeCordonLifted,
    QuotaObserved,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape

LATER = "2026-01-01T10:00:00.000000Z"  # ten hours after all events of the tests
RACK = "example.com/rack"
A100 = DeviceConstraints(use_types=("A100",))


def asked(ledger: Ledger, **fields: Any) -> DefragAnswer:
    """Return the moves for this request, ten hours after the ledger's events."""
    before = ledger.digest()
    answer = defrag(ledger.state, DefragRequest(**fields), time=LATER)
    assert ledger.digest() == before
    return answer


def moves(step: DefragStep) -> list[tuple[str, str, str]]:
    """Return the name, the node and the new node of each moved pod."""
    return [(each.pod, each.node, each.to) for each in step.moves]


def reasons(answer: DefragAnswer) -> dict[str, str]:
    """Return why no move is proposed, by the name of the pod, gang or node."""
    return {each.name: each.reason for each in answer.blocked}


def put(ledger: Ledger, node: str, uid: str, *asks: Ask, **fields: Any) -> None:
    """Let the engine place a pod on this node, with one GPU by default."""
    others = [each for each in ledger.state.nodes if each != node]
    ledger.play(*(NodeCordoned(node=each, by="test", reason="x") for each in others))
    asks = () if "shape" in fields else asks or (cards(),)
    ledger.submit(pod(uid, *asks, **fields)).settle()
    ledger.play(*(NodeCordonLifted(node=each, of="test", by="test") for each in others))
    assert ledger.where(uid) == node


def halves(*names: str, gpus: int = 2, **fields: Any) -> Ledger:
    """Return a ledger of nodes that each have one pod with one GPU, named after its node."""
    ledger = Ledger(*(rack(name, gpus) for name in names))
    for name in names:
        put(ledger, name, f"on-{name}", **fields)
    return ledger


def wanting(ledger: Ledger, *asks: Ask, uid: str = "large", **fields: Any) -> Ledger:
    """Submit a pod that does not fit."""
    ledger.submit(pod(uid, *asks, **fields)).settle()
    assert not ledger.where(uid)
    return ledger


def test_one_pod_is_moved_so_that_a_larger_one_fits() -> None:
    """If two nodes are half full, moving one pod lets a pod fit that needs a whole node."""
    ledger = wanting(halves("n1", "n2"), cards(2))
    answer = asked(ledger)
    (step,) = answer.steps
    assert moves(step) == [("on-n1", "n1", "n2")]
    assert (step.kind, step.name, step.pods) == ("pod", "default/large", ("default/large",))
    assert (step.gpus_freed, step.gpus_moved, step.lost_gpu_hours) == (2.0, 1.0, 10.0)
    assert (step.nodes, answer.blocked) == (("n1",), ())
    assert answer.revision == ledger.state.revision
    assert step.moves[0].uid == "on-n1"


def test_the_move_that_loses_the_least_work_is_chosen() -> None:
    """Among moves that make room, the pod with the newest checkpoint is moved."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2), rack("n3", 2))
    put(ledger, "n1", "steady")
    put(ledger, "n2", "saves", checkpoint_s=3600 * 7)  # ten hours after its start: 3 h are lost
    put(ledger, "n3", "other")
    wanting(ledger, cards(2))
    (step,) = asked(ledger).steps
    assert [(each.pod, each.node) for each in step.moves] == [("saves", "n2")]
    assert step.lost_gpu_hours == 3.0
    assert asked(ledger, lost_gpu_hours_max=3.0).steps == (step,)
    assert reasons(asked(ledger, lost_gpu_hours_max=2.9)) == {"default/large": "lost-max"}


def test_no_more_pods_are_moved_than_allowed() -> None:
    """If every way to make room moves more pods than `moves_max`, nothing is proposed."""
    ledger = halves("n1", "n2", gpus=4)
    put(ledger, "n1", "too-n1")
    put(ledger, "n2", "too-n2")
    wanting(ledger, cards(4))
    (step,) = asked(ledger, moves_max=2).steps
    assert len(step.moves) == 2
    assert asked(ledger, moves_max=1).steps == ()
    assert reasons(asked(ledger, moves_max=1)) == {"default/large": "moves-max"}


def test_never_more_is_moved_than_freed() -> None:
    """A pod is not moved for a pending pod that would get no more GPUs than it has."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2, model="Other", memory_mib=40_960))
    put(ledger, "n1", "both", cards(2))
    wanting(ledger, ask(60_000), uid="picky")  # fits on n1 only, where `both` has all
    assert reasons(asked(ledger)) == {"default/picky": "frees-less"}


def test_without_enough_free_capacity_no_move_is_tried() -> None:
    """If fewer GPUs are free than the pod requests, the answer has both numbers."""
    ledger = wanting(halves("n1", "n2", gpus=2), cards(2))
    put(ledger, "n1", "fills")
    (blocked,) = asked(ledger).blocked
    assert (blocked.reason, blocked.gpus, blocked.free_gpus) == ("no-capacity", 2.0, 1.0)


def test_a_pod_that_fits_nowhere_else_is_named() -> None:
    """If a pod that would have to move fits on no other node, it is named."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2, memory_mib=40_960))
    put(ledger, "n1", "needs-80g", ask(80_000, cores=100))
    wanting(ledger, cards(2, memory_mib=60_000))
    (blocked,) = asked(ledger).blocked
    assert (blocked.reason, blocked.pods) == ("no-place", ("default/needs-80g",))


@pytest.mark.parametrize(
    "fields", [{"evictable": False}, {"owner": "Process/1"}], ids=["protected", "command"]
)
def test_pods_that_may_not_be_moved_stay(fields: dict[str, Any]) -> None:
    """A pod that forbids its eviction, or that is a command, is not moved."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2))
    put(ledger, "n2", "stays", **fields)
    put(ledger, "n1", "moves")
    (step,) = asked(wanting(ledger, cards(2))).steps
    assert moves(step) == [("moves", "n1", "n2")]
    answer = asked(wanting(halves("n1", "n2", **fields), cards(2)))
    assert (answer.steps, reasons(answer)) == ((), {"default/large": "pods-stay"})


@pytest.mark.parametrize(("priority", "steps"), [(999, 0), (1000, 1)])
def test_pods_of_higher_priority_are_not_moved_for_a_pending_pod(priority: int, steps: int) -> None:
    """A pod is moved only for a pending pod of at least its priority. An emptied node has no
    priority."""
    ledger = wanting(halves("n1", "n2", priority=1000), cards(2), priority=priority)
    assert len(asked(ledger).steps) == steps
    assert len(asked(ledger, free_nodes=1).steps) == 1


@pytest.mark.parametrize(
    ("owner", "steps"), [("", 0), ("DaemonSet/d", 0), ("ReplicaSet/r", 1)]
)  # fmt: skip
def test_in_kubernetes_only_pods_with_a_controller_are_moved(owner: str, steps: int) -> None:
    """In Kubernetes, no controller recreates a bare pod, and a DaemonSet returns to its node."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2))
    ledger.play(observed("n1", version=1), observed("n2", version=1))
    put(ledger, "n1", "one", owner=owner)
    put(ledger, "n2", "two", owner=owner)
    answer = asked(wanting(ledger, cards(2)))
    assert (answer.of_kubernetes, len(answer.steps)) == (True, steps)


@pytest.mark.parametrize(("version", "steps"), [(0, 1), (1, 0)])
def test_in_kubernetes_pods_with_a_notice_stay(version: int, steps: int) -> None:
    """The eviction API gives a pod no notice. Without Kubernetes, no pod gets one."""
    ledger = halves("n1", "n2", notice_s=60, owner="ReplicaSet/r")
    if version:
        ledger.play(observed("n1", version=version), observed("n2", version=version))
    wanting(ledger, cards(2))
    assert len(asked(ledger).steps) == steps
    blocked = [] if steps else [("default/on-n1",), ("default/on-n2",)]
    assert [each.pods for each in asked(ledger, free_nodes=1).blocked] == blocked


@pytest.mark.parametrize(("allowed", "steps"), [(0, 0), (1, 1)])
def test_disruption_budgets_are_kept(allowed: int, steps: int) -> None:
    """A pod is not moved if its PodDisruptionBudget allows no eviction."""
    web = (LabelExpression(key="app", operator="In", values=("web",)),)
    ledger = halves("n1", "n2", labels={"app": "web"})
    ledger.play(BudgetObserved(namespace="default", budget="b", selector=web, allowed=allowed))
    answer = asked(wanting(ledger, cards(2)))
    assert len(answer.steps) == steps
    assert reasons(answer) == ({} if steps else {"default/large": "disruption-budget"})


def test_the_cheapest_step_is_first_and_limits_count_all_steps() -> None:
    """Of two pending pods, the one whose room costs less comes first, not the older one. The
    limits hold for all steps together."""
    ledger = Ledger(*(rack(name, 2) for name in ("a1", "a2")))
    ledger.report(*(rack(name, 4, model="Tesla T4") for name in ("b1", "b2")))
    for node in ("a1", "a2"):
        put(ledger, node, f"on-{node}")
    for node in ("b1", "b2"):
        put(ledger, node, f"on-{node}", cards(2))
    wanting(ledger, cards(4), uid="four")
    wanting(ledger, uid="two", shape=shape(cards(2), devices=A100))
    steps = asked(ledger).steps
    assert [(each.name, each.lost_gpu_hours) for each in steps] == [
        ("default/two", 10.0), ("default/four", 20.0)
    ]  # fmt: skip
    assert asked(ledger, lost_gpu_hours_max=30.0).steps == steps
    assert asked(ledger, lost_gpu_hours_max=29.0).steps == steps[:1]
    assert reasons(asked(ledger, moves_max=1)) == {"default/four": "moves-max"}


def test_of_equal_pods_each_gets_a_step() -> None:
    """If two equal pods are pending, defrag proposes a step for each of them."""
    ledger = halves("n1", "n2", "n3", "n4")
    wanting(ledger, cards(2))
    wanting(ledger, cards(2), uid="next")
    answer = asked(ledger)
    assert [step.name for step in answer.steps] == ["default/large", "default/next"]
    assert len({each.pod for step in answer.steps for each in step.moves}) == 2
    assert len(asked(ledger, moves_max=1).steps) == 1
    assert [step.name for step in asked(ledger, pods=("default/large",)).steps] == ["default/large"]


def test_a_gang_gets_a_whole_topology_domain() -> None:
    """A gang that must be in one rack fits after pods of that rack have moved to another one."""
    racks = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b"}
    ledger = Ledger(*(rack(name, 2) for name in racks))
    ledger.play(*(observed(name, labels={RACK: value}) for name, value in racks.items()))
    for name in ("a2", "b1", "b2"):
        put(ledger, name, f"on-{name}", owner="ReplicaSet/r")
    ledger.play(gang("team/job", 2, required_level=RACK))
    ledger.submit(*(member(f"w{n}", cards(2)) for n in range(2))).settle()
    assert not ledger.where("w0")
    (step,) = asked(ledger).steps
    assert (step.kind, step.name) == ("gang", "team/job")
    assert len(step.moves) == 1
    assert len({racks[node] for node in step.nodes}) == 1
    assert step.moves[0].to not in step.nodes
    assert (step.gpus_freed, step.gpus_moved) == (4.0, 1.0)
    assert sorted(step.pods) == ["default/w0", "default/w1"]
    assert asked(ledger, pods=("team/job",)).steps == (step,)
    assert asked(ledger, pods=("default/w1",)).steps == (step,)


def test_a_gang_needs_room_for_its_next_batch_only() -> None:
    """If more pods of a gang are pending than its minimum, a step makes room for the minimum, and
    never moves more GPUs than that."""
    ledger = Ledger(rack("n1", 4), rack("n2", 2))
    put(ledger, "n1", "on-n1")
    put(ledger, "n2", "on-n2")  # four GPUs are free, on nodes with three and one
    ledger.play(gang("team/job", 2))
    ledger.submit(*(member(f"w{n}", cards(2)) for n in range(6))).settle()
    assert not ledger.where("w0")
    (step,) = asked(ledger).steps
    assert (step.name, step.gpus_freed, step.gpus_moved) == ("team/job", 4.0, 1.0)
    assert len(step.pods) == 2


def test_pods_whose_node_kube_scheduler_chooses_stay() -> None:
    """A pod whose node kube-scheduler chooses is not moved, because its next node is unknown."""
    state = halves("n1", "n2").state
    for one in state.pods.values():
        chosen = replace(one.submitted, chooser="default-scheduler")
        assert may_move(state, one)
        assert not may_move(state, replace(one, submitted=chosen))


def test_a_node_with_a_gang_of_too_many_pods_is_not_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most `UNIT_MAX` pods can be moved together, so a larger gang keeps its node in use."""
    ledger = Ledger(rack("n1", 4), rack("n2", 4), gang("team/job", 2))
    put(ledger, "n2", "on-n2")
    ledger.submit(*(member(f"w{n}", cards()) for n in range(3))).settle()
    node = ledger.where("w0")
    assert reasons(asked(ledger, free_nodes=2)).get(node) != "pods-stay"
    monkeypatch.setattr("apportion.lab.defrag.UNIT_MAX", 2)
    assert reasons(asked(ledger, free_nodes=2))[node] == "pods-stay"


def test_a_gang_is_moved_as_a_whole() -> None:
    """If a pod of a gang has to move, the pods of its gang on other nodes move with it."""
    ledger = Ledger(rack("n1", 4), rack("n2", 1), gang("team/job"))
    ledger.submit(*(member(f"w{n}", cards(n + 1)) for n in range(2))).settle()
    ledger.report(rack("n3", 4))
    assert {ledger.where("w0"), ledger.where("w1")} == {"n1", "n2"}
    put(ledger, "n3", "on-n3", cards(1), evictable=False)
    (step,) = asked(wanting(ledger, cards(4))).steps
    assert [(each.pod, each.gang) for each in step.moves] == [
        ("w0", "team/job"), ("w1", "team/job")
    ]  # fmt: skip
    assert step.gpus_moved == 3.0
    assert {each.pod: each.node for each in step.moves} == {"w0": "n2", "w1": "n1"}


def test_other_causes_are_counted_and_named_on_request() -> None:
    """A pod that exceeds a quota is not pending because of fragmentation."""
    ledger = halves("n1", "n2")
    hard = {"requests.nvidia.com/gpu": 2}
    ledger.play(QuotaObserved(namespace="default", quota="q", hard=hard))
    wanting(ledger, cards(), uid="third")
    assert asked(ledger).other_causes == 1
    assert reasons(asked(ledger, pods=("default/third",))) == {"default/third": "other-cause"}
    with pytest.raises(WishInvalid) as wrong:
        asked(ledger, pods=("default/on-n1",))
    assert wrong.value.field == "pods"


def test_nodes_are_emptied_with_the_fewest_moved_gpus() -> None:
    """The nodes with the fewest GPUs in use are emptied first. No pod is moved to an idle node, and
    none is moved twice."""
    ledger = Ledger(rack("n1", 4), rack("n2", 4), rack("n3", 4), rack("n4", 4))
    put(ledger, "n1", "on-n1", cards(2))
    put(ledger, "n2", "on-n2", cards(1))
    put(ledger, "n3", "on-n3", cards(3), evictable=False)
    one = asked(ledger, free_nodes=2).steps
    assert [(step.kind, step.name, moves(step)) for step in one] == [
        ("node", "n2", [("on-n2", "n2", "n3")])
    ]
    assert [(step.gpus_freed, step.gpus_moved) for step in one] == [(4.0, 1.0)]
    answer = asked(ledger, free_nodes=4)
    assert [step.name for step in answer.steps] == ["n2"], "n3 is full then"
    assert reasons(answer) == {"n1": "no-place", "n3": "pods-stay"}


def test_a_node_that_uses_all_its_gpus_is_not_emptied() -> None:
    """Emptying a full node would move as many GPUs as it frees."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2), rack("n3", 4))
    put(ledger, "n1", "full", cards(2))
    put(ledger, "n3", "half", cards(2))
    assert reasons(asked(ledger, free_nodes=2)) == {"n1": "frees-less", "n3": "no-place"}


def test_nodes_that_are_empty_already_count() -> None:
    """Nodes are emptied until enough are empty. An empty node counts if it can take pods."""
    ledger = halves("n1", "n2").report(rack("n3", 2), rack("n4", 2), rack("n5", 2))
    ledger.play(NodeCordoned(node="n3", by="test", reason="x"), observed("n4", unschedulable=True))
    answer = asked(ledger, free_nodes=1)
    assert (answer.empty_nodes, answer.steps, answer.blocked) == (1, (), ())
    answer = asked(ledger, free_nodes=2)
    assert (answer.empty_nodes, len(answer.steps)) == (1, 1)
    assert asked(ledger).empty_nodes == 0


def test_a_step_can_empty_several_nodes() -> None:
    """A gang is moved as a whole, so the nodes of its other pods can become empty, too."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2), gang("team/job", 2, required_level=RACK))
    ledger.play(*(observed(name, labels={RACK: "a"}) for name in ("n1", "n2")))
    ledger.submit(*(member(f"w{n}", cards(2)) for n in range(2))).settle()
    assert {ledger.where("w0"), ledger.where("w1")} == {"n1", "n2"}
    ledger.report(rack("n1", 5), rack("n3", 8)).play(observed("n3", labels={RACK: "b"}))
    put(ledger, "n3", "on-n3", cards(3), evictable=False)
    answer = asked(ledger, free_nodes=2)
    assert (answer.empty_nodes, answer.empty_after, answer.blocked) == (0, 2, ())
    [step] = answer.steps
    assert {each.to for each in step.moves} == {"n3"}


def test_the_work_has_a_limit() -> None:
    """At most `TRIES_MAX` steps are simulated; nodes beyond are reported as not tried."""
    count = TRIES_MAX + 2
    ledger = Ledger(*(rack(f"n{n:02}", 2, model=f"model-{n:02}") for n in range(count)))
    for number in range(count):  # each pod fits only on its own node's model
        only = shape(cards(), devices=DeviceConstraints(use_types=(f"model-{number:02}",)))
        ledger.submit(pod(f"p{number:02}", shape=only))
    ledger.settle()
    found = Counter(reasons(asked(ledger, free_nodes=1)).values())
    assert found == {"no-place": TRIES_MAX, "search-limit": 2}


def test_the_time_has_a_limit() -> None:
    """When the time is over, the answer has the steps found until then; all others are reported as
    not tried."""
    ledger = halves("n1", "n2", "n3", "n4")
    wanting(ledger, cards(2))
    wanting(ledger, cards(2), uid="next")
    state, late = ledger.state, False

    def tell(_: PlanProgress) -> None:
        nonlocal late
        late = True

    answer = defrag(state, DefragRequest(), time=LATER, tell=tell, is_late=lambda: late)
    assert [step.name for step in answer.steps] == ["default/large"]
    assert reasons(answer) == {"default/next": "search-limit"}
    nodes = defrag(state, DefragRequest(free_nodes=1), time=LATER, is_late=lambda: True)
    assert set(reasons(nodes).values()) == {"search-limit"}


def test_the_answer_names_no_blocked_nodes_if_enough_become_empty() -> None:
    """Reasons are given only if fewer nodes than requested would become empty, and for at most
    `BLOCKED_MAX` nodes."""
    full = Ledger(*(rack(f"n{n:03}", 1) for n in range(BLOCKED_MAX + 1)))
    full.submit(*(pod(f"p{n}", cards()) for n in range(BLOCKED_MAX + 1))).settle()
    assert len(asked(full, free_nodes=1).blocked) == BLOCKED_MAX
    ledger = halves("n1", "n2").report(rack("n3", 1))
    put(ledger, "n3", "full")
    answer = asked(ledger, free_nodes=1)
    assert (len(answer.steps), answer.blocked) == (1, ())
