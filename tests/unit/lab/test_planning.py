"""Tests of plans for clusters that are small enough to work out the right plan by hand."""

from typing import Any

import pytest

from apportion.core.answers.plans import PlanAnswer, PlannedPod, PlanRequest
from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import State
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.course import Course, copied
from apportion.lab.planning import PODS_MAX, WAITING_NAMED, Plan, plan, plan_of
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    DeviceHealthChanged,
    NodeConstraints,
    NodeCordoned,
    NodeSilent,
    PodGroupObserved,
    RefusalCode,
    VolumeClaimObserved,
)
from tests.support import fleet
from tests.support.fleet import A100_80, T4, gpu, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, pod, shape


def draft(name: str, *asks: Ask, **fields: Any) -> PodDraft:
    """Return a pod for a plan, as a manifest would describe it."""
    fields.setdefault("shape", shape(*asks))
    return PodDraft(namespace="default", name=name, dialect="hami", **fields)


def planned(ledger: Ledger, *drafts: PodDraft, **fields: Any) -> PlanAnswer:
    """Plan these pods and changes. Fail the test if planning changes the ledger's state."""
    groups = fields.pop("groups", ())
    before = digest(ledger.state)
    answer = plan(ledger.state, Plan(pods=drafts, groups=groups, changes=Changes(**fields)))
    assert digest(ledger.state) == before, "a plan must leave the state as it was"
    return answer


def only(answer: PlanAnswer) -> PlannedPod:
    """Return the plan's pod. Fail the test if the plan does not have exactly one."""
    (one,) = answer.pods
    return one


def full(nodes: int = 2, count: int = 2) -> Ledger:
    """Return a ledger in which pods named n1-0, n1-1, n2-0 and so on hold all GPUs."""
    ledger = Ledger(*(rack(f"n{node}", count) for node in range(1, nodes + 1)))
    for node in range(1, nodes + 1):
        for index in range(count):
            ledger.submit(pod(f"n{node}-{index}", cards()))
    while ledger.decide():
        pass
    return ledger


def test_a_pod_that_fits_is_told_where_and_beside_whom(golden: Golden) -> None:
    """For a pod that fits, the plan has its node, its devices and the pods that share these
    devices."""
    ledger = Ledger(rack("n1", 1)).submit(pod("old", ask(4096)))
    ledger.decide()
    answer = planned(ledger, draft("new", ask(8192)))
    one = only(answer)
    assert (answer.outcome, one.outcome, one.node) == ("fits", "fits", "n1")
    assert [(other.pod, other.device, other.memory_mib) for other in one.beside] == [
        ("old", "n1-g0", 4096)
    ]
    assert one.placed is not None
    assert [held.share.device for held in one.placed.shares] == ["n1-g0"]
    golden({"new fits": one.sentence})


def test_a_pod_that_fits_on_an_empty_fleet_waits() -> None:
    """If a pod would fit only on an emptier cluster, its planned outcome is `not-now`, and the plan
    names the causes."""
    one = only(planned(full(), draft("new", cards(2))))
    assert one.outcome == "not-now"
    assert one.refused is not None
    assert [row.nodes for row in one.refused.causes] == [2]


def test_who_would_be_submitted_has_not_started_before_who_runs() -> None:
    """A plan treats its new pods as younger than all running pods. It therefore evicts the new pods
    first."""
    ledger = Ledger(rack("n1", 2), pod("old", cards())).settle()
    course = Course(copied(ledger.state))
    for comes in (pod("younger", cards()), pod("top", cards(), priority=5)):
        course.apply(comes)
        assert sum(course.settle()) > 0
    assert [each.name for each in course.evicted] == ["younger"]


def test_who_comes_and_goes_within_a_plan_is_not_among_those_that_would_go() -> None:
    """If a plan places a pending pod and then evicts it again, the pod is listed as pending, not as
    evicted."""
    ledger = Ledger(rack("n1", 2), pod("old", cards())).settle().submit(pod("late", cards()))
    answer = planned(ledger, draft("top", cards(2), priority=5))
    assert [(gone.pod, gone.node) for gone in answer.evicted] == [("old", "n1")]
    assert only(answer).evicts == ("default/old",)
    assert "once default/old has left" in only(answer).sentence
    assert "late" in {each.pod for each in answer.waiting}


def test_who_is_evicted_twice_goes_once_and_from_where_it_is() -> None:
    """If a plan evicts a pod twice, the pod is listed once, with the node on which it runs now."""
    ledger = Ledger(rack("n1", 1), pod("there", cards())).settle()
    ledger.play(rack("n2", 2, model=T4))
    small = shape(cards(), devices=DeviceConstraints(use_types=("T4",)))
    ledger.submit(pod("small", shape=small)).settle()
    a100, t4 = (
        shape(cards(count), devices=DeviceConstraints(use_types=(name,)))
        for name, count in (("A100", 1), ("T4", 2))
    )
    first, second = draft("a", shape=a100, priority=9), draft("b", shape=t4, priority=5)
    answer = planned(ledger, first, second)
    assert sorted((gone.pod, gone.node, gone.to) for gone in answer.evicted) == [
        ("small", "n2", ""),
        ("there", "n1", ""),
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        shape(cards(3)),
        shape(ask(100_000)),
        shape(ask(1000), node=NodeConstraints(cpu_milli=1_000_000)),
        shape(ask(1000, family="ascend310p")),
    ],
    ids=["more cards than a node has", "more memory than a card has", "CPU", "another family"],
)
def test_what_no_empty_node_takes_can_never_fit(wanted: Any) -> None:
    """If a pod fits on no node, not even an empty one, its planned outcome is `never`."""
    answer = planned(full(), draft("new", shape=wanted))
    assert answer.outcome == only(answer).outcome == "never"
    refused = only(answer).refused
    assert refused is not None
    assert refused.never
    assert not any("freed" in cause.unblocked_by for cause in refused.causes)


def test_cordons_and_failures_pass_and_are_no_never() -> None:
    """If a pod fits only on cordoned or failed nodes, its planned outcome is `not-now`, since both
    are temporary."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), rack("n3", 1))
    ledger.play(
        NodeCordoned(node="n1", by="me", reason="fan"),
        NodeSilent(node="n3", grace_s=40),
        DeviceHealthChanged(node="n2", device="n2-g0", healthy=False, reason="XID 79"),
    )
    assert only(planned(ledger, draft("new", cards()))).outcome == "not-now"


def test_a_claim_that_is_not_bound_is_no_never() -> None:
    """If a pod's volume claim is unbound, its planned outcome is `not-now`, since the claim may be
    bound later."""
    ledger = Ledger(rack("n1", 1), observed("n1", version=1))
    ledger.play(VolumeClaimObserved(namespace="default", claim="data", state="unbound"))
    one = only(planned(ledger, draft("new", cards(), volume_claims=("data",))))
    assert one.outcome == "not-now"
    assert "data" in one.sentence


def test_a_pod_that_has_a_place_is_unchanged(golden: Golden) -> None:
    """If a pod is already placed, its outcome is `unchanged`, and the plan has its node and
    devices."""
    answer = planned(full(), draft("n1-0", cards()))
    one = only(answer)
    assert (one.outcome, one.was, one.node) == ("unchanged", "n1", "n1")
    golden({"n1-0 is on n1": one.sentence, "the plan": answer.sentence})
    assert one.placed is not None
    assert [held.share.device for held in one.placed.shares] == ["n1-g0"]
    assert one.beside == (), "it is not beside itself"


def test_what_is_wrong_with_the_place_of_a_pod_is_said(golden: Golden) -> None:
    """For a pod that is already placed, the plan reports a silent node, a failed device or a
    changed manifest."""
    ledger = full()
    ledger.play(
        NodeSilent(node="n1", grace_s=40),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"),
    )
    golden({"silent, failed and changed": only(planned(ledger, draft("n1-0", ask(4096)))).sentence})


def waiting() -> Ledger:
    """Return a ledger in which a pod is pending because another holds the only GPU."""
    ledger = full(nodes=1, count=1).submit(pod("late", cards()))
    while ledger.decide():
        pass
    return ledger


def test_a_pod_that_waits_already_is_decided_anew(golden: Golden) -> None:
    """A plan also covers a pod that is already pending. It states how long the pod has been pending
    and where the planned change would place it."""
    ledger = waiting()
    since = ledger.pod("late").submitted_revision
    answer = planned(ledger, draft("late", cards()))
    one = only(answer)
    assert (answer.outcome, one.outcome, one.pending_since) == ("not-now", "not-now", since)
    golden({"late": one.sentence})
    assert one.refused is not None
    assert answer.waiting == (), "it does not wait for itself"
    added = planned(ledger, draft("late", cards()), add=("1xA100-80GB",))
    one = only(added)
    assert (one.outcome, one.node, one.without) == ("fits", "added-1", "not-now")
    assert f"since revision {since}, fits on added-1" in one.sentence
    assert added.helped == (), "it is told among those of the manifest"
    ledger.submit(pod("huge", cards(9)))
    assert only(planned(ledger, draft("huge", cards(9)))).outcome == "never"


def test_a_manifest_that_asks_for_something_else_takes_the_place_of_what_waits() -> None:
    """A pod of the manifest may have the name of a pending pod and request something else. In the
    plan, it replaces the pending pod."""
    ledger = full(nodes=1, count=1)
    ledger.play(rack("n2", 1, model=T4)).submit(pod("big", ask(60_000)))
    while ledger.decide():
        pass
    since = ledger.pod("big").submitted_revision
    answer = planned(ledger, draft("big", ask(1000)))
    assert (only(answer).outcome, only(answer).node, only(answer).pending_since) == (
        "fits", "n2", since,
    )  # fmt: skip
    said = f"default/big, replacing a pod that has been pending since revision {since}, fits on n2"
    assert only(answer).sentence.startswith(said)
    assert answer.after is not None
    assert (answer.after.placed, answer.after.waiting) == (2, 0), "it waits no more"


def test_what_is_out_of_reach_is_broken_as_well() -> None:
    """A plan counts the devices of a silent node as unhealthy, as the console does."""
    ledger = full()
    ledger.play(NodeSilent(node="n1", grace_s=40))
    ledger.play(DeviceHealthChanged(node="n2", device="n2-g0", healthy=False, reason="XID 79"))
    before = planned(ledger, draft("new", cards())).before
    assert before is not None
    assert (before.devices, before.devices_unhealthy) == (4, 3)


def test_a_pod_of_the_manifest_that_loses_its_place_is_told_so(golden: Golden) -> None:
    """If a pod of the manifest loses its place in the plan, it is reported as moved, pending or
    evicted."""
    lost = planned(full(), draft("n1-0", cards()), lose=("n1",))
    assert (only(lost).outcome, only(lost).was) == ("not-now", "n1")
    assert [each.name for each in lost.moved] == ["n1-0", "n1-1"]
    moved = only(planned(full(), draft("n1-0", cards()), lose=("n1",), add=("2xA100-80GB",)))
    assert (moved.outcome, moved.was, moved.node) == ("fits", "n1", "added-1")
    ledger = full(nodes=1, count=1)
    urgent = draft("urgent", cards(), priority=10)
    first, other = planned(ledger, draft("n1-0", cards()), urgent).pods
    assert (first.outcome, first.was, other.outcome) == ("not-now", "n1", "fits")
    ledger.submit(pod("urgent", cards(), priority=10))
    while ledger.decide():
        pass
    (told,) = ledger.state.evictions.values()
    one = only(planned(ledger, draft("n1-0", cards())))
    assert (told.name, one.outcome) == ("n1-0", "not-now")
    golden({"n1-0 is evicted": one.sentence})


def test_a_pod_of_the_manifests_that_would_be_evicted_is_counted_once(golden: Golden) -> None:
    """If a pod of the manifest would be evicted, the plan's summary counts it once, as pending, and
    not also as evicted."""
    ledger = Ledger(rack("n1", 1), pod("low", cards())).settle()
    answer = planned(ledger, draft("low", cards()), draft("high", cards(), priority=9))
    assert [gone.pod for gone in answer.evicted] == ["low"]
    golden({"low and high": answer.sentence})


def test_whoever_would_be_evicted_is_named(golden: Golden) -> None:
    """The plan lists each pod that would be evicted, and the pod of higher priority that gets its
    place."""
    ledger = full(nodes=1, count=1)
    answer = planned(ledger, draft("urgent", cards(), priority=10))
    one = only(answer)
    assert (one.outcome, one.node, one.evicts) == ("fits", "n1", ("default/n1-0",))
    assert [(gone.pod, gone.beneficiary) for gone in answer.evicted] == [("n1-0", "default/urgent")]
    golden({"the plan": answer.sentence, "urgent": one.sentence})


@pytest.mark.parametrize(("owner", "to"), [("", "n2"), ("Process/n1/7/9", "")])
def test_whoever_is_evicted_without_kubernetes_comes_again(owner: str, to: str) -> None:
    """Without Kubernetes, the plan submits an evicted pod again, and that pod may be placed
    elsewhere. An evicted command of `apportion run` is not submitted again."""
    ledger = Ledger(rack("n1", 1), pod("there", cards(), owner=owner)).settle()
    ledger.play(rack("n2", 1, model=T4))
    asked = shape(cards(), devices=DeviceConstraints(use_types=("A100",)))
    [gone] = planned(ledger, draft("urgent", shape=asked, priority=10)).evicted
    assert (gone.pod, gone.node, gone.to) == ("there", "n1", to)


def test_those_that_wait_before_it_are_counted_and_say_why(golden: Golden) -> None:
    """The plan counts how many pods are ahead of a planned pod in the queue. It lists all pending
    pods with the causes."""
    ledger = full(nodes=1, count=1)
    ledger.submit(pod("first", cards()), pod("low", cards(), priority=-5))
    while ledger.decide():
        pass
    ledger.submit(pod("never", cards(9), priority=-9))
    answer = planned(ledger, draft("new", cards()))
    assert only(answer).ahead == 1
    assert [row.pod for row in answer.waiting] == ["first", "low", "never"]
    golden({row.pod: row.cause for row in answer.waiting})


def test_of_those_that_wait_for_the_same_all_are_counted_and_the_first_named() -> None:
    """The plan names a limited number of pending pods. Each row also has the number of all
    identical pods."""
    ledger = full(nodes=1, count=1)
    alike = [pod(f"alike-{number}", cards(9)) for number in range(WAITING_NAMED + 7)]
    ledger.submit(pod("other", cards()), *alike)
    while ledger.decide():
        pass
    waiting = planned(ledger, draft("new", cards())).waiting
    assert len(waiting) == WAITING_NAMED
    assert {row.pod.partition("-")[0]: row.alike for row in waiting} == {
        "other": 1,
        "alike": WAITING_NAMED + 7,
    }
    assert [row.line for row in waiting] == [1] + [2] * (WAITING_NAMED - 1)


def test_a_lost_node_moves_its_pods_or_lets_them_wait() -> None:
    """If a plan assumes that a node is lost, the node's pods move by priority and age while there
    is room. The node's other pods become pending."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2))
    for name in ("a", "b", "c"):
        ledger.submit(pod(name, cards()))
        ledger.decide()
    where = {uid: held.placement.node for uid, held in ledger.state.pods.items() if held.placement}
    (busy,) = [node for node in ("n1", "n2") if list(where.values()).count(node) == 2]
    answer = planned(ledger, lose=(busy,))
    assert [(each.name, each.was, each.outcome) for each in answer.moved] == [
        ("a", busy, "fits"),
        ("b", busy, "not-now"),
    ]
    assert answer.outcome == "not-now"
    assert answer.before is not None
    assert answer.after is not None
    assert (answer.before.nodes, answer.after.nodes) == (2, 1)
    assert (answer.before.waiting, answer.after.waiting) == (0, 1)


def test_what_is_lost_twice_is_said_once() -> None:
    """If a request names a lost node twice, the plan lists it once."""
    answer = planned(full(), lose=("n1", "n1"), add=("1x1xT4", "1x1xT4"))
    found = [(each.kind, each.node, each.value) for each in answer.changes]
    assert found == [("lose", "n1", ""), ("add", "", "1x1xT4"), ("add", "", "1x1xT4")]


def test_a_lost_node_is_no_node_of_the_fleet_any_more(golden: Golden) -> None:
    """If a plan assumes that a node is lost, the causes of pending pods do not count that node."""
    ledger = full(nodes=3, count=1).submit(pod("late", cards()), pod("never", cards(9))).settle()
    answer = planned(ledger, lose=("n3",))
    said = [each.sentence for each in answer.moved] + [each.cause for each in answer.waiting]
    assert len(said) == 3
    assert all("2 nodes" in each for each in said), said
    golden({"late, never and the pod of n3": "\n".join(said)})


def test_a_lost_device_moves_its_pods_alone() -> None:
    """If a plan assumes that a device is lost, only the pods on that device move. No pod is placed
    on the device again."""
    ledger = Ledger(rack("n1", 2), rack("n2", 1))
    ledger.submit(pod("a", cards()), pod("b", cards()), pod("c", ask(1024))).settle()
    before = {uid: held.placement for uid, held in ledger.state.pods.items()}
    on_n1 = [uid for uid, held in before.items() if held and held.node == "n1"]
    lost = before[on_n1[0]]
    assert lost is not None
    device = lost.shares[0].device
    there = {uid for uid, held in before.items() if held and held.shares[0].device == device}
    answer = planned(ledger, lose=(device,))
    assert {each.name for each in answer.moved} == there
    for moved in answer.moved:
        held = moved.placed.shares if moved.placed else ()
        assert all(each.share.device != device for each in held)
    assert [(each.kind, each.node, each.device) for each in answer.changes] == [
        ("lose", "n1", device)
    ]
    on_another_card = [each for each in answer.moved if each.node == "n1"]
    assert all(" n1 (" in each.sentence for each in on_another_card)


def test_enough_of_a_device_s_id_will_do() -> None:
    """A request for a plan may name a lost device by the first four or more characters of its id.
    If several devices match, the error lists them."""
    cards_there = (gpu("GPU-0a1b2c3d-x"), gpu("GPU-0a1b2c3d-y"), gpu("GPU-ffffffff-z"))
    ledger = Ledger(fleet.node("n1", *cards_there)).submit(pod("p", ask(1024))).settle()
    for given in ("GPU-ffffffff-z", "GPU-ffff"):
        (change,) = planned(ledger, lose=(given,)).changes
        assert (change.device, change.node) == ("GPU-ffffffff-z", "n1")
    for name, problem in (
        ("GPU-0a1b2c3d", "2 device ids: GPU-0a1b2c3d-x, GPU-0a1b2c3d-y; write more of the id"),
        ("GPU-fff", "is too short: a device id needs"),
        ("GPU-ffff0", "no node or device"),
    ):
        with pytest.raises(WishInvalid, match=problem):
            planned(ledger, lose=(name,))


def test_added_nodes_take_what_waits_and_are_like_their_like() -> None:
    """An added node gets the labels that all nodes with the same GPU model share. Pending pods are
    placed on the added node."""
    ledger = Ledger(rack("n1", 1, model=A100_80))
    ledger.play(
        observed("n1", labels={"pool": "train", "kubernetes.io/hostname": "n1"}, version=1),
        rack("n2", 1, model=A100_80),
        observed("n2", labels={"pool": "train", "kubernetes.io/hostname": "n2"}, version=2),
    )
    wants = shape(cards(), node=NodeConstraints(selector={"pool": "train"}))
    for name in ("a", "b", "c"):
        ledger.submit(pod(name, shape=wants))
    while ledger.decide():
        pass
    answer = planned(ledger, draft("new", shape=wants), add=("2x1xA100-80GB",))
    assert [(each.name, each.node) for each in answer.helped] == [("c", "added-1")]
    assert "1 pending pod would start: default/c" in answer.summary
    alone = planned(ledger, add=("2x1xA100-80GB",))
    assert "no running pod" not in alone.summary
    one = only(answer)
    assert (one.node, one.without) == ("added-2", "not-now")


def test_an_added_node_has_its_own_hostname() -> None:
    """The hostname label of an added node is its own name."""
    ledger = Ledger(rack("n1", 1, model=A100_80))
    ledger.play(observed("n1", labels={"kubernetes.io/hostname": "n1"}))
    wants = shape(cards(), node=NodeConstraints(selector={"kubernetes.io/hostname": "added-2"}))
    answer = planned(ledger, draft("new", shape=wants), add=("2x1xA100-80GB",))
    assert only(answer).node == "added-2"


def test_a_slip_of_the_pen_is_told_of() -> None:
    """If a manifest probably has a typo, the plan warns about it."""
    ledger = Ledger(rack("n1", 1))
    text = """
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {nvidia.com/use-gputypes: T4}}
spec:
  schedulerName: apportion
  containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
    answer = plan(ledger.state, plan_of(PlanRequest(manifest=text), ledger.state))
    assert answer.outcome == "fits"
    (said,) = answer.warnings
    assert said.endswith(" nvidia.com/use-gputype?")


def test_counts_of_one_are_said_of_one(golden: Golden) -> None:
    """The summary of a plan uses the singular for a count of one."""
    ledger = Ledger(rack("n1", 1))
    answer = planned(ledger, draft("a", cards()), draft("b", cards()))
    assert [each.outcome for each in answer.pods] == ["fits", "not-now"]
    golden({"one of two": answer.sentence})


def test_why_nobody_would_go_for_an_urgent_pod_is_said_beforehand() -> None:
    """If a pending pod does not evict pods of lower priority, the plan explains why."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", ask(70_000), queue="other")).settle()
    urgent = only(planned(ledger, draft("b", ask(60_000), priority=9)))
    spared = (
        "On n1, 1 pod of lower priority uses resources that this pod needs, but is not evicted: a "
        "pod evicts only pods of its own queue (default)"
    )
    assert urgent.sentence.endswith(f". {spared}")
    assert urgent.refused is not None
    assert urgent.refused.spared == spared
    assert "priority" not in only(planned(ledger, draft("b", ask(60_000)))).sentence


def test_another_policy_goes_elsewhere() -> None:
    """If a plan changes the policy, it places the pod under the new policy."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1)).submit(pod("old", ask(4096)))
    ledger.decide()
    was = ledger.pod("old").placement
    assert was is not None
    joined = only(planned(ledger, draft("new", ask(4096)), policy="binpack"))
    apart = only(planned(ledger, draft("new", ask(4096)), policy="spread"))
    assert joined.node == was.node
    assert apart.node != was.node


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"lose": ("n9",)}, "lose"),
        ({"add": ("4xTuring",)}, "add"),
        ({"add": ("0x8xT4",)}, "add"),
        ({"add": ("00x8xT4",)}, "add"),
        ({"add": ("9999x8xT4",)}, "add"),
        ({"policy": "best"}, "policy"),
        ({}, "manifest"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(fields: dict[str, Any], field: str) -> None:
    """If a planned change is invalid, the error names the field and the fix."""
    with pytest.raises(WishInvalid) as refused:
        planned(full(), **fields)
    assert refused.value.field == field
    assert refused.value.fix


@pytest.mark.parametrize(
    ("text", "problem"), [("0x8xT4", "add is '0x8xT4'"), ("2x0xT4", "'0xT4' has no device")]
)
def test_a_count_of_none_is_met_with_that_it_is_none(text: str, problem: str) -> None:
    """If a planned change adds zero nodes, the error says that the count is zero, instead of
    calling the text malformed."""
    with pytest.raises(WishInvalid, match=f"{problem}; write a count of 1 or more"):
        planned(full(), add=(text,))


@pytest.mark.parametrize("nodes", ["5001", "99999999", "9" * 18])
def test_more_nodes_than_may_be_added_are_met_with_the_limit(nodes: str) -> None:
    """If a plan adds too many nodes, the error states the limit."""
    with pytest.raises(WishInvalid, match=r"add has more than 5,000 nodes; add fewer"):
        planned(full(), add=(f"{nodes}x8xT4",))


def test_a_name_of_nothing_is_met_with_what_is_near_or_there() -> None:
    """For an unknown node or device, the error suggests similar ones or lists all nodes."""
    ledger = Ledger(rack("rack-a", 1), fleet.node("rack-b", gpu("GPU-0a1b2c3d-4e5f-6071-8293")))
    for name, fix in (
        ("rack-aa", "did you mean rack-a, rack-b?"),
        ("GPU-0a1b2c3e", "did you mean GPU-0a1b2c3d?"),
        ("nope", "the nodes are rack-a, rack-b; list them with `apportion get nodes`"),
    ):
        with pytest.raises(WishInvalid) as refused:
            planned(ledger, lose=(name,))
        assert refused.value.fix.startswith(fix)
    with pytest.raises(WishInvalid, match="there are no nodes"):
        planned(Ledger(), lose=("nope",))


def test_a_gang_is_planned_whole() -> None:
    """A plan places a gang completely or not at all. If the gang would not even fit on an empty
    cluster, its outcome is `never`."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2))
    told = PodGroupObserved(group="default/job", min_available=5)
    pods = [draft(f"w{index}", cards(), group="default/job") for index in range(5)]
    answer = planned(ledger, *pods, groups=(told,))
    assert {each.outcome for each in answer.pods} == {"never"}
    smaller = PodGroupObserved(group="default/job", min_available=4)
    answer = planned(ledger, *pods[:4], groups=(smaller,))
    assert {each.outcome for each in answer.pods} == {"fits"}
    ledger.submit(pod("other", cards()))
    ledger.decide()
    answer = planned(ledger, *pods[:4], groups=(smaller,))
    assert {each.outcome for each in answer.pods} == {"not-now"}


def test_a_gang_that_needs_two_models_never_fits_unless_it_permits_them() -> None:
    """If a gang fits only on devices of two models, its planned outcome is `never`, with a refusal
    for that reason. If the gang's pods permit several models, the gang fits."""
    ledger = Ledger(rack("n1", 2), rack("n2", 2, model=T4))
    told = PodGroupObserved(group="default/job", min_available=4)
    names = [f"w{index}" for index in range(4)]
    pods = [draft(name, cards(), group="default/job") for name in names]
    answer = planned(ledger, *pods, groups=(told,))
    assert {each.outcome for each in answer.pods} == {"never"}
    codes = {row.code for pod in answer.pods if pod.refused for row in pod.refused.causes}
    assert codes == {RefusalCode.GANG_MODEL_MISMATCH}
    pods = [draft(name, cards(), group="default/job", any_model=True) for name in names]
    answer = planned(ledger, *pods, groups=(told,))
    assert {each.outcome for each in answer.pods} == {"fits"}


@pytest.mark.parametrize("name", ["job", "job-{}"], ids=["one name", "names of their own"])
def test_a_few_lines_that_ask_for_millions_of_pods_are_refused_unread(name: str) -> None:
    """If a short manifest describes too many pods, the plan is refused before any pod is built."""
    job = (
        '{{"apiVersion": "batch/v1", "kind": "Job", "metadata": {{"name": "{}"}}, "spec": '
        '{{"parallelism": 10000, "completions": 10000, "template": {{"spec": {{"containers": '
        '[{{"name": "main", "image": "x"}}]}}}}}}}}'
    )
    text = "\n---\n".join(job.format(name.format(number)) for number in range(3_000))
    with pytest.raises(WishInvalid, match=f"more than {PODS_MAX} pods"):
        plan_of(PlanRequest(manifest=text), State())
