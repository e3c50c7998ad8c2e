"""Tests of rejected pods: pods whose manifests Apportion cannot read. They stay rejected until they
are repaired or deleted."""

from typing import Any

from apportion_schemas import PodGone, PodRejected
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def rejected(uid: str = "p1", **fields: Any) -> PodRejected:
    """Return the event that rejects a pod because its affinity is not supported."""
    said = {"field": "spec.affinity.podAffinity", "value": "an object of 1"}
    said |= {"problem": "is not implemented yet", "fix": "remove it"}
    return PodRejected(uid=uid, namespace="default", name=uid, **(said | fields))


def test_it_is_known_and_takes_no_part_in_anything() -> None:
    """The state keeps a rejected pod with its error, but the engine does not try to place the
    pod."""
    ledger = Ledger(rejected())
    assert ledger.state.rejected == {"p1": rejected()}
    assert ledger.decide() == []


def test_once_mended_it_is_a_pod_like_any_other() -> None:
    """A repaired pod becomes a normal pending pod, and its error is forgotten."""
    ledger = Ledger(rejected()).submit(pod("p1", ask(1024)))
    assert not ledger.state.rejected
    assert list(ledger.state.pods) == ["p1"]


def test_a_live_pod_cannot_be_rejected() -> None:
    """The fold refuses to reject a pod that is already submitted."""
    assert "submitted already" in Ledger(pod("p1", ask(1024))).contradict(rejected())


def test_once_gone_it_is_forgotten() -> None:
    """A deleted rejected pod is forgotten; the fold refuses a second deletion."""
    ledger = Ledger(rejected()).gone("p1")
    assert not ledger.state.rejected
    assert "not live" in ledger.contradict(PodGone(uid="p1"))
