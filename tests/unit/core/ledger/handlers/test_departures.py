"""Tests that the state forgets removed nodes after a while. It still keeps each node's fence: the
revision and digest of the last placement event on the node."""

from itertools import count

import pytest

from apportion.core.ledger import fold
from apportion.core.ledger.digest import digest
from apportion.core.ledger.fold import PLACEMENT_SUBJECTS
from apportion.core.ledger.handlers import departures
from apportion.core.ledger.snapshot import Taking, restore, take
from apportion.core.placement.engine import Engine
from apportion_schemas import NodeCordoned, NodeGone, NodeSilent, NodeUncordoned, PodAdopted
from tests.support.fleet import node, observed, rack
from tests.support.ledger_of import Ledger, event_of
from tests.support.pods import ask, cards, placed, pod


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the state keep only a few removed nodes, so that the tests need few nodes."""
    monkeypatch.setattr(departures, "LEFT_MAX", 2)
    monkeypatch.setattr(departures, "DEPARTED_MAX", 3)


def come_and_go(ledger: Ledger, *names: str) -> None:
    for name in names:
        ledger.play(observed(name, version=1), rack(name, 1), NodeGone(node=name))


def test_a_node_is_forgotten_when_enough_others_have_left_since() -> None:
    """The state forgets a removed node and its devices after enough other nodes have left. Another
    node may then report the same devices."""
    ledger = Ledger()
    come_and_go(ledger, "a", "b")
    assert list(ledger.state.nodes) == ["a", "b"]
    come_and_go(ledger, "c")
    assert list(ledger.state.nodes) == ["b", "c"]
    assert "a-g0" not in ledger.state.node_of_device
    ledger.play(observed("b", version=2))
    assert ledger.node("b").devices, "it came back in time"
    come_and_go(ledger, "d", "e")
    assert list(ledger.state.nodes) == ["b", "d", "e"]


def test_a_node_with_pods_or_with_a_cordon_stays() -> None:
    """A removed node stays in the state until its last pod and its last cordon are gone."""
    ledger = Ledger(observed("a", version=1), rack("a", 1), observed("b", version=1), rack("b", 1))
    ledger.submit(pod("p", ask(1))).settle()
    where, other = ledger.where("p"), {"a": "b", "b": "a"}[ledger.where("p")]
    ledger.play(NodeCordoned(node=other, by="ann", reason="dust"))
    ledger.play(NodeGone(node=where), NodeGone(node=other))
    come_and_go(ledger, "c", "d", "e")
    assert sorted(ledger.state.nodes) == ["a", "b", "d", "e"]
    ledger.gone("p").play(NodeUncordoned(node=other, by="ann"))
    assert sorted(ledger.state.nodes) == ["a", "b"]
    come_and_go(ledger, "f", "g")
    assert sorted(ledger.state.nodes) == ["f", "g"]


def test_a_node_that_comes_back_goes_on_with_its_fences() -> None:
    """If a forgotten node returns, it continues from the fences that it had before.

    A fence is the revision of a node's last placement event, or of its agent's last presence event.
    """
    ledger = Ledger(observed("a", version=1), rack("a", 1))
    ledger.submit(pod("p", ask(1))).settle()
    ledger.play(NodeSilent(node="a", grace_s=1))
    node = ledger.node("a")
    ends = (7, "beef", node.presence)
    node.fence, node.chain = ends[:2]
    ledger.gone("p").play(NodeGone(node="a"))
    come_and_go(ledger, "b", "c")
    assert "a" not in ledger.state.nodes
    ledger.play(observed("a", version=2))
    node = ledger.node("a")
    assert (node.fence, node.chain, node.presence) == ends
    assert not ledger.state.departed


def test_a_state_of_many_nodes_that_come_and_go_does_not_grow() -> None:
    """The state, fences, index and snapshot do not grow while nodes come and go."""
    ledger = Ledger()
    for at in range(200):
        ledger.play(observed(f"n{at}", version=1), rack(f"n{at}", 1))
        ledger.submit(pod(f"p{at}", ask(1))).settle()
        ledger.node(f"n{at}").fence = ledger.state.revision
        ledger.gone(f"p{at}").play(NodeGone(node=f"n{at}"))
    state = ledger.state
    assert (len(state.nodes), len(state.left), len(state.departed)) == (2, 2, 3)
    assert len(state.node_of_device) == 2
    assert len(take(state)) < 10_000


def test_an_engine_decides_as_one_that_never_knew_the_node() -> None:
    """After the state has forgotten nodes, an old scheduling engine decides like a new one."""
    ledger = Ledger(observed("m", version=1), rack("m", 2))
    uids = (f"p{at}" for at in count())
    for name in ("a", "z", "k", "b", "y", "l", "n"):
        ledger.play(observed(name, version=1), rack(name, 1))
        ledger.submit(pod(next(uids), ask(1000))).settle()
        for each in list(ledger.state.pods.values()):
            ledger.gone(each.uid)
        ledger.play(NodeGone(node=name))
        ledger.submit(pod(next(uids), cards(1)), pod(next(uids), cards(3)))
        assert ledger.engine.decide().events == Engine(ledger.state).decide().events
        ledger.settle()


def test_a_snapshot_that_is_taken_meanwhile_forgets_it_too() -> None:
    """If the state forgets a node while a snapshot is being taken, the restored state does not have
    the node either."""
    ledger = Ledger()
    come_and_go(ledger, "a", "b")
    taking = Taking(ledger.state)
    taking.step(100)
    for data in (observed("c", version=1), NodeGone(node="c")):
        taking.observe(ledger.take(data))
    restored = restore(b"".join(taking.finish().parts))
    assert digest(restored) == digest(ledger.state)
    assert list(restored.nodes) == list(ledger.state.nodes) == ["b", "c"]


def test_a_node_that_reports_again_is_not_forgotten() -> None:
    """If the agent of a removed node reports again, the node is back, so the state does not forget
    it."""
    ledger = Ledger(rack("a", 1), NodeGone(node="a"), rack("a", 1))
    for name in "bcd":
        ledger.play(rack(name, 1), NodeGone(node=name))
    assert sorted(ledger.state.nodes) == ["a", "c", "d"]
    assert not ledger.node("a").gone


def test_a_node_that_has_a_pod_since_it_left_is_not_forgotten() -> None:
    """A removed node on which a pod was adopted is forgotten only after that pod has ended."""
    ledger = Ledger()
    come_and_go(ledger, "a")
    submitted = pod("p", ask(1))
    ledger.play(PodAdopted(pod="p", node="a", submitted=submitted, shares=()))
    come_and_go(ledger, "b", "c", "d")
    assert sorted(ledger.state.nodes) == ["a", "c", "d"]
    ledger.gone("p")
    come_and_go(ledger, "e", "f")
    assert sorted(ledger.state.nodes) == ["e", "f"]


def test_a_device_that_went_to_another_node_and_left_it_is_nobodys() -> None:
    """A device that left both its removed node and its next node belongs to no node."""
    ledger = Ledger(rack("x", 1), NodeGone(node="x"))
    (device,) = rack("x", 1).devices
    ledger.play(node("y", device), node("y"), node("x"))
    assert ledger.state.node_of_device == {}
    assert ledger.node("x").devices == []


def test_what_names_an_unknown_node_makes_none_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that name unknown nodes do not grow the state: it soon forgets these nodes again."""
    monkeypatch.setattr(departures, "DEPARTED_MAX", 100)
    state = Ledger(observed("k", version=1)).state
    revisions = count(2)
    for at in range(5):
        wrong = event_of(placed("p", f"placed-{at}"))
        assert fold.apply(state, next(revisions), wrong, digest="beef").refused
        fold.refuse(state, next(revisions), f"{PLACEMENT_SUBJECTS}bad-{at}", "r", digest="beef")
        fold.apply(state, next(revisions), event_of(NodeSilent(node=f"silent-{at}", grace_s=1)))
    assert list(state.nodes) == ["k", "bad-4", "silent-4"]
    assert (len(state.left), len(state.departed)) == (2, 13)
    fold.apply(state, next(revisions), event_of(observed("placed-0", version=1)))
    node = state.nodes["placed-0"]
    assert (node.present, node.fence, node.chain) == (True, 2, "beef")
