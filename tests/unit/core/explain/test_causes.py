"""Tests of the answer to why a pod is pending: its causes, and advice for each of them. Advice that
would not help the pod is left out."""

from typing import Any

import pytest

from apportion.core.answers.reads import Why
from apportion.core.explain.explainer import Explainer
from apportion.core.explain.text import words
from apportion.core.explain.views import pod_answer
from apportion.core.explain.why import event_words, why
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    DeviceHealthChanged,
    NodeConstraints,
    NodeCordoned,
    NodeGone,
    PodSubmitted,
    QueueObserved,
    QuotaObserved,
    RefusalCode,
)
from apportion_schemas.inventory import Mode
from tests.support.fleet import A100_40, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape


def wants(
    uid: str, *asks: Ask, selector: dict[str, str] | None = None, **devices: Any
) -> PodSubmitted:
    """Return a submitted pod that accepts only these devices, and only nodes that match this
    selector."""
    node = NodeConstraints(selector=selector or {})
    only = DeviceConstraints(**devices)
    return pod(uid, shape=shape(*asks, devices=only, node=node))


def answer_of(ledger: Ledger, wanted: PodSubmitted) -> Why:
    return why(ledger.submit(wanted).settle().state, ledger.pod(wanted.uid))


def cures(answer: Why) -> dict[RefusalCode, str]:
    """Return the answer's advice for each refusal code."""
    assert answer.refused is not None
    return {cause.code: cause.unblocked_by for cause in answer.refused.causes}


def test_the_cards_that_alone_will_do_are_named_with_who_holds_them(golden: Golden) -> None:
    """If a pod accepts only certain devices, the answer names these devices and the pods that use
    them."""
    ledger = Ledger(rack("n1", 8)).submit(wants("r1", cards(), indexes=(0,))).settle()
    ledger.submit(wants("r2", cards(), indexes=(5,))).settle()
    answer = answer_of(ledger, wants("p", cards(2), indexes=(0, 2)))
    nine = answer_of(ledger, wants("q", cards(9), indexes=tuple(range(9))))
    golden(
        {
            "cards 0 and 2": answer.sentence,
            "cards 0 to 8": nine.sentence,
            "listed": pod_answer(ledger.state, ledger.pod("p")).cause,
        }
    )
    assert answer.refused is not None
    (near,) = answer.refused.nearest
    assert (near.available_words, near.held_by) == ("1 device", ("default/r1",))


@pytest.mark.parametrize(
    ("wanted", "said", "needed", "there"),
    [
        (wants("p", ask(1), modes=("mps", "mig")), "no device is in sharing mode mps or mig",
         "mps or mig", "hami-core"),
        (pod("p", ask(profile="1g.5gb")), "no device is in sharing mode mig",
         "mig", "hami-core"),
        (wants("p", ask(1), indexes=(9,)),
         "no matching device: the pod accepts only device index 9",
         "device index 9", "device indexes 0, 1"),
        (wants("p", ask(1), use_ids=("x", "y")), "no matching device: the pod accepts only x and y",
         "", ""),
        (wants("p", ask(1), selector={"pool": "b"}), "node labels do not match pool=b",
         "pool=b", "pool=train"),
    ],
)  # fmt: skip
def test_what_is_wanted_is_said_beside_what_is_there(
    wanted: PodSubmitted, said: str, needed: str, there: str
) -> None:
    """The answer shows what the pod requests next to what the nodes have."""
    answer = answer_of(Ledger(rack("n1", 2), observed("n1", labels={"pool": "train"})), wanted)
    assert f"{said} (1 node)" in answer.sentence
    assert answer.refused is not None
    (near,) = answer.refused.nearest
    assert (near.words, near.needed_words, near.available_words) == (said, needed, there)


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        (wants("p", ask(1), use_types=("A1OO",)), "; did you mean A100?"),
        (wants("p", ask(1), use_types=("H200",)), "; this fleet has NVIDIA A100-SXM4-80GB"),
        (wants("p", ask(1), modes=("mps",)), "; this fleet has hami-core"),
        (wants("p", ask(1), selector={"pool": "tain"}), "; did you mean pool=train?"),
        (wants("p", ask(1), selector={"pol": "train"}), "; did you mean pool=train?"),
        (wants("p", ask(1), selector={"disk": "ssd"}), "or change the selector or affinity"),
    ],
)
def test_a_slip_of_the_pen_is_told_what_may_be_meant(wanted: PodSubmitted, meant: str) -> None:
    """For a mistyped label or device type, the answer suggests the right one. It suggests nothing
    for the correct name of another model."""
    answer = answer_of(Ledger(rack("n1", 2), observed("n1", labels={"pool": "train"})), wanted)
    (cure,) = cures(answer).values()
    assert cure.endswith(meant)


@pytest.mark.parametrize("full", [False, True])
def test_a_device_that_recovers_is_no_cure_where_others_hold_the_rest(
    golden: Golden, *, full: bool
) -> None:
    """If a pod needs all devices of a node and one has failed, repairing that device is not enough.
    The advice also mentions the pods on the other devices."""
    ledger = Ledger(rack("n1", 4))
    if full:
        ledger.submit(pod("held", ask(60_000, count=3))).settle()
    failed = next(held.device.id for held in ledger.node().devices if held.slots_free == 10)
    ledger.play(DeviceHealthChanged(node="n1", device=failed, healthy=False, reason="x"))
    cure = cures(answer_of(ledger, pod("p", cards(4))))[RefusalCode.DEVICE_UNHEALTHY]
    golden({"others hold the rest" if full else "the rest is free": cure})


def test_too_few_devices_stay_too_few_whatever_is_freed(golden: Golden) -> None:
    """If a pod requests eight devices and the node has four, the answer does not advise freeing
    devices."""
    ledger = Ledger(rack("n1", 8), rack("n2", 4)).submit(pod("held", cards(8))).settle()
    found = cures(answer_of(ledger, pod("p", cards(8))))
    few = found[RefusalCode.DEVICES_TOO_FEW]
    golden({"too few": few, "in use": found[RefusalCode.DEVICE_IN_USE]})


def test_a_cordon_is_to_be_lifted_only_where_the_pod_could_be(golden: Golden) -> None:
    """The answer advises lifting a cordon only on nodes that the pod could use.

    Full nodes, and nodes that the pod's selector excludes, are not named."""
    ledger = Ledger(rack("a", 1), rack("b", 1), rack("c", 1))
    for name, pool in {"a": "infer", "b": "train", "c": "train"}.items():
        ledger.play(observed(name, labels={"pool": pool}))
    train = {"pool": "train"}
    ledger.submit(wants("held", cards(), selector=train)).settle()
    assert ledger.where("held") == "b"
    ledger.play(*(NodeCordoned(node=name, by="ann", reason="fan") for name in "abc"))
    code = RefusalCode.NODE_CORDONED
    cure = cures(answer_of(ledger, wants("p", cards(), selector=train)))[code]
    assert cure.startswith("apportion uncordon c ")
    assert "b: fan" not in cure
    ledger.gone("p").play(observed("c", labels={"pool": "infer"}))
    cure = cures(answer_of(ledger, wants("q", cards(), selector=train)))[code]
    assert cure.startswith("apportion uncordon b,")
    golden({"b is cordoned and full": cure})


@pytest.mark.parametrize("kind", ["queue", "quota"])
def test_of_a_limit_who_holds_it_is_named_and_no_node(golden: Golden, kind: str) -> None:
    """If a queue's limit or a quota blocks a pod, the answer names the pods that use it up. It
    mentions neither nodes nor preemption."""
    ledger = Ledger(rack("full", 1), rack("n1", 2))
    if kind == "queue":
        ledger.play(QueueObserved(queue="ml", capability={"volcano.sh/vgpu-number": 2}))
    else:
        hard = {"limits.nvidia.com/gpumem": 90_000}
        ledger.play(QuotaObserved(namespace="default", quota="q", hard=hard))
    ledger.submit(pod("small", ask(1_000), queue="ml")).settle()
    ledger.submit(pod("large", ask(80_000), queue="ml")).settle()
    ledger.submit(pod("other", ask(70_000), queue="b", namespace="b")).settle()
    answer = answer_of(ledger, pod("p", ask(20_000), queue="ml", priority=9))
    assert answer.refused is not None
    assert not answer.refused.nearest
    assert "nearest" not in answer.sentence
    assert "none of" not in answer.sentence
    cure = answer.refused.causes[0].unblocked_by
    assert cure.endswith(" default/large, default/small")
    golden({kind: answer.refused.spared, "cure": cure})
    assert answer.sentence.endswith(answer.refused.spared)


def test_a_list_of_very_many_sorts_goes_by_the_events(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a long list of pending pods, only the first few distinct requests are compared with the
    fleet.

    The other rows show the cause from the event that recorded the pod's refusal."""
    monkeypatch.setattr("apportion.core.explain.explainer.LISTED_LOOKS", 20)
    ledger = Ledger(rack("n1", 1), rack("n2", 1))
    ledger.submit(*(pod(f"p{at}", ask(90_000 + at)) for at in range(11))).settle()
    explainer = Explainer(ledger.state)
    causes = [
        pod_answer(ledger.state, each, explainer).cause for each in ledger.state.pods.values()
    ]
    assert len(set(causes[:-1])) == 1
    golden({"ten that were looked at": causes[0], "the last, by its event": causes[-1]})


def test_to_lift_a_cordon_is_advised_where_that_alone_helps(golden: Golden) -> None:
    """If a cordoned node is healthy, the advice is to uncordon it. If every cordoned node has
    another fault, the advice also names what must be repaired."""
    cordons = [NodeCordoned(node=name, by="ann", reason="fan") for name in ("n1", "n2")]
    failed = DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79")
    both = answer_of(Ledger(rack("n1", 1), rack("n2", 1), *cordons, failed), pod("a", cards()))
    assert cures(both)[RefusalCode.NODE_CORDONED].startswith("apportion uncordon n2 ")
    alone = answer_of(Ledger(rack("n1", 1), cordons[0], failed), pod("a", cards()))
    cure = cures(alone)[RefusalCode.NODE_CORDONED]
    assert cure.startswith("apportion uncordon n1,")
    golden({"cordoned and failed": cure})


def test_a_label_may_be_called_as_what_a_cure_names() -> None:
    """The advice replaces its placeholder NODE by a node's name, but never inside a label value
    such as `NODE-8`."""
    ledger = Ledger(rack("n1", 1), observed("n1", labels={"pool": "NODE-7"}))
    answer = answer_of(ledger, wants("a", cards(), selector={"pool": "NODE-8"}))
    assert " pool=NODE-7?" in cures(answer)[RefusalCode.NODE_LABELS_MISMATCH]


@pytest.mark.parametrize(
    ("mode", "wanted", "cure"),
    [
        ("mig", ask(4000, count=2), words.SEVERAL_ANY_MODE),
        ("exclusive", ask(4000), words.PART_ANY_MODE),
    ],
)
def test_a_pod_without_a_mode_is_not_told_to_remove_it(mode: Mode, wanted: Ask, cure: str) -> None:
    """If a pod names no sharing mode, the advice does not suggest removing one, even if the mode of
    every device rules out the pod."""
    ledger = Ledger(rack("n1", 2, model=A100_40, mode=mode))
    answer = answer_of(ledger, pod("a", wanted))
    assert cures(answer)[RefusalCode.MODE_MISMATCH].startswith(cure)


def test_members_of_a_gang_that_want_different_cards() -> None:
    """If a gang's members request different devices, the answers show no device constraints.

    The refusal does not record which member did not fit."""
    only = shape(cards(), devices=DeviceConstraints(indexes=(5,)))
    ledger = Ledger(rack("n1", 2), gang("team/job", 2))
    ledger.submit(member("a", cards()), member("b", shape=only)).settle()
    for name in ("a", "b"):
        answer = why(ledger.state, ledger.pod(name))
        assert answer.sentence.endswith(" default/b")
        assert answer.refused is not None
        [cause], [near] = answer.refused.causes, answer.refused.nearest
        assert cause.words == near.words
        assert cause.code is near.code is RefusalCode.INDEX_MISMATCH
        assert near.needed_words == ""


def test_members_of_a_gang_that_differ_are_told_who_holds_what_is_near() -> None:
    """Each member's answer names the nearest node and its pods, even if members need different
    devices."""
    ledger = Ledger(rack("n1", 1), pod("there", cards())).settle().play(gang("team/job", 2))
    ledger.submit(member("a", cards()), member("b", ask(1000))).settle()
    for name in ("a", "b"):
        answer = why(ledger.state, ledger.pod(name))
        assert answer.refused is not None
        [near] = answer.refused.nearest
        assert (near.node, near.held_by) == ("n1", ("default/there",))


def test_members_of_a_gang_that_differ_are_told_whose_cordon_it_is() -> None:
    """Each member's answer advises lifting the cordon, even if members need different devices."""
    nodes = [rack(f"m{number}", 1) for number in range(3)]
    ledger = Ledger(*nodes, rack("n1", 1), gang("team/job", 4))
    ledger.play(NodeCordoned(node="n1", by="ann", reason="fan"))
    ledger.submit(*(member(f"g{number}", cards()) for number in range(3)), member("z", ask(90)))
    answer = why(ledger.settle().state, ledger.pod("g0"))
    cure = cures(answer)[RefusalCode.NODE_CORDONED]
    assert cure.startswith("apportion uncordon n1 ")
    assert "(n1: fan (ann, " in cure


def test_whoever_has_a_place_does_not_make_the_rest_of_its_gang_differ() -> None:
    """If a gang's pending members have equal requests, the answers show the request.

    A placed member may have requested something else."""
    ledger = Ledger(rack("n1", 3), gang("team/job", 3))
    ledger.submit(member("m", ask(1000)), member("w1", cards()), member("w2", cards())).settle()
    ledger.gone("w1", "w2").submit(pod("o1", cards()), pod("o2", cards())).settle()
    ledger.submit(member("w3", cards()), member("w4", cards())).settle()
    for name in ("w3", "w4"):
        assert "1 empty GPU" in why(ledger.state, ledger.pod(name)).sentence


def test_one_that_is_lacking_is_told_in_nobodys_wishes_either(golden: Golden) -> None:
    """If the pending members of a gang have different constraints, neither `why` nor an event shows
    a constraint of a single member."""
    ledger = Ledger(rack("n1", 2), gang("team/job", 1)).submit(member("a", cards())).settle()
    ledger.submit(pod("other", cards())).settle()
    only = shape(cards(), devices=DeviceConstraints(indexes=(0,)))
    ledger.submit(member("c", cards()), member("d", shape=only)).settle()
    told = {}
    for name in ("c", "d"):
        told[name] = said = why(ledger.state, ledger.pod(name)).sentence
        waits = ledger.pod(name)
        assert waits.refusal is not None
        told[f"event of {name}"] = event = event_words(ledger.state, waits, waits.refusal)
        assert "only card" not in f"{said} {event}"
    golden(told)


def test_where_no_node_is_left_nothing_can_never_fit() -> None:
    """While the fleet has no nodes, no pod is reported as one that can never fit."""
    ledger = Ledger(rack("n1", 1)).submit(pod("a", cards(2))).settle().play(NodeGone(node="n1"))
    answer = why(ledger.state, ledger.pod("a"))
    assert answer.refused is not None
    assert not answer.refused.never
    assert "never" not in answer.sentence


def test_a_gang_that_waits_for_pods_has_nobody_spared() -> None:
    """While a gang has too few pods, its answer does not mention pods of lower priority."""
    ledger = Ledger(rack("n1", 1), gang("team/job", 2)).submit(pod("a", cards(), queue="b"))
    answer = answer_of(ledger.settle(), member("m", cards(), priority=9))
    assert "lower priority" not in answer.sentence


def test_a_list_counts_as_why_does_and_says_what_never_fits() -> None:
    """The list of pending pods counts nodes per cause over the whole fleet, as `why` does. It marks
    pods that can never fit."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1, memory_mib=40_000), rack("n3", 1))
    ledger.submit(pod("held", cards(), priority=9)).settle()
    answer = answer_of(ledger, pod("p", ask(90_000)))
    never = pod_answer(ledger.state, ledger.pod("p"))
    assert "3 nodes" in never.cause
    assert answer.refused is not None
    assert never.reasons == {cause.code: cause.nodes for cause in answer.refused.causes}
    hard = {"limits.nvidia.com/gpumem": 900}
    ledger.play(QuotaObserved(namespace="default", quota="q", hard=hard))
    said = answer_of(ledger, pod("r", ask(1_000))).sentence.partition(". Its ")[2]
    assert pod_answer(ledger.state, ledger.pod("r")).cause == f"its {said}"
    assert ("limits.nvidia.com/gpumem at 900" in said, "1,000" in said) == (True, True)


def test_how_few_nodes_could_hold_it_is_said_of_few_alone() -> None:
    """The advice states the number of nodes that could fit the pod only if these are a minority of
    the fleet."""
    ledger = Ledger(
        *(rack(f"n{number}", 1) for number in range(2)), rack("t", 1, memory_mib=15_360)
    )
    for number in range(2):
        ledger.submit(pod(f"held-{number}", cards())).settle()
    answer = why(ledger.submit(pod("p1", ask(60_000))).settle().state, ledger.pod("p1"))
    assert answer.refused is not None
    assert all("could hold it" not in cause.unblocked_by for cause in answer.refused.causes)
