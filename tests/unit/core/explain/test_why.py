"""Tests of every kind of answer that `why` gives about a pod, after decisions of the real
engine."""

import pytest
from msgspec import structs

from apportion.core.answers.reads import Step, Why
from apportion.core.explain.views import pod_answer
from apportion.core.explain.waiting_lines import lines_answer
from apportion.core.explain.why import choice_words, why, why_ended
from apportion.core.ledger.moments import SECOND, micros_of
from apportion.core.placement.feasibility.evaluator import Room
from apportion_schemas import (
    DeviceCordoned,
    DeviceHealthChanged,
    Host,
    NodeConstraints,
    NodeCordoned,
    NodeUncordoned,
    PodAdopted,
    PolicyChanged,
    QueueObserved,
    QuotaObserved,
    RefusalCode,
    ReportRefused,
    Score,
)
from apportion_schemas.operations import Policy
from tests.support.fleet import A100_80, T4, gpu, node, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, placed, pod, shape, share


def explained(ledger: Ledger, uid: str) -> Why:
    """Return the answer of `why` for one pod, which must be either placed, refused or waiting."""
    answer = why(ledger.state, ledger.pod(uid))
    assert [bool(part) for part in (answer.placed, answer.refused, answer.waiting)].count(True) == 1
    assert answer.revision == ledger.state.revision
    return answer


def test_waiting_counts_by_priority_then_revision(golden: Golden) -> None:
    """A pending pod's queue position follows priority first, then the revision of submission."""
    ledger = Ledger(pod("a"), pod("b"), pod("c", priority=5))
    waiting = {uid: explained(ledger, uid).waiting for uid in "abc"}
    positions = {uid: part.position for uid, part in waiting.items() if part}
    assert positions == {"c": 1, "a": 2, "b": 3}
    golden({"the last of three": explained(ledger, "b").sentence})


def test_placed_names_the_runner_up_and_the_deciding_part() -> None:
    """The answer for a placed pod shows its shares, the runner-up node and the difference in
    scores."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2))
    ledger.submit(pod("first", ask(40_000))).settle()
    ledger.submit(pod("second", ask(10_000))).settle()
    answer = explained(ledger, "second")
    placed = ledger.placement("second")
    assert answer.placed
    assert answer.placed.node == placed.node == ledger.where("first")
    [other] = answer.placed.runners_up
    assert other.node != placed.node
    assert other.behind == {
        part: round(value - other.parts[part], 6) for part, value in placed.score.parts.items()
    }
    assert f"ahead of {other.node} " in answer.sentence
    assert "2 of 2 nodes fit" in answer.sentence
    assert [held.share for held in answer.placed.shares] == list(placed.shares)
    assert answer.placed.shares[0].model


BESTFIT = "within n1, bestfit prefers the device with the least capacity left"
SPREAD = "within n1, spread prefers the device with the fewest containers, then the emptiest"


@pytest.mark.parametrize(
    ("policy", "own", "said"),
    [
        ("bestfit", "", BESTFIT),
        ("price", "", BESTFIT),
        ("bestfit", "spread", SPREAD),
        ("bestfit", "mutex,binpack", ""),
    ],
)  # fmt: skip
def test_how_its_card_was_chosen_is_said(policy: Policy, own: str, said: str) -> None:
    """The answer names the policy by which the pod's device was chosen.

    While no prices are learnt, the policy `price` falls back to best fit, and the answer names best
    fit."""
    ledger = Ledger(rack("n1", 4))
    ledger.play(PolicyChanged(by="ann", node_policy=policy, device_policy=policy))
    ledger.submit(pod("p1", shape=shape(ask(1000), device_policy=own))).settle()
    placed = explained(ledger, "p1").placed
    assert placed is not None
    assert placed.choice == said
    price = Score(node="n1", total=1.0, parts={"price": 1.0})
    state, there = ledger.state, ledger.pod("p1").placement
    assert there is not None
    money = "not money" in choice_words(state, ledger.pod("p1"), there, price)
    assert money == (own == "")
    ledger.play(PolicyChanged(by="ann"))
    later = explained(ledger, "p1").placed
    assert later is not None
    assert later.choice == "", "nobody knows by which policy it was"


def test_of_a_pod_that_has_ended_it_is_said_what_was(golden: Golden) -> None:
    """The answer for a pod that has ended uses the past tense."""
    ledger = Ledger(rack("n1", 1), pod("p1", ask(100_000))).settle()
    before = explained(ledger, "p1")
    step = Step(phase="ended", revision=9, time="2026-01-01T00:00:00.000000Z")
    told = {"refused": why_ended(before, step, "deleted", ()).sentence}
    ran = explained(Ledger(rack("n1", 1), pod("p1", ask(1_000))).settle(), "p1")
    told["placed"] = why_ended(ran, step, "", ()).sentence
    waited = explained(Ledger(pod("p1")), "p1")
    told["not decided"] = why_ended(waited, step, "", ()).sentence
    golden(told)


def test_only_node_that_fits_is_said_so(golden: Golden) -> None:
    """If only one node fits, the answer says so and names no runner-up."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1, model=T4)).submit(pod("p1", ask(40_000)))
    answer = explained(ledger.settle(), "p1")
    golden({"one of two": answer.sentence})


def test_a_placed_pod_says_until_when_it_may_run(golden: Golden) -> None:
    """The answer for a placed pod has the time of its deadline, until the pod has ended."""
    ledger = Ledger(rack("n1", 1), pod("p1", ask(1_000), deadline_s=3_600)).settle()
    answer = explained(ledger, "p1")
    assert answer.placed
    begun = micros_of(answer.placed.time)
    assert begun is not None
    assert micros_of(answer.placed.ends_by) == begun + 3_600 * SECOND
    step = Step(phase="ended", revision=9, time="2026-01-01T00:00:00.000000Z")
    golden({"runs": answer.sentence, "ended": why_ended(answer, step, "", ()).sentence})


def test_the_deadline_of_an_adopted_pod_is_unknown() -> None:
    """If a pod ran before it was adopted, its start is unknown, so the answer has no deadline."""
    submitted = pod("p1", ask(1_000), deadline_s=3_600)
    adopted = PodAdopted(node="n1", pod="p1", submitted=submitted, shares=(share(device="n1-g0"),))
    answer = explained(Ledger(rack("n1", 1), adopted), "p1")
    assert answer.placed
    assert (answer.placed.found_there, answer.placed.ends_by) == (True, "")


def test_a_pod_whose_node_is_chosen_elsewhere_waits_for_that(golden: Golden) -> None:
    """If another scheduler chooses a pod's node, the answer shows no queue position and no
    runner-up."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), pod("p1", ask(1000), chooser="kube-scheduler"))
    waits = explained(ledger, "p1").sentence
    ledger.play(placed("p1", "n1", [share("n1-g0")]))
    golden({"waits": waits, "placed": explained(ledger, "p1").sentence})


def test_who_waits_for_a_gate_stands_in_no_line(golden: Golden) -> None:
    """A pod with scheduling gates has no queue position. Lists show its gates instead."""
    ledger = Ledger(rack("n1", 1), pod("a"), pod("p1", ask(1000), gates=("quota", "data")))
    answer = why(ledger.state, ledger.pod("p1"))
    assert answer.waiting is None
    assert answer.sentence.endswith(f" {pod_answer(ledger.state, ledger.pod('p1')).cause}")
    golden({"quota and data": answer.sentence})


@pytest.mark.parametrize("declared", [False, True])
def test_a_list_says_what_is_lacking_before_anybody_can_decide(*, declared: bool) -> None:
    """A pod whose gang is not declared yet is listed with that cause, although no scheduler has
    refused the pod."""
    ledger = Ledger(rack("n1", 1), *([gang("team/job", 1)] if declared else []))
    ledger.submit(member("m0", cards(1)))
    cause = pod_answer(ledger.state, ledger.pod("m0")).cause
    assert ("team/job" in cause, bool(cause)) == (not declared, not declared)


def test_a_list_says_who_chooses_the_node() -> None:
    """If a pod waits for another scheduler to choose its node, the cause names that scheduler."""
    ledger = Ledger(rack("n1", 1), pod("p1", ask(1000), chooser="kube-scheduler"))
    cause = pod_answer(ledger.state, ledger.pod("p1")).cause
    assert "kube-scheduler" in cause
    assert pod_answer(ledger.settle().state, ledger.pod("p1")).cause == cause


def test_history_has_every_revision() -> None:
    """The history of a pod lists every event from submission to allocation, with revisions."""
    ledger = Ledger(rack("n1", 1), pod("p1", ask(1000))).settle().bound("p1").allocated("p1")
    state = ledger.pod("p1")
    history = explained(ledger, "p1").history
    assert [(step.phase, step.revision) for step in history] == [
        ("submitted", state.submitted_revision),
        ("placed", state.placed_revision),
        ("bound", state.bound_revision),
        ("allocated", state.allocated_revision),
    ]


def test_refused_says_what_is_missing_and_since_when(golden: Golden) -> None:
    """The answer for a refused pod shows the causes and what the nearest node lacks."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1, model=T4)).submit(pod("p1", ask(100_000)))
    answer = explained(ledger.settle(), "p1")
    assert answer.refused
    assert answer.refused.revision == ledger.pod("p1").refused_revision
    [cause] = answer.refused.causes
    assert (cause.code, cause.nodes) == (RefusalCode.MEMORY_INSUFFICIENT, 2)
    nearest = answer.refused.nearest[0]
    assert (nearest.node, nearest.needed, nearest.available) == ("n1", 100_000, 81_920)
    assert nearest.missing == "18,080 MiB"
    golden({"100000 MiB": answer.sentence})


def test_cure_names_the_node() -> None:
    """The advice contains the node's name, so that a user can paste `apportion uncordon n1`."""
    ledger = Ledger(rack("n1", 1), NodeCordoned(node="n1", by="ann", reason="fan"))
    answer = explained(ledger.submit(pod("p1", ask(1000))).settle(), "p1")
    assert answer.refused
    assert answer.refused.causes[0].command == "apportion uncordon n1"


@pytest.mark.parametrize("present", [1, 2])
def test_gang_that_waits_for_its_pods(golden: Golden, present: int) -> None:
    """The answer for a member of an incomplete gang shows how many members exist."""
    ledger = Ledger(rack("n1", 8), gang("team/job", 3))
    for number in range(present):
        ledger.submit(member(f"m{number}", cards(1)))
    answer = explained(ledger.settle(), "m0")
    golden({f"{present} of 3": answer.sentence})
    assert answer.gang
    assert answer.gang.pods == present


def test_a_held_pod_waits_for_its_gang(golden: Golden) -> None:
    """For a placed pod of a gang that needs several batches, the answer says that the pod is held.
    It also shows how many of the gang's pods are placed.

    Once the whole gang is placed, the pod is no longer held."""
    ledger = Ledger(rack("n1", 8), gang("team/job", 5))
    ledger.submit(*(member(f"m{n}", cards(1)) for n in range(5)))
    ledger.engine.limit_batches(3)
    ledger.decide()
    answer = why(ledger.state, ledger.pod("m0"))
    assert answer.placed
    assert answer.placed.held
    golden({"held": answer.sentence})
    ledger.settle()
    answer = why(ledger.state, ledger.pod("m0"))
    assert answer.placed
    assert not answer.placed.held


def test_gang_that_does_not_fit(golden: Golden) -> None:
    """If a complete gang does not fit, the answer shows how many members would fit."""
    ledger = Ledger(rack("n1", 3), gang("team/job", 3)).submit(pod("holds", cards(1))).settle()
    ledger.submit(*(member(f"m{number}", cards(1)) for number in range(3)))
    answer = explained(ledger.settle(), "m0")
    golden({"2 of 3": answer.sentence})


def gang_beside_a_cordon(needs: int) -> Why:
    """Return why a gang of `needs` pods, each with a whole node's 8 GPUs, is pending.

    Of the six nodes, two are in use, one is cordoned and three are free."""
    ledger = Ledger(*(rack(f"n{number}", 8) for number in range(6)), gang("team/job", needs))
    ledger.play(NodeCordoned(node="n0", by="ann", reason="fan"))
    ledger.submit(pod("h1", cards(8)), pod("h2", cards(8))).settle()
    ledger.submit(*(member(f"m{number}", cards(8)) for number in range(needs)))
    return explained(ledger.settle(), "m0")


def test_nodes_that_its_gang_would_take_are_not_said_to_be_held(golden: Golden) -> None:
    """If uncordoning one node would let a gang start, the cordon is the first cause. Free nodes
    that the gang would use do not count as in use."""
    answer = gang_beside_a_cordon(4)
    assert answer.refused is not None
    cordon, in_use = answer.refused.causes
    assert cordon.command == "apportion uncordon n0"
    assert "n0" in [each.node for each in cordon.cordoned]
    golden({"3 of 4": answer.sentence, "in use": in_use.words})
    first, *others = answer.refused.nearest
    assert (first.node, first.code) == ("n0", RefusalCode.NODE_CORDONED)
    assert [miss.held_by for miss in others] == [("default/h1",), ("default/h2",)]
    assert [miss.missing for miss in others] == ["8 devices", "8 devices"]


def test_a_cordon_is_not_the_first_cause_where_its_gang_needs_more() -> None:
    """If a gang would not fit even after one node is uncordoned, the cordon is not the first
    cause."""
    answer = gang_beside_a_cordon(5)
    assert answer.refused is not None
    assert answer.refused.causes[0].code is RefusalCode.DEVICE_IN_USE
    assert answer.refused.nearest[0].held_by


def test_gang_beyond_what_is_left_of_its_queue(golden: Golden) -> None:
    """If only some pods of a gang fit within their queue's limit, the answer shows how many."""
    ledger = Ledger(rack("n1", 8), gang("team/job", 3, queue="ml"))
    ledger.play(QueueObserved(queue="ml", capability={"volcano.sh/vgpu-number": 4}))
    ledger.submit(pod("runs", ask(1000, count=2), queue="ml")).settle()
    ledger.submit(*(member(f"m{number}", cards(1)) for number in range(3)))
    answer = explained(ledger.settle(), "m0")
    said = pod_answer(ledger.state, ledger.pod("m0")).cause
    assert answer.sentence.endswith(f". {said[:1].upper()}{said[1:]}")
    assert answer.refused is not None
    (cause,) = answer.refused.causes
    assert said.endswith(f" {cause.words}")
    golden({"2 of 3, within 4 that hold 2": said, "fix": cause.unblocked_by})


@pytest.mark.parametrize("in_gang", [False, True])
def test_what_a_queue_or_a_quota_never_holds_waits_for_nobody(
    golden: Golden, *, in_gang: bool
) -> None:
    """A request larger than its queue or quota is reported as never fitting, without advice to
    wait."""
    ledger = Ledger(rack("n1", 8), gang("team/job", 3, queue="ml"))
    if in_gang:
        ledger.play(QueueObserved(queue="ml", capability={"volcano.sh/vgpu-number": 2}))
        ledger.submit(*(member(f"m{number}", cards(1)) for number in range(3)))
    else:
        hard = {"limits.nvidia.com/gpumem": 900}
        ledger.play(QuotaObserved(namespace="default", quota="q", hard=hard))
        ledger.submit(pod("m0", ask(1000)))
    answer = explained(ledger.settle(), "m0")
    assert answer.refused is not None
    (cause,) = answer.refused.causes
    said = cause.words
    assert answer.sentence.endswith(f". {said[:1].upper()}{said[1:]}")
    golden({"2 for a gang of 3" if in_gang else "900 MiB for 1000": said})
    assert " end" not in cause.unblocked_by
    (line,) = lines_answer(ledger.state).lines
    assert (line.sentence, line.lasting) == (said, True), "as `why` says that it is never"


@pytest.mark.parametrize(("wants", "fits"), [(6, False), (4, True)])
def test_a_gang_beyond_the_cards_of_its_queue_never_has_a_place(
    golden: Golden, wants: int, *, fits: bool
) -> None:
    """A gang that needs more GPUs than its queue's quota is reported as never fitting.

    The quota is shown as the cause."""
    ledger = Ledger(rack("a1", 16), rack("t1", 16, model=T4), gang("team/job", wants, queue="ml"))
    ledger.play(QueueObserved(queue="ml", cards={"A100": 16}))
    ledger.submit(*(member(f"m{number}", cards(4)) for number in range(wants))).settle()
    if fits:
        assert explained(ledger, "m0").placed is not None
        return
    answer = explained(ledger, "m0")
    said = pod_answer(ledger.state, ledger.pod("m0")).cause
    assert answer.sentence.endswith(f". {said[:1].upper()}{said[1:]}")
    assert answer.refused is not None
    (cause,) = (each for each in answer.refused.causes if each.code.value == "QueueCardsExceeded")
    golden({"24 of 16": said, "fix": cause.unblocked_by})
    (line,) = lines_answer(ledger.state).lines
    assert (line.sentence, line.lasting) == (said, True)


def test_what_others_hold_of_the_cards_of_a_queue_may_end(golden: Golden) -> None:
    """If a quota is large enough but in use by other pods, the answer does not say that the pod
    never fits."""
    ledger = Ledger(rack("a1", 16), rack("a2", 16))
    ledger.play(QueueObserved(queue="ml", cards={"A100": 16}))
    ledger.submit(pod("runs", cards(8), queue="ml")).settle()
    ledger.submit(pod("p1", cards(12), queue="ml"))
    golden({"12, and 8 are left": explained(ledger.settle(), "p1").sentence})


def test_the_card_of_the_quota_is_named_of_which_too_little_is_left(golden: Golden) -> None:
    """If a queue's quota for a GPU type is used up, the answer names that type and the pods that
    use it."""
    ledger = Ledger(rack("a1", 16), rack("t1", 16, model=T4), gang("team/job", 3, queue="ml"))
    ledger.play(QueueObserved(queue="ml", cards={"A100": 14}))
    ledger.submit(pod("runs", cards(5), queue="ml")).settle()
    ledger.submit(*(member(f"m{number}", cards(4)) for number in range(3)))
    answer = explained(ledger.settle(), "m0")
    golden({"4, and 1 is left": answer.sentence})
    assert answer.refused is not None
    assert answer.refused.causes[0].held_by == ("default/runs",)


def test_a_closed_queue_is_said_to_be_closed_whatever_it_may_hold(golden: Golden) -> None:
    """The answer reports a closed queue as closed, whatever the queue's limits."""
    ledger = Ledger(rack("n1", 1))
    ledger.play(QueueObserved(queue="ml", open=False, capability={"volcano.sh/vgpu-memory": 900}))
    ledger.submit(pod("p1", ask(1000), queue="ml")).settle()
    golden({"closed, and too small": explained(ledger, "p1").sentence})


def test_a_pod_waits_since_its_submission_however_often_it_is_decided(golden: Golden) -> None:
    """The waiting time counts from the pod's submission, however often the scheduler refuses the
    pod."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1)).submit(pod("p1", ask(100_000))).settle()
    waits = ledger.pod("p1")
    since = f"default/p1 has been pending since revision {waits.submitted_revision}. "
    assert waits.refused_revision > waits.submitted_revision
    assert explained(ledger, "p1").sentence.startswith(since)

    ledger = Ledger(rack("n1", 1), pod("p1", cards())).settle().voided("p1", "node lost")
    ledger.submit(pod("p0", cards(), priority=9)).settle()
    said = explained(ledger, "p1").sentence
    golden({"voided, and another came": said})


def test_voided_placement_is_remembered() -> None:
    """If a placement was voided, the answer shows the reason."""
    ledger = Ledger(rack("n1", 1), pod("p1", ask(1000))).settle().voided("p1", "node lost")
    answer = explained(ledger, "p1")
    assert "node lost" in answer.sentence


def test_an_adopted_pod_was_there_before(golden: Golden) -> None:
    """An adopted pod has no score, because no Apportion scheduler placed the pod."""
    data = PodAdopted(pod="a", node="n1", submitted=pod("a", ask(1)), shares=(share("n1-g0"),))
    answer = explained(Ledger(rack("n1", 1), data), "a")
    golden({"adopted": answer.sentence})


def test_a_node_whose_agent_is_not_believed_is_named_where_it_might_fit(golden: Golden) -> None:
    """The answer names a node whose agent's report was refused, if the node's devices might fit the
    pod."""
    small = node("n3", gpu("n3-g0"), host=Host(cpu_milli=1_000, memory_mib=1_000, pods=9))
    ledger = Ledger(rack("n1", 1), rack("n2", 1, model=T4), small)
    ledger.play(*(refused(name) for name in ("n2", "n3", "n9")))
    needs = NodeConstraints(cpu_milli=2_000)
    ledger.submit(pod("p1", shape=shape(ask(900_000), node=needs))).settle()
    told = explained(ledger, "p1")
    assert told.refused
    assert told.refused.unbelieved == ("n2", "n9")
    golden({"the agents of n2 and n9 are refused": told.sentence})
    ledger.play(rack("n2", 2, model=T4), rack("n9", 1, model=T4))
    assert "might fit" not in explained(ledger, "p1").sentence


def refused(node: str) -> ReportRefused:
    """Return the event that records the intake's refusal of a report from this node's agent."""
    return ReportRefused(node=node, cause="implausible-device", message="a T4 of 16 TiB")


def test_devices_that_are_wanted_alone_are_counted() -> None:
    """If a pod requests whole devices, the answer compares their number with the number of unused
    devices, not with free slots."""
    ledger = Ledger(rack("n1", 4), *(pod(f"p{at}", ask(60_000)) for at in range(3))).settle()
    answer = explained(ledger.submit(pod("large", cards(2))).settle(), "large")
    assert answer.refused
    [miss] = answer.refused.nearest
    assert miss.code is RefusalCode.DEVICE_IN_USE
    assert (miss.needed_words, miss.available_words, miss.missing) == (
        "2 devices", "1 device", "1 device",
    )  # fmt: skip
    assert (miss.needed, miss.available) == (2, 1)


@pytest.mark.parametrize("unnamed", [(), ("nvidia",), ("ascend310p",)])
def test_other_schedulers_are_spoken_of_where_their_pods_are(unnamed: tuple[str, ...]) -> None:
    """The advice mentions pods of other schedulers only if a node reports such pods on devices of
    the requested family."""
    failed = DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79")
    seen = observed("n2", unnamed_families=unnamed)
    ledger = Ledger(rack("n1", 1), failed, rack("n2", 1), seen)
    if "nvidia" not in unnamed:
        ledger.play(DeviceHealthChanged(node="n2", device="n2-g0", healthy=False, reason="hot"))
    answer = explained(ledger.submit(pod("p1", ask(1000))).settle(), "p1")
    assert answer.refused
    [cause] = answer.refused.causes
    assert cause.code is RefusalCode.DEVICE_UNHEALTHY
    assert cause.unblocked_by.startswith("wait for the device to recover")
    assert ("another scheduler" in cause.unblocked_by) == ("nvidia" in unnamed)


def test_a_cordon_that_was_lifted_needs_no_lifting(golden: Golden) -> None:
    """The answer does not advise lifting a cordon that was already lifted."""
    ledger = Ledger(rack("n1", 1), NodeCordoned(node="n1", by="ann", reason="fan"))
    ledger.submit(pod("p1", ask(1000))).settle().play(NodeUncordoned(node="n1", by="ann"))
    refused = explained(ledger, "p1").refused
    assert refused is not None
    (cause,) = refused.causes
    assert (cause.command, cause.cordoned) == ("", ())
    golden({"lifted": cause.unblocked_by})


def test_a_cordon_of_a_device_that_left_stands(golden: Golden) -> None:
    """If a cordoned device is no longer on its node, the answer offers no command to uncordon
    it."""
    ledger = Ledger(rack("n1", 1), DeviceCordoned(device="n1-g0", by="ann", reason="fan"))
    ledger.submit(pod("p1", ask(1000))).settle().play(node("n1", gpu("n1-g9")))
    refused = explained(ledger, "p1").refused
    assert refused is not None
    (cause,) = refused.causes
    assert (cause.command, cause.cordoned) == ("", ())
    golden({"n1-g0 has left": cause.unblocked_by})


def test_labels_that_no_node_has_are_named_with_what_the_nearest_has() -> None:
    """If no node has a requested label, the answer shows the nearest node's label too, so that
    typos are visible."""
    here = observed("n1", labels={"zone": "a"})
    needs = NodeConstraints(selector={"zone": "z9"})
    ledger = Ledger(rack("n1", 1), here).submit(pod("p1", shape=shape(ask(1000), node=needs)))
    told = explained(ledger.settle(), "p1")
    assert "zone=z9 (1 node)" in told.sentence
    assert told.refused is not None
    (near,) = told.refused.nearest
    assert (near.needed_words, near.available_words) == ("zone=z9", "zone=a")


def test_what_never_fits_is_not_said_to_lack_what_is_free(golden: Golden) -> None:
    """If a request is larger than any device, the answer states the device's size, not its free
    amount."""
    told = explained(Ledger(rack("n1", 1)).submit(pod("p1", ask(900_000))).settle(), "p1")
    assert told.refused is not None
    (cause,), (near,) = told.refused.causes, told.refused.nearest
    assert cause.words == near.words
    assert "free" not in told.sentence
    golden({"900000 MiB": told.sentence})


def test_a_card_with_closed_slices_could_hold_the_pod() -> None:
    """A MIG device whose slices other schedulers use may still fit the pod later."""
    shut = gpu("m1", model=A100_80, mode="mig", closed_slices=255)
    ledger = Ledger(node("n1", shut)).submit(pod("p1", ask(70_000))).settle()
    refused = explained(ledger, "p1").refused
    assert refused is not None
    (cause,) = refused.causes
    assert (cause.code, refused.never) == (RefusalCode.MIG_SLICES_OCCUPIED, False)
    ledger.play(node("n2", structs.replace(shut, id="m2", closed_slices=0)))
    could = Room(ledger.state).could(shape(ask(70_000)))
    assert [each.name for each in could] == ["n1", "n2"]


def test_a_pod_of_a_gang_names_it() -> None:
    """The answer for a pod of a gang names the gang."""
    ledger = Ledger(rack("n1", 1), gang("team/job", 3), member("m1", ask(1000))).settle()
    assert "gang team/job" in explained(ledger, "m1").sentence


def test_a_headline_has_the_reason_that_counts(golden: Golden) -> None:
    """The headline shows the limit or gang that blocks the pod. For other pods, it shows the first
    cause and the nearest node."""
    ledger = Ledger(rack("n1", 3), gang("team/job", 3)).submit(pod("holds", cards(1))).settle()
    ledger.play(QuotaObserved(namespace="theirs", quota="q", hard={"nvidia.com/gpu": 0}))
    ledger.submit(pod("limited", cards(1), namespace="theirs"), pod("large", cards(3)))
    ledger.submit(*(member(f"m{number}", cards(1)) for number in range(3))).settle()
    refused = {uid: explained(ledger, uid).refused for uid in ("limited", "large", "m0")}
    said = {uid: (each.limit, each.reason) for uid, each in refused.items() if each}
    assert {uid: limit in ("", reason) for uid, (limit, reason) in said.items()} == dict.fromkeys(
        refused, True
    )
    assert [uid for uid, (limit, _) in said.items() if limit] == ["limited", "m0"]
    golden({uid: reason for uid, (_, reason) in said.items()})
