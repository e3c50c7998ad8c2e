"""Tests of how the queue is shown: identical pods as one group, with order, cause and advice."""

from collections.abc import Iterator

import pytest

from apportion.core.answers.reads import StartForecast
from apportion.core.explain.waiting_lines import lines_answer, namespaces_answer
from apportion.core.ledger.state import NodeState, PodState
from apportion.core.placement.feasibility.causes import LASTING
from apportion.core.placement.feasibility.evaluator import Room
from apportion_schemas import (
    DeviceConstraints,
    DeviceCordoned,
    NodeCordoned,
    PodRejected,
    QueueObserved,
    QuotaObserved,
    RefusalCode,
    Shape,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A30, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape, wants


def test_equal_asks_stand_in_one_line_by_their_turn() -> None:
    """Identical pending pods form one group, sorted by priority and then by age.

    A pod's position counts the pods of all groups."""
    ledger = Ledger(
        rack("n1", 1),
        pod("a", ask(900_000)), pod("b", cards(8)), pod("c", ask(900_000), priority=5),
    ).settle()  # fmt: skip
    answer = lines_answer(ledger.state)
    assert (answer.pods, answer.devices, answer.lines_count) == (3, 10, 2)
    large, eight = answer.lines
    assert [(each.name, each.position) for each in large.first] == [("c", 1), ("a", 2)]
    assert [(each.name, each.position) for each in eight.first] == [("b", 3)]
    assert (eight.devices, eight.pods) == (8, 1)
    assert large.oldest_revision == ledger.pod("a").submitted_revision


def test_lines_stand_as_their_first_pods_in_the_queue() -> None:
    """Groups are listed in the queue order of their first pods."""
    ledger = Ledger(
        rack("n1", 1), pod("a", cards(8)), *(pod(name, ask(900_000)) for name in "bcd"),
    ).settle()  # fmt: skip
    lines = lines_answer(ledger.state).lines
    assert [[each.position for each in line.first] for line in lines] == [[1], [2, 3, 4]]


def test_a_line_says_why_with_the_words_of_why(golden: Golden) -> None:
    """A group of identical pending pods shows the number of nodes per cause, as `why` does. It also
    shows the nearest node and the amount missing there."""
    ledger = Ledger(rack("n1", 1), pod("a", ask(60_000)), pod("b", ask(60_000))).settle()
    [line] = lines_answer(ledger.state).lines
    assert (line.pods, line.nodes) == (1, 1)
    golden({"a": line.sentence})
    assert line.causes[0].nodes == 1
    assert line.first[0].nearest == "n1"
    assert line.first[0].missing.endswith("MiB")
    assert not line.lasting


def test_a_line_has_one_forecast_if_forecasts_are_requested() -> None:
    """One forecast is made for each group of equal requests in the answer. A group that no node
    could ever run has no times."""
    ledger = Ledger(
        rack("n1", 1), pod("runs", cards()), pod("a", cards()), pod("b", cards()),
        pod("large", ask(900_000)),
    ).settle()  # fmt: skip
    asked: list[str] = []

    def forecast(pod: PodState) -> StartForecast:
        asked.append(pod.uid)
        return StartForecast(as_of="2026-01-01T00:00:00Z", median="2026-01-01T01:00:00Z")

    whole, large = lines_answer(ledger.state, 20, forecast).lines
    assert asked == ["a", "large"]
    assert whole.start == StartForecast(as_of="2026-01-01T00:00:00Z", median="2026-01-01T01:00:00Z")
    assert large.start == StartForecast(as_of="2026-01-01T00:00:00Z", unknown="never")
    assert [line.start for line in lines_answer(ledger.state).lines] == [None, None]


@pytest.mark.parametrize(
    "limit",
    [
        QuotaObserved(namespace="theirs", quota="q", hard={"nvidia.com/gpu": 0}),
        QueueObserved(queue="q", open=False),
    ],
    ids=["quota", "queue"],
)
def test_a_limit_is_told_of_those_alone_whom_it_keeps_out(limit: Payload) -> None:
    """If a limit blocks only some of several identical pods, the blocked pods form a group of their
    own.

    Only that group shows the limit as its cause."""
    taken = pod("x", cards(1))
    ledger = Ledger(rack("n1", 1), limit, taken).settle()
    theirs = pod("a", cards(1), namespace="theirs", queue="q")
    ledger.submit(theirs, pod("b", cards(1), namespace="mine")).settle()
    limited, by_nodes = lines_answer(ledger.state).lines
    assert [each.name for each in limited.first] == ["a"]
    assert [each.name for each in by_nodes.first] == ["b"]
    assert (limited.whose, by_nodes.whose) == ("theirs", "mine")
    assert limited.wants == by_nodes.wants
    assert " q " in limited.sentence == limited.first[0].sentence
    for told in (by_nodes.sentence, by_nodes.first[0].sentence):
        assert "1 node" in told


@pytest.mark.parametrize(
    ("cordon", "name"),
    [
        (NodeCordoned(node="n2", by="ann", reason="fan"), "n2"),
        (observed("n2", unschedulable=True), "n2"),
        (DeviceCordoned(device="n2-g0", by="ann", reason="fan"), "n2-g0"),
    ],
)
def test_a_cure_names_what_is_cordoned(cordon: Payload, name: str) -> None:
    """The advice contains `uncordon n2` with the cordoned node's name, even if other nodes are
    nearer."""
    nodes = [rack(name, 1) for name in ("n1", "n3", "n4", "n5", "n2")]
    taken = [pod(f"p{number}", ask(60_000)) for number in range(4)]
    ledger = Ledger(*nodes, cordon, *taken).settle().submit(pod("a", ask(60_000)))
    [line] = lines_answer(ledger.settle().state).lines
    assert "n2" not in [miss.node for miss in line.nearest]
    cures = [cause.unblocked_by for cause in line.causes]
    assert any(cure.endswith(f" uncordon {name}") for cure in cures), cures


def test_a_line_tells_of_one_pod_alone() -> None:
    """A group shows the refusal of the first of its pods that was refused. A newer pod ahead of it
    that is not decided yet changes nothing."""
    ledger = Ledger(rack("n1", 1), pod("x", cards(1))).settle().submit(pod("a", cards(1)))
    ledger.settle().submit(pod("b", cards(1), namespace="other", priority=9))
    [line] = lines_answer(ledger.state).lines
    assert [each.name for each in line.first] == ["b", "a"]
    assert [each.sentence != "" for each in line.first] == [False, True]
    assert line.whose == "default"
    assert line.sentence.startswith(line.first[1].sentence)


def test_who_waits_for_another_reason_stands_in_another_line() -> None:
    """Pods that request the same devices form different groups if they are pending for different
    reasons."""
    ledger = Ledger(rack("n1", 1), gang("team/job", 2)).submit(pod("x", cards(1))).settle()
    ledger.submit(
        member("half", cards(1)),
        pod("zone", shape=wants(cards(1), selector={"zone": "z9"})),
        pod("fpga", shape=wants(cards(1), extended={"x.io/fpga": 1})),
        pod("later", cards(1)),
        pod("last", cards(1)),
    )
    lines = lines_answer(ledger.settle().state).lines
    said = {tuple(each.name for each in line.first): line.sentence for line in lines}
    assert said.keys() == {("half",), ("zone",), ("fpga",), ("later", "last")}
    assert "2 pods" in said["half",]
    gangs = {line.gang and (line.gang.group, line.gang.min_available, line.gang.pods)
             for line in lines_answer(ledger.state).lines}  # fmt: skip
    assert gangs == {None, ("team/job", 2, 1)}, "the line names the gang that it waits for"
    assert "zone=z9" in said["zone",]
    assert "x.io/fpga" in said["fpga",]
    assert {line.wants for line in lines} == {lines[0].wants}


def cure_of_cordon(ledger: Ledger) -> str:
    """Return the advice about cordons for the only group of pending pods."""
    [line] = lines_answer(ledger.state).lines
    cures = {cause.code: cause.unblocked_by for cause in line.causes}
    return cures[RefusalCode.NODE_CORDONED]


def test_a_cure_names_no_cordoned_node_that_could_not_hold_the_pod(golden: Golden) -> None:
    """The advice names only cordoned nodes that could fit the pod. If there are none, `uncordon` is
    not advised."""
    small = rack("n2", 1, memory_mib=16_000)
    ledger = Ledger(rack("n1", 1), small, rack("n3", 1), pod("x", ask(60_000))).settle()
    ledger.play(NodeCordoned(node="n2", by="ann", reason="fan"))
    ledger.submit(pod("y", ask(60_000)), pod("a", ask(60_000))).settle()
    nothing = cure_of_cordon(ledger)
    ledger.gone("y").play(NodeCordoned(node="n3", by="ann", reason="fan"))
    ledger.submit(pod("b", ask(60_000))).settle()
    assert cure_of_cordon(ledger).endswith(" uncordon n3")
    golden({"n2, which is too small, is cordoned": nothing, "n3 as well": cure_of_cordon(ledger)})


def test_what_no_node_has_is_told_apart_from_what_is_taken() -> None:
    """If no node has the requested device type, the group is marked as one that will never fit."""
    b200 = shape(ask(1000), devices=DeviceConstraints(use_types=("B200",)))
    ledger = Ledger(rack("n1", 1), pod("a", shape=b200)).settle()
    answer = lines_answer(ledger.state)
    assert answer.lines[0].lasting
    assert answer.lasting == 1
    assert answer.lines[0].wants.endswith("type B200")


def test_a_gang_with_room_for_some_of_its_pods_may_fit_later() -> None:
    """A gang is not marked as one that will never fit if a node of the right type has room for some
    of its pods, although all other nodes are of another type."""
    shares = shape(cards(), devices=DeviceConstraints(use_types=("A30",)))
    ledger = Ledger(rack("n1", 1), rack("n2", 2, model=A30), pod("runs", shape=shares)).settle()
    ledger.play(gang(min_available=2), *(member(each, shape=shares) for each in ("a", "b")))
    ledger.settle()
    refused = ledger.refusal("a")
    assert set(refused.reasons) <= LASTING
    assert not lines_answer(ledger.state).lines[0].lasting


def test_gated_and_unreadable_pods_stand_in_no_line() -> None:
    """Gated pods and pods with unreadable manifests are counted separately. They are in no
    group."""
    ledger = Ledger(rack("n1", 1), pod("a", ask(1000), gates=("quota",)))
    ledger.play(
        PodRejected(uid="u", namespace="d", name="x", field="f", value="v", problem="p", fix="m")
    )
    answer = lines_answer(ledger.state)
    assert (answer.pods, answer.gated, answer.rejected, answer.lines) == (0, 1, 1, ())


def test_namespaces_by_their_pods() -> None:
    """The answer lists the namespaces with the number of live pods in each, the largest number
    first."""
    ledger = Ledger(
        pod("a", namespace="x"), pod("b", namespace="y"), pod("c", namespace="y"),
        pod("d", namespace="a"),
    )  # fmt: skip
    found = [(row.namespace, row.pods) for row in namespaces_answer(ledger.state).items]
    assert found == [("y", 2), ("a", 1), ("x", 1)]


def test_who_waits_says_that_room_is_made(golden: Golden) -> None:
    """A pending pod's row shows the node being freed and how many pods there have yet to end."""
    ledger = Ledger(rack("n1", 1), pod("low", cards(1))).settle()
    ledger.submit(pod("high", cards(1), priority=9), pod("other", cards(1))).settle()
    answer = lines_answer(ledger.state)
    high, other = answer.lines[0].first
    assert answer.making_room == 1
    assert (high.name, high.nominated, high.leaving) == ("high", "n1", 1)
    assert (other.nominated, other.leaving, other.room) == ("", 0, "")
    ledger.gone("low")
    [line] = lines_answer(ledger.state).lines
    assert line.first[0].leaving == 0
    golden({"low is leaving": high.room, "low has left": line.first[0].room})


def test_whoever_wants_the_same_has_not_the_refusal_of_anothers_gang(golden: Golden) -> None:
    """A single pod does not show the refusal of a gang, even if a pod of that gang requests the
    same devices."""
    ledger = Ledger(rack("n1", 2), gang("team/job", 1)).submit(member("a", cards())).settle()
    ledger.submit(pod("other", cards())).settle()
    only = shape(cards(), devices=DeviceConstraints(indexes=(5,)))
    ledger.submit(member("c", shape=only), member("d", cards()), pod("lone", cards())).settle()
    by_pod = {line.first[0].name: line.sentence for line in lines_answer(ledger.state).lines}
    golden({name: by_pod[name] for name in ("d", "lone")})


def test_many_gangs_that_want_the_same_cost_one_look_at_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If many gangs have the same request, their groups are explained by one scan of the nodes."""
    looks: list[object] = []
    real = Room.could

    def could(self: Room, wanted: Shape) -> Iterator[NodeState]:
        looks.append(wanted)
        return real(self, wanted)

    monkeypatch.setattr(Room, "could", could)
    ledger = Ledger(rack("n1", 1), pod("x", cards(1))).settle()
    for number in range(9):
        name = f"team/job{number}"
        ledger.submit(gang(name, 2), *(member(f"{number}-{n}", cards(1), group=name) for n in "ab"))
    lines = lines_answer(ledger.settle().state).lines
    assert len(lines) == 9
    assert len(looks) <= 2
