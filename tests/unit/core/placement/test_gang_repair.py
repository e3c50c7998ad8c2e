"""Tests of lost gang members: a pod that replaces a lost member gets the gang's place in the
queue."""

from typing import Any

from apportion.core.explain.why import why
from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion_schemas import (
    LabelExpression,
    NodeConstraints,
    PodConstraints,
    PodGroupGone,
    PodSelector,
    PodSubmitted,
    PodTerm,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod, shape

RACK = "example.com/rack"
TOGETHER = PodConstraints(
    affinity=(
        PodTerm(
            pods=PodSelector(
                expressions=(LabelExpression(key="app", operator="In", values=("ring",)),)
            ),
            topology_key=RACK,
        ),
    )
)


def ring(uid: str, **fields: Any) -> PodSubmitted:
    """Return a pod of the gang that must share a rack with the gang's other pods."""
    made = shape(cards(2), pods=TOGETHER)
    return member(uid, shape=made, labels={"app": "ring"}, namespace="team", **fields)


def in_kubernetes(*counts: int) -> Ledger:
    """Return a ledger of a Kubernetes cluster, with one node for each of these numbers of GPUs."""
    ledger = Ledger()
    for at, count in enumerate(counts, 1):
        ledger.play(rack(f"n{at}", count), observed(f"n{at}", version=at))
    return ledger


def test_a_replacement_does_not_wait_behind_younger_work() -> None:
    """The replacement of a lost gang member is placed before a pod that is younger than the gang,
    even if that pod is older than the replacement."""
    ledger = Ledger(rack("n1", 2), gang(), member("m0", cards()), member("m1", cards())).settle()
    ledger.submit(pod("younger", cards())).settle()
    ledger.gone("m0").submit(member("m0-again", cards())).settle()
    assert (ledger.where("m0-again"), ledger.where("younger")) == ("n1", "")
    ledger.gone("m1").settle()
    assert ledger.where("younger") == "n1"


def test_a_gang_that_lost_two_members_comes_before_younger_work() -> None:
    """The replacements of two lost gang members are placed together, before a younger gang. A
    restarted scheduler decides the same."""
    ledger = Ledger(rack("n1", 4), gang(min_available=4))
    ledger.submit(*(member(f"m{n}", cards()) for n in range(4))).settle()
    ledger.play(gang("team/other")).submit(
        *(member(f"o{n}", cards(), group="team/other") for n in range(2))
    )
    ledger.settle().gone("m1", "m2")
    ledger.submit(*(member(f"again{n}", cards()) for n in range(2)))
    restarted = ledger.consider()
    assert [event.pod for event in restarted.events][:2] == ["again0", "again1"]
    ledger.settle()
    assert [ledger.where(f"again{n}") for n in range(2)] == ["n1", "n1"]
    assert ledger.where("o0") == ""


def test_a_replacement_has_the_priority_of_its_gang() -> None:
    """The replacement of a gang member has the gang's priority. A younger pod comes later even if
    its priority is between the replacement's own and the gang's."""
    ledger = Ledger(rack("n1", 2), gang())
    ledger.submit(member("leader", cards(), priority=5), member("worker", cards())).settle()
    ledger.submit(pod("younger", cards(), priority=3, preempts=False)).settle()
    ledger.gone("worker").submit(member("again", cards())).settle()
    assert (ledger.where("again"), ledger.where("younger")) == ("n1", "")


def test_pods_that_need_not_start_together_wait_by_their_own_age() -> None:
    """A pod of a PodGroup with a `minMember` of 1 waits behind older pods."""
    ledger = Ledger(rack("n1", 1), gang(min_available=1), member("m0", cards())).settle()
    ledger.submit(pod("older", cards())).settle().submit(member("m1", cards())).settle()
    ledger.gone("m0").settle()
    assert (ledger.where("older"), ledger.where("m1")) == ("n1", "")


def test_a_replacement_is_placed_in_the_rack_of_its_gang() -> None:
    """The replacement of a lost gang member goes to the rack of its gang, even if another rack is
    free. If the gang's rack is full, the replacement is pending."""
    ledger = Ledger()
    for name, where in (("n1", "a"), ("n2", "a"), ("n3", "b"), ("n4", "b")):
        ledger.play(rack(name, 4), observed(name, labels={RACK: where}))
    ledger.play(gang(min_available=4)).submit(*(ring(f"m{n}") for n in range(4))).settle()
    lost = ledger.where("m0")
    ledger.gone("m0").submit(ring("again")).settle()
    assert ledger.where("again") == lost
    here = NodeConstraints(selector={RACK: "a" if lost in {"n1", "n2"} else "b"})
    ledger.gone("again").submit(pod("other", shape=shape(cards(2), node=here))).settle()
    assert ledger.where("other") == lost
    ledger.submit(ring("again2")).settle()
    assert ledger.where("again2") == ""


def test_a_gang_that_was_lost_whole_keeps_its_age_in_kubernetes() -> None:
    """If all pods of a gang are lost in Kubernetes, the pods that replace them have the gang's age.
    A snapshot keeps this age.

    Once the PodGroup is deleted, a gang of the same name counts as new."""
    ledger = in_kubernetes(2)
    ledger.play(gang()).submit(member("m0", cards()), member("m1", cards()))
    first = ledger.state.revision - 1
    ledger.settle().submit(pod("younger", cards(2))).settle().gone("m0", "m1")
    assert ledger.state.gangs_left == {"team/job": first}
    restored = snapshot.restore(snapshot.take(ledger.state))
    assert digest(restored) == digest(ledger.state)
    ledger.play(gang()).submit(member("again0", cards()), member("again1", cards())).settle()
    assert (ledger.where("again0"), ledger.where("younger")) == ("n1", "")
    assert ledger.state.gangs_left == {}
    assert ledger.state.groups["team/job"].since == first
    ledger.gone("again0", "again1").play(PodGroupGone(group="team/job"), gang())
    ledger.submit(member("new0", cards()), member("new1", cards())).settle()
    assert (ledger.where("new0"), ledger.where("younger")) == ("", "n1")


def test_a_gang_whose_podgroup_was_deleted_is_not_older_than_that() -> None:
    """If a gang's PodGroup is deleted while the gang has pods, later pods of the gang count as no
    older than the deletion."""
    ledger = in_kubernetes(2)
    ledger.play(gang()).submit(member("m0", cards()), member("m1", cards())).settle()
    ledger.submit(pod("younger", cards(2))).play(PodGroupGone(group="team/job"), gang())
    ledger.gone("m0", "m1").submit(member("new0", cards()), member("new1", cards())).settle()
    assert (ledger.where("new0"), ledger.where("younger")) == ("", "n1")


def test_a_gang_has_the_priority_of_its_live_pods() -> None:
    """When the most important pod of a gang has ended, the gang has the priority of the most
    important pod that is left."""
    ledger = Ledger(rack("n1", 2), gang())
    ledger.submit(member("leader", cards(), priority=5), member("worker", cards(), priority=1))
    ledger.settle().submit(pod("other", cards(), priority=3, preempts=False))
    ledger.submit(member("again", cards(), preempts=False)).gone("leader")
    assert ledger.state.groups["team/job"].priority == 1
    ledger.settle()
    assert (ledger.where("other"), ledger.where("again")) == ("n1", "")


def test_without_kubernetes_a_gang_ends_with_its_last_pod() -> None:
    """Without Kubernetes, a gang that is submitted again after its last pod has ended is new."""
    ledger = Ledger(rack("n1", 2), gang(), member("m0", cards()), member("m1", cards())).settle()
    ledger.gone("m0", "m1").play(gang()).submit(member("m2", cards()))
    assert ledger.state.gangs_left == {}
    assert ledger.state.groups["team/job"].since == ledger.state.revision


def test_why_shows_the_place_of_the_gang() -> None:
    """For the replacement of a lost gang member, `why` shows the gang's place in the queue."""
    ledger = Ledger(rack("n1", 2), gang(), member("m0", cards()), member("m1", cards())).settle()
    ledger.submit(pod("younger", cards())).gone("m0").submit(member("again", cards()))
    positions = {
        uid: waiting.position
        for uid in ("again", "younger")
        if (waiting := why(ledger.state, ledger.pod(uid)).waiting) is not None
    }
    assert positions == {"again": 1, "younger": 2}
