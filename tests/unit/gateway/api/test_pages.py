"""Tests of paged lists: each item comes once, in order, and a page respects its filters and its
limit."""

from collections.abc import Callable
from typing import Any

import pytest

from apportion.core.answers.reads import Page
from apportion.core.forecast.line import Line
from apportion.core.ledger.state import State
from apportion.gateway.api import pages
from apportion.gateway.api.pages import STARTS_MAX, DevicesQuery, PodsQuery
from apportion.gateway.api.query import RequestRefused
from apportion_schemas import DeviceConstraints, PodRejected, QueueObserved, QuotaObserved
from tests.support.fleet import A100_80, T4, gpu, node, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape

Make = Callable[[State, Any], Page[Any]]


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """Return a ledger with five nodes of two GPUs, a gang, and twenty pods in two namespaces.

    The scheduler has refused one of the pods."""
    made = Ledger(*(rack(f"n{number}", 2) for number in (3, 1, 5, 2, 4)))
    for number in range(19):
        made.submit(pod(f"p{number}", ask(30_000), namespace="ab"[number % 2]))
    made.submit(pod("huge", ask(900_000), namespace="a"))
    made.play(gang("team/job", 1)).submit(member("m0", ask(1000)))
    return made.settle()


def walk(make: Make, state: State, **query: Any) -> list[Any]:
    """Read a list page by page to its end, and return all items."""
    items: list[Any] = []
    after = ""
    while True:
        page = make(state, PodsQuery(after=after, **query))
        assert page.revision == state.revision
        items += page.items
        after = page.next
        if not after:
            return items


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pods_in_order_of_submission(ledger: Ledger, limit: int) -> None:
    """Pods are listed in the order of their submission, whatever the size of a page."""
    items = walk(pages.pods, ledger.state, limit=limit)
    assert [item.uid for item in items] == list(ledger.state.pods)


def test_forecasts_only_on_request(ledger: Ledger) -> None:
    """Pending pods have a forecast only if the query sets `start`. The forecast has no times if no
    node could ever run the pod."""
    forecast = Line(ledger.state).forecast
    items = pages.pods(ledger.state, PodsQuery(start=1), forecast).items
    assert {item.uid: item.start.unknown for item in items if item.start} == {"huge": "never"}
    assert not any(item.start for item in pages.pods(ledger.state, PodsQuery(), forecast).items)


def test_pages_with_forecasts_are_short() -> None:
    """A page with forecasts lists fewer pods than one without, and says where the next one
    begins."""
    many = Ledger(rack("n1", 1), *(pod(f"p{number}", cards()) for number in range(STARTS_MAX + 5)))
    state, forecast = many.state, Line(many.state).forecast
    page = pages.pods(state, PodsQuery(start=1, limit=1_000), forecast)
    assert len(page.items) == STARTS_MAX
    rest = pages.pods(state, PodsQuery(start=1, limit=1_000, after=page.next), forecast)
    assert len(rest.items) == 5
    assert len(pages.pods(state, PodsQuery(limit=1_000)).items) == STARTS_MAX + 5


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_placements_in_order_of_decision(ledger: Ledger, limit: int) -> None:
    """Placements are listed in the order of their decisions. Pending pods are not in the list."""
    items = walk(pages.placements, ledger.state, limit=limit)
    revisions = [item.placed_revision for item in items]
    assert revisions == sorted(revisions)
    assert {item.uid for item in items} == set(ledger.state.pods) - {"huge"}


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_nodes_and_gangs_by_name(ledger: Ledger, limit: int) -> None:
    """Nodes and gangs are listed by name."""
    nodes = walk(pages.nodes, ledger.state, limit=limit)
    assert [item.node for item in nodes] == ["n1", "n2", "n3", "n4", "n5"]
    assert [item.group for item in walk(pages.gangs, ledger.state, limit=limit)] == ["team/job"]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_queues_and_quotas_by_name(limit: int) -> None:
    """Queues and quotas are listed by name, with usage in the same unit as the limit."""
    made = Ledger(rack("n1", 2))
    made.play(
        QueueObserved(queue="ml", weight=3, capability={"pods": 5, "docker.com/vcuda-memory": 12}),
        QueueObserved(queue="free", open=False),
        QuotaObserved(namespace="b", quota="q", hard={"limits.nvidia.com/gpumem": 4000}, version=7),
        QuotaObserved(namespace="a", quota="q10", hard={"example.com/nic": 1}),
        QuotaObserved(namespace="a", quota="q2", hard={"requests.nvidia.com/gpu": 2}),
    )
    made.submit(pod("p0", ask(2900), namespace="b", queue="ml"), pod("p1", ask(1000)))
    made.submit(pod("huge", ask(900_000), namespace="b", queue="ml"))
    state = made.settle().state
    free, ml = walk(pages.queues, state, limit=limit)
    assert (free.queue, free.open, free.used, free.pods) == ("free", False, {}, 0)
    assert ml.used == {"pods": 1, "docker.com/vcuda-memory": 12}, "of 256 MiB each, rounded up"
    assert (ml.weight, ml.pods, ml.waiting) == (3, 1, 1)
    found = walk(pages.quotas, state, limit=limit)
    assert [(each.namespace, each.quota) for each in found] == [
        ("a", "q2"),
        ("a", "q10"),
        ("b", "q"),
    ]
    assert [each.used for each in found] == [
        {"requests.nvidia.com/gpu": 0},
        {},
        {"limits.nvidia.com/gpumem": 2900},
    ]
    assert [each.of_kubernetes for each in found] == [False, False, True]
    assert walk(pages.quotas, state, limit=limit, namespace="b") == found[2:]
    assert walk(pages.quotas, state, limit=limit, namespace="none") == []


def test_a_queue_counts_the_pods_of_the_queues_below_it() -> None:
    """The usage of a queue includes the usage of the queues below it, because its limits apply to
    them too. If the parents of a queue form a cycle, the queue counts as one without a parent."""
    made = Ledger(rack("n1", 2)).play(
        QueueObserved(queue="lab", capability={"pods": 5}, parent="b"),
        QueueObserved(queue="ml", parent="lab", guarantee={"a.b/nic": 1}, reclaimable=False),
        QueueObserved(queue="b", parent="lab"),
        QueueObserved(queue="c", parent="b", priority=3, deserved={"pods": 2}, safe_s=60),
    )
    made.play(QueueObserved(queue="lab", capability={"pods": 5}))
    made.submit(pod("p0", ask(2900), queue="ml"), pod("p1", ask(1000), queue="c"))
    made.submit(pod("huge", ask(900_000), queue="c"))
    b, c, lab, ml = walk(pages.queues, made.settle().state, limit=9)
    assert [(each.queue, each.above) for each in (b, c, lab, ml)] == [
        ("b", ("lab",)), ("c", ("lab", "b")), ("lab", ()), ("ml", ("lab",)),
    ]  # fmt: skip
    assert (lab.used, lab.pods, lab.waiting) == ({"pods": 2}, 2, 1)
    assert [(each.pods, each.waiting) for each in (b, c, ml)] == [(1, 1), (1, 1), (1, 0)]
    assert (ml.parent, ml.guarantee, ml.reclaimable) == ("lab", {"a.b/nic": 1}, False)
    assert (c.priority, c.deserved, c.safe_s, c.fifo) == (3, {"pods": 2}, 60, False)
    made.play(QueueObserved(queue="lab", parent="b"))
    circle = walk(pages.queues, made.state, limit=9)
    assert {each.queue: each.above for each in circle} == dict.fromkeys(("b", "c", "lab", "ml"), ())


def test_what_a_queue_is_on_is_told_by_model() -> None:
    """A queue's list of devices counts each device once, by model. It is empty if no pod of the
    queue is placed."""
    made = Ledger(node("n1", gpu("a", model=T4), gpu("b"))).play(
        QueueObserved(queue="ml"), QueueObserved(queue="free")
    )
    small = shape(ask(1000), devices=DeviceConstraints(use_types=(T4,)))
    made.submit(*(pod(name, shape=small, queue="ml") for name in ("t1", "t2")))
    made.submit(pod("whole", ask(70_000), queue="ml"), pod("waits", ask(900_000), queue="free"))
    free, ml = walk(pages.queues, made.settle().state, limit=9)
    assert (ml.devices, ml.pods) == ({A100_80: 1, T4: 1}, 3)
    assert (free.devices, free.waiting) == ({}, 1)


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_devices_by_node_and_index(ledger: Ledger, limit: int) -> None:
    """Devices are listed by node and index. A page never ends within a node, so it may be longer
    than its limit."""
    items = walk(pages.devices, ledger.state, limit=limit)
    assert [(item.node, item.index) for item in items] == [
        (f"n{node}", index) for node in range(1, 6) for index in range(2)
    ]
    first = pages.devices(ledger.state, DevicesQuery(limit=limit))
    assert len(first.items) < limit + 2


def test_filters(ledger: Ledger) -> None:
    """A list of pods can be filtered by namespace, phase, node and pending state, alone or
    combined."""
    state = ledger.state
    assert {item.namespace for item in walk(pages.pods, state, namespace="b")} == {"b"}
    assert [item.uid for item in walk(pages.pods, state, phase="refused")] == ["huge"]
    assert [item.uid for item in walk(pages.pods, state, phase="pending")] == ["huge"]
    on_n1 = walk(pages.pods, state, node="n1", limit=1)
    assert {item.uid for item in on_n1} == set(ledger.node("n1").pods)
    assert [item.submitted_revision for item in on_n1] == sorted(
        item.submitted_revision for item in on_n1
    )
    both = walk(pages.placements, state, node="n1", namespace="a")
    assert both
    assert all((item.node, item.namespace) == ("n1", "a") for item in both)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pods_that_cannot_be_read_come_last(limit: int) -> None:
    """Rejected pods come last in a list of pods, if they match its filters."""
    made = Ledger(rack("n1", 2)).submit(pod("p0"), pod("p1"))
    made.play(*(rejected(uid) for uid in ("r2", "r0", "r1"))).settle()
    items = walk(pages.pods, made.state, limit=limit)
    assert [item.uid for item in items] == ["p0", "p1", "r0", "r1", "r2"]
    only = walk(pages.pods, made.state, limit=limit, phase="rejected")
    assert [item.uid for item in only] == ["r0", "r1", "r2"]
    assert only[0].rejection.startswith("spec.x: -1 ")
    assert walk(pages.pods, made.state, limit=limit, phase="rejected", namespace="other") == []
    assert not [item for item in walk(pages.pods, made.state, node="n1") if item.rejection]


def rejected(uid: str) -> PodRejected:
    return PodRejected(
        uid=uid, namespace="default", name=uid, field="spec.x", value="-1",
        problem="is negative", fix="write a number from 1",
    )  # fmt: skip


def test_node_that_is_not_there(ledger: Ledger) -> None:
    """The list of devices of an unknown node is an error, not an empty list."""
    with pytest.raises(RequestRefused) as refused:
        pages.devices(ledger.state, DevicesQuery(node="n9"))
    assert (refused.value.status, refused.value.answer.field) == (404, "node")


def test_page_goes_on_behind_what_is_gone(ledger: Ledger) -> None:
    """If the last pod of a page is deleted, the next page still starts after that pod's
    position."""
    made = Ledger(rack("n1", 2)).submit(*(pod(f"p{number}") for number in range(4)))
    first = pages.pods(made.state, PodsQuery(limit=2))
    made.gone("p1")
    rest = pages.pods(made.state, PodsQuery(limit=2, after=first.next))
    assert [item.uid for item in (*first.items, *rest.items)] == ["p0", "p1", "p2", "p3"]
