"""Tests of the order in which pods of one node are allocated if the node has no CDI.

Without CDI, the kubelet's Allocate call does not name the pod."""

import pytest

from apportion.core.configuration.offering import NO_CDI as REASON
from apportion.core.configuration.offering import closed
from apportion.core.devices.simulating import simulated_devices
from apportion.core.ledger.handlers.turns import AT_ALLOCATE, ahead, handing_out
from apportion_schemas import (
    AllocationFailed,
    Device,
    Host,
    NodeReported,
    NodeSilent,
    PodPlaced,
    PodSubmitted,
    Score,
    Shape,
    Share,
)
from apportion_schemas.inventory import Mode
from tests.support.ledger_of import Ledger

HOST = Host(cpu_milli=64_000, memory_mib=65_536)

MIG: tuple[Mode, ...] = ("mig",)
NO_CDI = handing_out(HOST, AT_ALLOCATE)


def ledger(spec: str = "2xT4", host: Host | None = None) -> Ledger:
    """Return a ledger with one node of these simulated devices. The node has no CDI by default."""
    devices = simulated_devices("n1", spec)
    return Ledger(NodeReported(node="n1", devices=devices, host=host or NO_CDI))


def place(book: Ledger, uid: str, *shares: Share) -> None:
    book.play(
        PodSubmitted(uid=uid, namespace="d", name=uid, shape=Shape(), dialect="x"),
        PodPlaced(
            pod=uid, namespace="d", name=uid, attempt=1, node="n1", shares=shares,
            score=Score(node="n1", total=1.0), previous=book.state.nodes["n1"].chain,
        ),
    )  # fmt: skip


def of(card: Device, memory_mib: int = 700) -> Share:
    return Share(container="main", device=card.id, memory_mib=memory_mib, cores=10)


def two(spec: str = "2xT4", memory_mib: int = 1300, host: Host | None = None) -> Ledger:
    """Return a ledger in which pod `a` was placed first and pod `b` second, both on the first
    device."""
    book = ledger(spec, host)
    card = book.state.nodes["n1"].devices[0].device
    place(book, "a", of(card))
    place(book, "b", of(card, memory_mib))
    return book


def waits_for(book: Ledger) -> str:
    """Return the uid of the pod that must be allocated before pod `b`, or an empty string."""
    found = ahead(book.state, book.pod("b"))
    return found.uid if found is not None else ""


def test_who_was_placed_first_goes_first() -> None:
    """A pod waits until the pod that was placed before it is allocated, even if that pod is not
    bound yet."""
    book = two()
    assert ahead(book.state, book.pod("a")) is None
    assert waits_for(book) == "a"
    book.bound("a")
    assert waits_for(book) == "a"
    book.allocated("a")
    assert waits_for(book) == ""


def test_nodes_with_cdi_know_no_turns() -> None:
    """Pods on a node with CDI never wait for one another."""
    assert waits_for(two(host=HOST)) == ""


@pytest.mark.parametrize("end", ["gone", "voided", "failed", "silent"])
def test_who_is_not_asked_for_any_more_frees_the_way(end: str) -> None:
    """A pod does not wait for an earlier pod that has ended, was voided or failed its allocation.

    No pod waits on a node whose agent is silent."""
    book = two().bound("a")
    match end:
        case "gone":
            book.gone("a")
        case "voided":
            book.voided("a")
        case "failed":
            book.play(AllocationFailed(pod="a", node="n1", attempt=1, message="full"))
        case _:
            book.play(NodeSilent(node="n1", grace_s=30))
    assert waits_for(book) == ""


def test_who_gets_the_same_waits_for_nobody() -> None:
    """A pod need not wait for an earlier pod's allocation if both pods get the same environment.

    That is so for pods with equal shares under MPS. Under HAMi-core, each pod has a folder of its
    own, so the pods wait for each other."""
    assert waits_for(two("1xT4:mps", 700)) == ""
    assert waits_for(two("1xT4:mps", 701)) == "a"
    assert waits_for(two("1xT4", 700)) == "a"


def test_who_holds_no_share_is_in_nobodys_way() -> None:
    """A pod without shares waits for no pod and blocks no pod."""
    book = ledger()
    place(book, "a")
    place(book, "b", of(book.state.nodes["n1"].devices[0].device))
    place(book, "c")
    assert waits_for(book) == ""
    assert ahead(book.state, book.pod("c")) is None


def test_cards_in_mig_mode_are_not_offered_there() -> None:
    """A node without CDI does not offer MIG devices, because their instances are created only when
    the container starts."""
    devices = simulated_devices("n1", "1xA100-40GB:mig+1xT4")
    cut, whole = closed(devices, MIG, REASON)
    assert not cut.healthy
    assert "CDI" in cut.health_reason
    assert whole.healthy
