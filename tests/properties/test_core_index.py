"""Properties of the engine's index of nodes and devices, in any state.

The index gives the same answers as the filters, and chooses the same node as a full scan of all
nodes."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.placement import classes
from apportion.core.placement.classes import ClassCache, PlacementClass
from apportion.core.placement.feasibility.evaluator import (
    FITS,
    ORDER,
    RANK,
    Room,
    empty,
    facts_refusal,
    feasibility,
    now,
)
from apportion.core.placement.index import columns as node_columns
from apportion.core.placement.index.asks import AskColumns
from apportion.core.placement.index.columns import Columns
from apportion.core.placement.index.packed import POINTS
from apportion.core.placement.index.score_input import ScoreInput
from apportion.core.placement.refusals import miss, node_ranks
from apportion_schemas import (
    Ask,
    DeviceConstraints,
    NodeReported,
    PodConstraints,
    PodPlaced,
    PodRefused,
    PodSubmitted,
    PricesLearnt,
    RefusalCode,
    Shape,
)
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import (
    Decide,
    Effect,
    Step,
    histories,
    odd_shapes,
    shapes,
    trying,
)
from tests.properties.core_playing import follow
from tests.properties.full_scan import assigned, choose, reached, refusal
from tests.support import fleet
from tests.support.ledger_of import Ledger
from tests.support.pods import pod

FIRST = 1 << 31  # a priority above all others
TOGETHER = (
    RefusalCode.CONTAINERS_COLLIDE,
    RefusalCode.NUMA_MISMATCH,
    RefusalCode.MODULES_IN_USE,
    RefusalCode.MIG_SLICES_OCCUPIED,
)
"""Reasons why containers do not fit together on a node that no filter refuses."""


def noted(ask: AskColumns, columns: Columns, row: int) -> list[bool]:
    """Return, for each device of the node at `row`, whether the device suffices for the request.

    The node's CPU and memory are ignored."""
    alone = AskColumns(ask.ask, ask.constraints, ask.chain, ask.fleet, host_need=0)
    alone.rebuild(columns, columns.every)
    look = ScoreInput(columns, np.zeros(1, np.int32).data)
    look.rows, look.count = np.array([row]).data, 1
    alone.look(look, 1, 1)
    return [bool(look.enough[at]) for at in range(1, columns.width)]


@st.composite
def plain(draw: st.DrawFn, wanted: st.SearchStrategy[Shape]) -> Shape:
    """Draw a pod shape that has no pod affinity and ranks nodes and devices only by load."""
    policies = st.sampled_from(("binpack", "spread"))
    return structs.replace(
        draw(wanted),
        node_policy=draw(policies),
        device_policy=draw(policies),
        device_weights=None,
        pods=PodConstraints(),
    )


def cluster_of(steps: list[Step]) -> Ledger:
    """Return the cluster after this history, with every decision folded.

    The cluster has no pods with affinity and no links between devices, because the full scan
    ignores both."""
    ledger = Ledger()
    for step in steps:
        if isinstance(step, Decide):
            ledger.decide()
            continue
        data: Payload | None = step.about(ledger.state) if isinstance(step, Effect) else step
        if isinstance(data, PodSubmitted):
            data = structs.replace(data, shape=structs.replace(data.shape, pods=PodConstraints()))
        if isinstance(data, NodeReported):
            devices = tuple(structs.replace(each, nvlink_lanes={}) for each in data.devices)
            data = structs.replace(data, devices=devices)
        if data is not None and not isinstance(data, PricesLearnt):
            ledger.take(data)
    return ledger


@trying(50)
@given(histories(), st.lists(plain(shapes | odd_shapes), min_size=1, max_size=4))
def test_choice_is_that_of_a_full_scan(steps: list[Step], wanted: list[Shape]) -> None:
    """The index and a full scan choose the same node, devices, MIG slices and score.

    If no node fits, they report the same reasons."""
    ledger = cluster_of(steps)
    ledger.settle()
    for number, shape in enumerate(wanted):
        uid = f"x{number}"
        expected = choose(ledger.state, shape)
        events = ledger.submit(pod(uid, shape=shape, priority=FIRST)).decide()
        (event,) = [event for event in events if getattr(event, "pod", "") == uid]
        if isinstance(event, PodRefused):
            assert (expected.node, expected.refused) == ("", event.reasons)
            continue
        assert isinstance(event, PodPlaced)
        assert (event.node, event.shares) == (expected.node, expected.shares)
        assert expected.taking <= event.fitting <= expected.fitting
        assert event.score.total == expected.points * 100 / POINTS
        ledger.settle()


STATES = st.sampled_from(("free", "free", "free", "held", "sick"))
DIES = st.lists(st.lists(STATES, min_size=2, max_size=6), min_size=1, max_size=2)


@trying(60)
@given(DIES, st.lists(st.sampled_from((2, 4)), min_size=1, max_size=2), st.booleans())
def test_dies_of_modules_are_those_of_a_full_scan(
    nodes: list[list[str]], counts: list[int], soft: bool
) -> None:
    """The index and a full scan allocate the same dies of NPU modules with two dies.

    This holds whichever dies are in use or unhealthy."""
    ledger = Ledger()
    for at, dies in enumerate(nodes):
        mode = "hami-core" if soft else "vnpu"
        of = {"family": "ascend910c", "model": "Ascend910C", "memory_mib": 65536, "mode": mode}
        devices = [fleet.gpu(f"{at}d{n}", healthy=s != "sick", **of) for n, s in enumerate(dies)]
        ledger.report(fleet.node(f"n{at}", *devices))
        for n, state in enumerate(dies):
            if state == "held":
                only = DeviceConstraints(use_ids=(f"{at}d{n}",), modes=("hami-core", "vnpu"))
                part = Ask(container="c", family="ascend910c", memory_mib=9000)
                ledger.submit(pod(f"h{at}{n}", shape=Shape(asks=(part,), devices=only))).settle()
    asks = tuple(
        Ask(container=f"c{n}", family="ascend910c", count=count, cores=0 if soft else 100,
            memory_mib=9000 if soft else None)
        for n, count in enumerate(counts)
    )  # fmt: skip
    modes = DeviceConstraints(modes=("hami-core",) if soft else ())
    wanted = Shape(asks=asks, devices=modes, node_policy="binpack", device_policy="binpack")
    expected = choose(ledger.state, wanted)
    (event,) = ledger.submit(pod("x", shape=wanted, priority=FIRST)).decide()
    if isinstance(event, PodRefused):
        assert (expected.node, expected.refused) == ("", event.reasons)
    else:
        assert isinstance(event, PodPlaced)
        assert (event.node, event.shares) == (expected.node, expected.shares)


@trying(50)
@given(histories(), st.lists(plain(shapes | odd_shapes), min_size=1, max_size=5))
def test_index_answers_as_the_filters_do(steps: list[Step], wanted: list[Shape]) -> None:
    """For each device and each node, the index gives the same answer as the filters."""
    state = cluster_of(steps).state
    columns = Columns(state)
    columns.sync()
    for shape in wanted:
        class_ = PlacementClass(shape, state.policy, None)
        class_.refresh(columns)
        for row, node in enumerate(columns.nodes):
            code = facts_refusal(shape, node)
            assert class_.facts.ranks[row] == (FITS if code is None else RANK[code])
            taken = class_.may_collide or assigned(shape, node) is not None
            fits_there = refusal(shape, node) is None and taken
            assert (class_.board.points[row] >= 0) == fits_there
            for ask in class_.asks:
                fits = [reached(shape, ask.ask, device) == FITS for device in node.devices]
                rest = columns.width - 1 - len(fits)
                assert noted(ask, columns, row) == fits + [False] * rest


@trying(50)
@given(histories(), st.lists(plain(shapes | odd_shapes), min_size=1, max_size=4))
def test_evaluator_and_index_stop_a_node_at_the_same_filter(
    steps: list[Step], wanted: list[Shape]
) -> None:
    """The index refuses a node by the same filter as the code that explains refusals.

    Both compare the same needed and available amounts."""
    state = cluster_of(steps).state
    columns = Columns(state)
    columns.sync()
    for shape in wanted:
        class_ = PlacementClass(shape, state.policy, None, columns.fleet)
        class_.refresh(columns)
        ranks = node_ranks(class_, columns)
        for row, node in enumerate(columns.nodes):
            if columns.vacant[row]:
                continue
            found = feasibility(shape, node, now, Room(state).rules(shape))
            if found is None or found.code in TOGETHER[:3]:
                assert ranks[row] == FITS or ORDER[ranks[row]] in TOGETHER
                continue
            assert ORDER[ranks[row]] is found.code
            missed = miss(class_, columns, row, found.code)[1]
            assert (missed.needed, missed.available) == (found.needed, found.available)


@trying(40)
@given(histories(), st.lists(plain(shapes | odd_shapes), min_size=1, max_size=4))
def test_what_fits_now_fits_an_empty_node(steps: list[Step], wanted: list[Shape]) -> None:
    """A pod that fits on a node now also fits on the same node when the node is empty.

    The engine computes on empty nodes whether a pod can ever fit, so the answer "never" is always
    right."""
    state = cluster_of(steps).state
    for shape in wanted:
        rules = Room(state).rules(shape)
        for node in state.nodes.values():
            if feasibility(shape, node, now, rules) is None:
                assert feasibility(shape, node, empty, rules) is None


@trying(40)
@given(histories())
def test_spare_rows_make_no_difference(steps: list[Step]) -> None:
    """Decisions stay the same if the index has an unused row after every row of a node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_columns, "SPARE_EVERY", 1)
        ledger = Ledger()
        follow(ledger, steps)
        spare, ledger = told(ledger.settle()), Ledger()
    follow(ledger, steps)
    assert told(ledger.settle()) == spare


def told(ledger: Ledger) -> list[Payload]:
    """Return all events of the ledger except refusals.

    Refusals are left out because the engine may repeat them when the index rebuilds its rows."""
    return [event for event in ledger.events if not isinstance(event, PodRefused)]


def touching(ledger: Ledger, columns: Columns, steps: list[Step]) -> Iterator[int]:
    """Play the steps that are not decisions. After each of them, update the index's columns and
    yield the step's number."""
    for number, step in enumerate(steps):
        if isinstance(step, Decide):
            continue
        data = step.about(ledger.state) if isinstance(step, Effect) else step
        change = ledger.take(data) if data is not None else None
        if change is not None and change.node is not None:
            columns.touch(change.node, change.shares)
        yield number


@trying(40)
@given(histories(), st.lists(st.tuples(shapes, st.integers(0, 9)), max_size=4))
def test_index_kept_up_to_date_is_the_index_made_anew(
    steps: list[Step], wanted: list[tuple[Shape, int]]
) -> None:
    """An index that is updated after each step of a history equals an index that is built from the
    final state."""
    ledger = Ledger()
    policy = ledger.state.policy  # a cache lets classes follow policy changes
    columns = Columns(ledger.state)
    classes = [(PlacementClass(s, policy, None), every) for s, every in wanted]
    for number in touching(ledger, columns, steps):
        for class_, every in classes:
            if number % (every + 1) == 0:
                columns.sync()
                class_.refresh(columns)
    columns.sync()
    anew = Columns(ledger.state)
    anew.sync()
    for class_, _ in classes:
        class_.refresh(columns)
        other = PlacementClass(class_.shape, policy, None)
        other.refresh(anew)
        assert class_.board.points.tolist() == other.board.points.tolist()
        assert class_.facts.ranks.tolist() == other.facts.ranks.tolist()


@trying(40)
@given(histories(), st.lists(st.tuples(shapes, st.integers(0, 9)), min_size=1, max_size=4))
def test_classes_that_are_kept_answer_as_those_made_anew(
    steps: list[Step], wanted: list[tuple[Shape, int]]
) -> None:
    """Cached placement classes (groups of identical pods) give the same answers as new classes,
    even after changes of policies, prices and nodes."""
    ledger = Ledger()
    columns = Columns(ledger.state)
    kept = ClassCache(ledger.state, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes, "READ_MAX", 1)
        for number in touching(ledger, columns, steps):
            kept.prepare()
            for at, (shape, every) in enumerate(wanted):
                if number % (every + 1) == 0:
                    kept.class_of(bytes([at]), shape)
    fresh = Columns(ledger.state)
    anew = ClassCache(ledger.state, fresh)
    for at, (shape, _) in enumerate(wanted):
        one, other = kept.class_of(bytes([at]), shape), anew.class_of(bytes([at]), shape)
        assert answers(one, columns) == answers(other, fresh)


def answers(class_: PlacementClass, columns: Columns) -> dict[str, tuple[int, int, int]]:
    """Return for each node its score, the rank of the filter that refuses it, and its chosen
    device.

    The chosen device is its position on the node, or -1 if the pod does not fit."""
    return {
        columns.names[row]: (
            int(class_.board.points[row]),
            int(class_.facts.ranks[row]),
            class_.scored_device(row) if class_.board.points[row] >= 0 else -1,
        )
        for row in np.flatnonzero(~columns.vacant).tolist()
    }
