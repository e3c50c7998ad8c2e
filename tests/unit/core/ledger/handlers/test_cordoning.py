"""Tests of several operators' cordons of one node or device, each with operator and time."""

from apportion.core.explain.views import device_answers, node_answer
from apportion.core.explain.why import why
from apportion.core.ledger import snapshot
from apportion.core.ledger.digest import digest
from apportion_schemas import (
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceUncordoned,
    NodeCordoned,
    NodeCordonLifted,
    NodeUncordoned,
)
from tests.support.fleet import gpu, node, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

BOTH = (
    rack("n1", 1),
    NodeCordoned(node="n1", by="ada", reason="fan"),
    NodeCordoned(node="n1", by="bob", reason="firmware"),
)
WORDS = "fan (ada, 2026-01-01T00:00:00Z); firmware (bob, 2026-01-01T00:00:00Z)"


def test_both_reasons_stand_with_their_people() -> None:
    """The API's description of a node shows all cordons in order, as one text and as a list."""
    answer = node_answer(Ledger(*BOTH).node())
    assert answer.cordon == WORDS
    assert [(each.by, each.reason, each.revision) for each in answer.cordons] == [
        ("ada", "fan", 2),
        ("bob", "firmware", 3),
    ]
    [device] = device_answers(Ledger(*BOTH).node())
    assert (device.cordon, device.node_cordon) == ("", WORDS)


def test_a_second_reason_of_one_person_takes_the_place_of_the_first() -> None:
    """A second cordon by one operator replaces the first."""
    ledger = Ledger(*BOTH, NodeCordoned(node="n1", by="ada", reason="fan again"))
    assert ledger.node().cordon == "firmware; fan again"


def test_one_lifts_ones_own_and_the_others_stands() -> None:
    """An operator lifts only their own cordon; the node takes pods again once the last cordon is
    lifted."""
    ledger = Ledger(*BOTH, NodeCordonLifted(node="n1", of="ada", by="ada"))
    assert ledger.node().cordon == "firmware"
    assert "ada" in ledger.contradict(NodeCordonLifted(node="n1", of="ada", by="bob"))
    assert not ledger.play(NodeCordonLifted(node="n1", of="bob", by="ada")).node().cordon


def test_uncordon_lifts_all() -> None:
    """The event NodeUncordoned lifts the cordons of all operators."""
    assert not Ledger(*BOTH, NodeUncordoned(node="n1", by="eve")).node().cordons


def test_reasons_against_a_device_outlive_its_report() -> None:
    """A device's cordons stay when a report no longer lists the device. A device may also be
    cordoned before its first report."""
    ledger = Ledger(
        DeviceCordoned(device="g0", by="ada", reason="hot"),
        DeviceCordoned(device="g0", by="bob", reason="loud"),
        node("n1", gpu("g0")),
    )
    assert ledger.device("g0").cordon == "hot; loud"
    ledger.play(
        DeviceCordonLifted(device="g0", of="ada", by="ada"), node("n1"), node("n1", gpu("g0"))
    )
    assert [each.by for each in ledger.device("g0").cordons] == ["bob"]
    assert ledger.device("g0").cordon == "loud"
    ledger.play(DeviceUncordoned(device="g0", by="bob"))
    assert not ledger.state.device_cordons


def test_snapshots_keep_who_said_what() -> None:
    """Snapshots and digests include every operator's cordon."""
    state = Ledger(*BOTH).state
    restored = snapshot.restore(snapshot.take(state))
    assert restored.nodes["n1"].cordons == state.nodes["n1"].cordons
    assert digest(restored) == digest(state)
    other = Ledger(rack("n1", 1), NodeCordoned(node="n1", by="ada", reason="fan; firmware"))
    other.take(NodeCordonLifted(node="n1", of="nobody", by="ada"))
    assert digest(other.state) != digest(state)


def test_a_pod_that_waits_is_told_who_cordoned() -> None:
    """The advice for a pending pod names the operators who cordoned the node."""
    ledger = Ledger(*BOTH, pod("p1", ask(1000)))
    ledger.decide()
    answer = why(ledger.state, ledger.pod("p1"))
    assert answer.refused is not None
    [cause] = answer.refused.causes
    [off] = cause.cordoned
    assert (off.node, [(each.by, each.reason) for each in off.cordons]) == (
        "n1", [("ada", "fan"), ("bob", "firmware")]
    )  # fmt: skip


def test_a_reason_that_was_lifted_lets_pods_pass() -> None:
    """Pods are placed once the last cordon is lifted."""
    ledger = Ledger(*BOTH, pod("p1", ask(1000)))
    ledger.decide()
    ledger.play(NodeCordonLifted(node="n1", of="ada", by="ada")).decide()
    assert ledger.pod("p1").placement is None
    ledger.play(NodeCordonLifted(node="n1", of="bob", by="bob")).decide()
    assert ledger.pod("p1").placement is not None
