"""Tests of shadow runs. For each pod that another scheduler placed, a shadow run computes where
Apportion would have placed it."""

from typing import Any

import pytest

from apportion.core.answers.replays import ShadowPod
from apportion.core.ledger.state import State
from apportion.lab import shadowing
from apportion.lab.course import Course, copied
from apportion.lab.recording import RecordingFailed
from apportion.lab.shadowing import Shadowing
from apportion.runtime.ledger.port import Record
from apportion_schemas import (
    DeviceConstraints,
    NodeCordoned,
    PodAdopted,
    PodGone,
    PodSubmitted,
    Share,
    encode,
    subject_of,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import T4, observed, rack, registered
from tests.support.ledger_of import event_of
from tests.support.pods import ask, member, pod, shape, share


def adopted(wish: PodSubmitted, node: str, *shares: Share, **fields: Any) -> PodAdopted:
    """Return the event that the watcher appends for a pod that HAMi has bound."""
    return PodAdopted(
        pod=wish.uid, node=node, submitted=wish, shares=shares, evidence="hami.io", **fields
    )


class Followed:
    """A shadow run that follows the events of a test."""

    def __init__(self, *, after: int = 0) -> None:
        self.shadow = Shadowing(State(), after=after)
        self.revision = 0

    def play(self, *payloads: Payload) -> list[ShadowPod]:
        """Pass these events to the shadow run, and return its verdicts on all pods so far."""
        for data in payloads:
            self.revision += 1
            record = Record(self.revision, subject_of(data), encode(event_of(data)))
            assert self.shadow.take(record)
        return self.shadow.pods


def test_the_same_place_another_card_and_another_node() -> None:
    """For each pod, a shadow run says whether we would have chosen the same devices, other devices
    or another node. It takes into account where the other scheduler put earlier pods."""
    followed = Followed()
    followed.play(rack("n1", 2, model=T4), rack("n2", 2, model=T4))
    a, b, c = (pod(uid, ask(4_000)) for uid in "abc")
    (first,) = followed.play(adopted(a, "n1", share("n1-g0", 4_000)))
    assert (first.verdict, first.theirs, first.ours) == ("same", first.theirs, first.theirs)
    assert first.theirs.opened == 1
    second = followed.play(adopted(b, "n1", share("n1-g1", 4_000)))[-1]
    assert second.verdict == "other-devices"
    assert second.ours is not None
    assert (second.ours.devices, second.ours.opened, second.theirs.opened) == (("n1-g0",), 0, 1)
    third = followed.play(adopted(c, "n2", share("n2-g0", 4_000)))[-1]
    assert third.verdict == "other-node"
    answer = followed.shadow.finish()
    assert (answer.same, answer.other_devices, answer.other_node, answer.would_wait) == (1, 1, 1, 0)
    assert (answer.opened_theirs, answer.opened_ours, answer.passed_over) == (3, 1, 0)


def test_what_we_would_not_have_placed_says_why() -> None:
    """If our scheduler would not have placed a pod, the shadow run gives the reason. The devices
    that the pod really got are then in use for later pods."""
    followed = Followed()
    followed.play(rack("n1", 1, model=T4), NodeCordoned(node="n1", by="me", reason="fan"))
    for number, uid in enumerate("ab", 1):
        wish = pod(uid, ask(4_000))
        found = followed.play(adopted(wish, "n1", share("n1-g0", 4_000)))
        assert len(found) == number
        assert (found[-1].verdict, found[-1].ours) == ("would-wait", None)
        assert "cordoned" in found[-1].reason
        assert found[-1].theirs.opened == (number == 1)


def test_who_waits_for_us_and_gangs_do_not_disturb_it() -> None:
    """A shadow run ignores our own pending pods. It compares pods of gangs like all other pods."""
    followed = Followed()
    followed.play(rack("n1", 1, model=T4), pod("waits", ask(99_000)))
    followed.play(adopted(member("m", ask(4_000)), "n1", share("n1-g0", 4_000)))
    found = followed.play(adopted(pod("b", ask(4_000)), "n1", share("n1-g0", 4_000)))
    assert [each.verdict for each in found] == ["same", "same"]
    assert followed.shadow.finish().passed_over == 0


def test_the_devices_of_another_plugin_need_no_agent() -> None:
    """On a node without our agent, a shadow run uses the devices that HAMi's plugin registered."""
    followed = Followed()
    devices = rack("n1", 1, model=T4).devices
    followed.play(observed("n1"), registered("n1", devices=devices))
    theirs = shape(ask(4_000), devices=DeviceConstraints(plugin="hami"))
    (found,) = followed.play(adopted(pod("a", shape=theirs), "n1", share("n1-g0", 4_000)))
    assert found.verdict == "same"


def test_what_is_not_anothers_decision_is_not_compared() -> None:
    """A shadow run skips placements by our own scheduler and placements before the requested time
    span."""
    followed = Followed(after=2)
    followed.play(rack("n1", 1, model=T4), adopted(pod("old", ask(1_000)), "n1", share("n1-g0")))
    ours = PodAdopted(
        pod="ours", node="n1", submitted=pod("ours", ask(1_000)), shares=(share("n1-g0"),),
        attempt=1, evidence="apportion.dev/shares",
    )  # fmt: skip
    assert followed.play(ours) == []


def test_more_pods_than_are_kept_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shadow run fails if its time span has more pods than the limit. The error suggests a
    shorter span."""
    monkeypatch.setattr(shadowing, "PODS_MAX", 1)
    followed = Followed()
    followed.play(rack("n1", 1, model=T4), adopted(pod("a", ask(1_000)), "n1", share("n1-g0")))
    with pytest.raises(RecordingFailed, match="shorter span"):
        followed.play(adopted(pod("b", ask(1_000)), "n1", share("n1-g0")))


def test_without_devices_told_the_node_is_compared() -> None:
    """If the other scheduler's placement lists no devices, a shadow run compares only the node."""
    followed = Followed()
    followed.play(rack("n1", 2, model=T4))
    (found,) = followed.play(adopted(pod("a", ask(4_000)), "n1"))
    assert (found.verdict, found.theirs.devices) == ("same", ())
    assert followed.shadow.finish().opened_theirs == followed.shadow.finish().opened_ours == 0


@pytest.mark.parametrize("held", [0, 3])
def test_it_is_what_a_scheduler_of_ours_would_do(held: int) -> None:
    """A shadow run places a pod exactly where our scheduling engine places it on a copy of the
    state."""
    followed = Followed()
    facts: list[Payload] = [rack("n1", 2, model=T4), rack("n2", 4, model=T4)]
    for number in range(held):
        wish = pod(f"h{number}", ask(6_000))
        facts.append(adopted(wish, "n2", share(f"n2-g{number}", 6_000)))
    followed.play(*facts)
    alone = Course(State())
    for data in facts:
        alone.apply(data)
    course = Course(copied(alone.state))
    wish = pod("x", ask(9_000))
    course.apply(wish)
    for _ in course.settle():
        pass
    expected = course.state.pods["x"].placement
    found = followed.play(adopted(wish, "n1", share("n1-g1", 9_000)))[-1]
    assert expected is not None
    assert found.ours is not None
    assert found.ours.node == expected.node
    assert found.ours.devices == tuple(each.device for each in expected.shares)
    followed.play(PodGone(uid="x"))
    assert followed.shadow._course.state.pods.keys() == alone.state.pods.keys()
