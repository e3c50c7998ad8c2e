"""Tests of the two interfaces for kube-scheduler.

One returns the nodes that fit a pod. The other places a pod on a chosen node."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.ledger.digest import digest
from apportion.core.placement.fit_query import CHOICES_MAX, ExternalChoices, FitQuery
from apportion.core.placement.queueing.sharding import WHOLE
from apportion_schemas import (
    DeviceCordoned,
    NodeGone,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    PolicyChanged,
    RefusalCode,
    Shape,
    Taint,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, placed, pod, shape, share, wants

CHOOSER = "kube-scheduler"


class Asked(Ledger):
    """A ledger with the two interfaces for kube-scheduler: fit queries and external choices."""

    def __init__(self, *payloads: Any) -> None:
        super().__init__()
        self.fit_query = FitQuery(self.state)
        self.chosen = ExternalChoices(self.state)
        self.play(*payloads)

    def take(self, data: Any) -> Any:
        """Fold one event, and pass the change to both interfaces for kube-scheduler."""
        change = super().take(data)
        self.fit_query.observe(change)
        self.chosen.observe(change)
        return change

    def refusals(self, of: Shape, *names: str) -> dict[str, RefusalCode | None]:
        """Return the code with which the query refuses the pod on each of these nodes; None if the
        pod fits."""
        return self.fit_query.filter(of, names).refused

    def decided(self) -> list[PodPlaced | PodRefused]:
        """Return whether each pod is placed or refused on the node that kube-scheduler chose."""
        return [event for _, event in self.chosen.decide(lambda _: True, events_max=256)]


def chosen_pod(uid: str, *asks: Any, **fields: Any) -> PodSubmitted:
    return pod(uid, *asks, chooser=CHOOSER, **fields)


def test_only_devices_are_asked_about() -> None:
    """A fit query compares only devices. kube-scheduler has already checked taints, selectors and
    CPU."""
    tainted = structs.replace(
        observed("n1"), cpu_milli=0, taints=(Taint(key="k", effect="NoSchedule"),)
    )
    ledger = Asked(rack("n1"), tainted)
    needy = wants(ask(1000), cpu_milli=4000, memory_mib=9_999_999, selector={"a": "b"})
    assert ledger.refusals(needy, "n1") == {}
    assert list(ledger.fit_query.filter(needy, ["n1"]).fits) == ["n1"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (shape(ask(999_999)), RefusalCode.MEMORY_INSUFFICIENT),
        (shape(cards(3)), RefusalCode.DEVICES_TOO_FEW),
        (shape(ask(1000, family="ascend310p")), RefusalCode.NO_SUCH_DEVICE),
    ],
)
def test_every_node_that_does_not_fit_has_a_reason(asked: Shape, code: RefusalCode) -> None:
    """For every node that does not fit, a fit query returns the refusal code. Unknown nodes are
    left out."""
    ledger = Asked(rack("n1", 2))
    assert ledger.refusals(asked, "n1", "unheard-of") == {"n1": code, "unheard-of": None}


def test_containers_that_collide_are_seen() -> None:
    """If a node has room for each of a pod's containers, but not for all together, a fit query
    refuses the node."""
    ledger = Asked(rack("n1", 1))
    both = shape(cards(container="a"), cards(container="b"))
    assert ledger.refusals(both, "n1") == {"n1": RefusalCode.CONTAINERS_COLLIDE}


def test_answers_follow_the_ledger_and_change_nothing() -> None:
    """A fit query follows placements, releases, cordons and removed nodes, and changes nothing."""
    ledger = Asked(rack("n1", 1))
    whole = shape(cards())
    before = digest(ledger.state)
    assert ledger.refusals(whole, "n1") == {}
    assert digest(ledger.state) == before
    ledger.submit(pod("p", cards())).decide()
    assert ledger.refusals(whole, "n1") == {"n1": RefusalCode.DEVICE_IN_USE}
    ledger.gone("p")
    assert ledger.refusals(whole, "n1") == {}
    ledger.play(DeviceCordoned(device="n1-g0", by="a", reason="r"))
    assert ledger.refusals(whole, "n1") == {"n1": RefusalCode.DEVICE_CORDONED}
    ledger.play(NodeGone(node="n1"))
    assert ledger.refusals(whole, "n1") == {"n1": RefusalCode.NODE_GONE}


def test_points_follow_the_policy() -> None:
    """A fit query scores nodes by the pod's policy, or else by the cluster's: binpack prefers
    fuller nodes, spread emptier ones."""
    ledger = Asked(rack("n1", 1), rack("n2", 1))
    ledger.submit(pod("p", ask(10_000))).decide()
    used = ledger.placement("p").node
    idle = {"n1": "n2", "n2": "n1"}[used]
    for policy, best in (("binpack", used), ("spread", idle)):
        ledger.play(PolicyChanged(by="b", node_policy=policy))  # type: ignore[arg-type]
        fits = ledger.fit_query.filter(shape(ask(1000)), ["n1", "n2"]).fits
        assert max(fits, key=fits.__getitem__) == best
    fits = ledger.fit_query.filter(shape(ask(1000), node_policy="binpack"), ["n1", "n2"]).fits
    assert max(fits, key=fits.__getitem__) == used


# ---------------------------------------------------------------- choices


def test_the_queue_leaves_a_pod_with_a_chooser_alone() -> None:
    """The engine does not queue a pod whose node another scheduler chooses, even after a restart or
    a voided placement."""
    ledger = Asked(rack("n1"))
    ledger.submit(chosen_pod("p", ask(1000)))
    assert not ledger.engine.decide().events
    assert ledger.engine.pending == 0
    assert not ledger.engine.others_wait
    ledger.engine.own(WHOLE)
    assert not type(ledger.engine)(ledger.state).decide().events
    assert ledger.decided() == []


def test_a_choice_is_placed_where_it_says() -> None:
    """If kube-scheduler chooses a node that fits, the pod is placed there. A newer choice for the
    pod replaces an older one."""
    ledger = Asked(rack("n1", 2), rack("n2", 2))
    ledger.submit(chosen_pod("p", ask(1000)))
    for node in ("n1", "n2"):
        ledger.chosen.choose("p", node)  # the newer choice counts
    (event,) = ledger.decided()
    assert isinstance(event, PodPlaced)
    assert (event.node, len(event.shares), event.nodes) == ("n2", 1, 2)
    assert ledger.decided() == [event]
    ledger.play(event)
    assert ledger.decided() == []


def test_a_choice_that_does_not_fit_is_refused_with_the_amounts() -> None:
    """If kube-scheduler chooses a node that does not fit, the scheduler refuses the pod.

    The refusal names that node as the nearest miss."""
    ledger = Asked(rack("n1", 1), rack("n2", 1))
    ledger.submit(chosen_pod("p", ask(1000)), chosen_pod("q", ask(1000)), pod("x", cards()))
    memory_mib = ledger.device("n1-g0").device.memory_mib
    ledger.play(placed("x", "n1", [share("n1-g0", memory_mib, 100)]))
    for _ in range(2):
        ledger.chosen.choose("p", "n1")
        (event,) = ledger.decided()
        assert isinstance(event, PodRefused)
        assert (event.nodes, len(event.reasons), event.nearest[0].node) == (1, 1, "n1")
        ledger.play(event)
        assert ledger.decided() == []
    ledger.chosen.choose("q", "unheard-of")
    (event,) = ledger.decided()
    assert isinstance(event, PodRefused)
    assert event.reasons == {RefusalCode.NODE_GONE: 1}


def test_choices_of_one_batch_count_for_one_another() -> None:
    """If kube-scheduler chose nodes for several pods that are decided together, each decision
    counts what the earlier pods use. The state stays unchanged."""
    ledger = Asked(rack("n1", 1))
    ledger.submit(chosen_pod("p", cards()), chosen_pod("q", cards()))
    ledger.chosen.choose("p", "n1")
    ledger.chosen.choose("q", "n1")
    before = digest(ledger.state)
    assert [type(event) for event in ledger.decided()] == [PodPlaced, PodRefused]
    assert digest(ledger.state) == before
    assert [type(event) for event in ledger.decided()] == [PodPlaced, PodRefused]


def test_choices_share_the_columns_of_the_engine() -> None:
    """Placing a pod on a chosen node may use the engine's index of nodes, and leaves no reservation
    in it."""
    ledger = Asked(rack("n1", 2), rack("n2", 1))
    shared = ExternalChoices(ledger.state, ledger.engine.columns)
    ledger.submit(chosen_pod("p", cards(2)), chosen_pod("q", cards()), pod("r", cards(2)))
    for chosen in (shared, ledger.chosen):
        chosen.choose("p", "n1")
        chosen.choose("q", "n1")
    events = [event for _, event in shared.decide(lambda _: True, events_max=256)]
    assert events == ledger.decided()
    assert [type(event) for event in events] == [PodPlaced, PodRefused]
    ledger.settle()
    assert ledger.where("r") == "n1"
    ledger.take(NodeGone(node="n2"))
    late = ExternalChoices(ledger.state, ledger.engine.columns)
    late.choose("q", "n1")
    ((_, refused),) = late.decide(lambda _: True, events_max=256)
    assert isinstance(refused, PodRefused)
    assert refused.reasons == {RefusalCode.DEVICE_IN_USE: 1}


def test_a_choice_waits_for_its_pod_and_for_its_scheduler() -> None:
    """If kube-scheduler chooses a node for a pod that is not submitted yet, the choice waits for
    the pod. Only the scheduler that owns the pod places or refuses it on the chosen node."""
    ledger = Asked(rack("n1"))
    ledger.chosen.choose("p", "n1")
    assert ledger.decided() == []
    ledger.submit(chosen_pod("p", ask(1000)))
    assert ledger.chosen.decide(lambda _: False, events_max=9) == []
    assert len(ledger.decided()) == 1
    ledger.gone("p")
    ledger.submit(chosen_pod("p", ask(1000)))
    assert ledger.decided() == []


def test_choices_are_bounded() -> None:
    """The scheduler keeps only the newest of kube-scheduler's choices, up to a maximum."""
    ledger = Asked(rack("n1"))
    ledger.submit(chosen_pod("p", ask(1000)))
    ledger.chosen.choose("p", "n1")
    for number in range(CHOICES_MAX):
        ledger.chosen.choose(f"x{number}", "n1")
    assert ledger.decided() == []
