"""Tests of reservations of nodes, and of the pods that may use reserved nodes."""

from typing import Any, Self

import pytest

from apportion.core.explain.why import why
from apportion.core.ledger.digest import digest
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion.core.ledger.snapshot import restore, take
from apportion.core.placement.engine import Engine
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    KeptNode,
    NodeCordoned,
    NodesReserved,
    PodAdopted,
    PodGone,
    PodSubmitted,
    QueueObserved,
    RefusalCode,
)
from apportion_schemas.configuration import QueuesConfiguration
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, rack
from tests.support.ledger_of import TIME, Ledger
from tests.support.pods import cards, gang, member, pod, share

C = RefusalCode
BEGIN = micros_of(TIME) or 0
MINUTE = 60


def after(said: str = "10m") -> ConfigurationChanged:
    """Return a configuration in which pods get reservations after this time; if empty, never."""
    queues = QueuesConfiguration(reserve_after=said)
    return ConfigurationChanged(by="ann", configuration=Configuration(queues=queues))


class Timed(Ledger):
    """A ledger whose engine knows the time, in minutes since the first event."""

    def __init__(self, *payloads: Payload, said: str = "10m") -> None:
        super().__init__()
        self.minute = 0.0
        self.at(0).play(after(said), *payloads)

    def at(self, minute: float) -> Self:
        """Let the time pass until this minute."""
        self.minute = minute
        self.time = text_of(BEGIN + int(minute * MINUTE) * SECOND)
        self.engine.tell_time(BEGIN + int(minute * MINUTE) * SECOND)
        return self

    def settle(self) -> Self:
        """Settle, with the time told before each decision as a scheduler does."""
        for _ in range(1000):
            self.engine.tell_time(BEGIN + int(self.minute * MINUTE) * SECOND)
            if not self.decide():
                return self
        raise AssertionError("the engine never falls silent")

    @property
    def reserved(self) -> list[NodesReserved]:
        """Return all events about reservations so far."""
        return [each for each in self.events if isinstance(each, NodesReserved)]

    @property
    def nodes(self) -> set[str]:
        """Return the nodes that are reserved now."""
        now = self.state.reserved
        return set() if now is None else {each.node for each in now.kept}


def small(uid: str, minutes: int = 0, count: int = 1, **fields: Any) -> PodSubmitted:
    """Return a pod that ends after these minutes at the latest, or has no deadline."""
    return pod(uid, cards(count), deadline_s=minutes * MINUTE, **fields)


def members(count: int = 2, each: int = 2, **fields: Any) -> tuple[Payload, ...]:
    """Return a gang of this many pods with `each` devices, and its pods, named `g0`, `g1` …"""
    pods = (member(f"g{number}", cards(each), **fields) for number in range(count))
    return gang(min_available=count), *pods


def busy(*minutes: int, width: int = 2, said: str = "10m") -> Timed:
    """Return a ledger with a full node for each argument: pods that end after these minutes."""
    ledger = Timed(said=said)
    for number, until in enumerate(minutes):
        ledger.play(rack(f"n{number}", width))
        for slot in range(width):
            ledger.submit(small(f"p{number}-{slot}", until)).settle()
    return ledger


def at(minute: float) -> str:
    return text_of(BEGIN + int(minute * MINUTE) * SECOND)


def test_a_gang_that_has_waited_gets_the_nodes_that_are_free_first() -> None:
    """The reservation has the nodes whose pods end first, and the time at which the last ends."""
    ledger = busy(90, 30, 60, 0).submit(*members()).settle()
    assert ledger.at(9.9).settle().reserved == []
    assert ledger.engine.held_until == BEGIN + 10 * MINUTE * SECOND
    (event,) = ledger.at(10).settle().reserved
    assert (event.name, event.starts) == ("team/job", at(60))
    assert {each.pod: each.node for each in event.kept}.keys() == {"g0", "g1"}
    assert ledger.nodes == {"n1", "n2"}
    assert ledger.at(11).settle().reserved == [event]


def test_a_search_leaves_devices_as_unhealthy_as_they_were() -> None:
    """A MIG device is unhealthy while an adopted pod uses it without a known instance.

    The search for a start removes this pod for a trial, and puts it back."""
    ledger = Timed(rack("n0", 2, model=A100_40))
    foreign = pod("foreign", cards(1), deadline_s=60 * MINUTE)
    shares = (share("n0-g0", memory_mib=40_960, cores=100),)
    adopted = PodAdopted(pod="foreign", node="n0", submitted=foreign, shares=shares)
    ledger.play(adopted, rack("n0", 2, model=A100_40, mode="mig"))
    device = ledger.state.nodes["n0"].by_id["n0-g0"]
    assert not device.healthy
    ledger.submit(*members(1)).settle().at(20).settle()
    assert not device.healthy


@pytest.mark.parametrize("size", [1, 31, 32, 33, 50, 100])
def test_a_gang_of_any_size_gets_the_nodes_that_are_free_first(size: int) -> None:
    """The search for the earliest start is exact, however many pods must end before it."""
    ledger = busy(*range(100, 200), width=2).submit(*members(size)).settle()
    (event,) = ledger.at(10).settle().reserved
    assert event.starts == at(99 + size)
    assert ledger.nodes == {f"n{number}" for number in range(size)}


def test_nothing_is_reserved_unless_the_configuration_says_so() -> None:
    """Without `queues.reserveAfter`, no nodes are reserved, however long a gang waits."""
    ledger = busy(90, 30, said="").submit(*members()).settle()
    assert ledger.at(10_000).settle().reserved == []
    assert not ledger.engine.held_until


def test_a_pod_with_several_devices_gets_a_reservation_and_one_with_one_device_does_not() -> None:
    """A pod with one device fits wherever a device is free, so it needs no reservation."""
    ledger = busy(90, 30).submit(small("one")).settle().at(20).settle()
    assert ledger.reserved == []
    ledger.submit(small("two", count=2)).settle().at(40).settle()
    assert (ledger.nodes, ledger.reserved[-1].starts) == ({"n1"}, at(30))


def test_if_too_few_pods_have_a_deadline_the_start_is_unknown() -> None:
    """Nodes with known ends come first, then those with the most idle devices."""
    ledger = Timed(rack("n0", 4), rack("n1", 4), rack("n2", 4)).submit(small("a", 60, 4)).settle()
    ledger.submit(small("b", 0, 3)).settle().submit(small("c", 0, 4)).settle()
    nodes = {name: ledger.where(name) for name in "abc"}
    ledger.submit(*members(each=4)).settle().at(10).settle()
    assert ledger.nodes == {nodes["a"], nodes["b"]}
    assert ledger.reserved[-1].starts == ""


def test_only_pods_that_end_before_the_start_use_reserved_nodes() -> None:
    """Other pods are refused there, also those that would end just too late."""
    ledger = busy(30, 60).submit(*members()).settle().at(10).settle()
    ledger.gone("p0-0", "p0-1").settle()
    ledger.submit(small("long", 50), small("endless"), small("short", 49)).settle()
    assert [ledger.where(uid) for uid in ("long", "endless", "short")] == ["", "", "n0"]
    assert ledger.refusal("long").reasons == {C.NODE_RESERVED: 1, C.DEVICE_IN_USE: 1}
    # a pod that comes later and ends in time passes those that are alike and wait
    ledger.at(20).submit(small("shorter", 39)).settle()
    assert ledger.where("shorter") == "n0"
    assert len(ledger.reserved) == 1
    ledger.at(60).gone("short", "shorter", "p1-0", "p1-1").settle()
    assert {ledger.where("g0"), ledger.where("g1")} == {"n0", "n1"}
    assert ledger.state.reserved is None


def test_pods_use_reserved_nodes_if_the_gang_fits_next_to_them() -> None:
    """A node with more devices than the gang needs at its start takes other pods."""
    ledger = Timed(rack("n0", 4), rack("n1", 4))
    for number in range(8):
        ledger.submit(small(f"p{number}", 30)).settle()
    ledger.submit(*members(each=3)).settle().at(10).settle()
    assert ledger.nodes == {"n0", "n1"}
    left = [f"p{number}" for number in range(8)]
    first = [uid for uid in left if ledger.where(uid) == "n0"]
    ledger.gone(*first[:2]).submit(small("a"), small("b")).settle()
    assert [ledger.where(uid) for uid in "ab"] == ["n0", ""]
    ledger.at(30).gone(*(uid for uid in left if uid not in first[:2])).settle()
    assert {ledger.where("g0"), ledger.where("g1")} == {"n0", "n1"}
    assert ledger.where("b")


def test_a_pod_of_higher_priority_may_use_reserved_nodes() -> None:
    """Priorities come first, as without a reservation."""
    ledger = busy(30, 60).submit(*members()).settle().at(10).settle()
    ledger.gone("p0-0").submit(small("high", priority=1)).settle()
    assert ledger.where("high") == "n0"
    # its end is not known, so neither is the start
    assert ledger.reserved[-1].starts == ""


@pytest.mark.parametrize("how", ["gone", "placed", "configured", "declared"])
def test_a_reservation_ends_with_its_gang(how: str) -> None:
    """The nodes take other pods again when the gang is placed, changes or ends."""
    ledger = busy(30, 60).submit(*members()).settle().at(10).settle()
    ledger.gone("p0-0", "p0-1").submit(small("other")).settle()
    assert ledger.where("other") == ""
    if how == "gone":
        ledger.gone("g0")
    elif how == "placed":
        ledger.play(rack("more", 4))
    elif how == "declared":
        ledger.play(gang(min_available=3))
    else:
        ledger.play(after(""))
    ledger.settle()
    assert ledger.state.reserved is None
    assert ledger.where("other")
    assert len(ledger.reserved) == 1


def test_another_node_is_reserved_if_one_is_closed() -> None:
    """A reservation moves if its nodes can no longer hold the gang."""
    ledger = busy(30, 60, 90).submit(*members()).settle().at(10).settle()
    assert ledger.nodes == {"n0", "n1"}
    ledger.play(NodeCordoned(node="n0", by="ann", reason="fan")).settle()
    assert ledger.nodes == {"n1", "n2"}
    ledger.play(NodeCordoned(node="n1", by="ann", reason="fan")).settle()
    assert ledger.state.reserved is None
    assert ledger.reserved[-1] == NodesReserved()
    assert ledger.at(100).settle().reserved[-1] == NodesReserved()


def test_pods_that_outlive_their_deadlines_move_the_start() -> None:
    """Fifteen minutes after the promised start, the ends of pods that still run are unknown."""
    ledger = busy(30, 30).submit(*members()).settle().at(10).settle()
    assert ledger.at(44).settle().reserved[-1].starts == at(30)
    ledger.at(45.1).settle()
    assert [each.starts for each in ledger.reserved] == [at(30), ""]
    assert ledger.nodes == {"n0", "n1"}


def test_one_gang_at_a_time_in_the_order_of_the_queue() -> None:
    """The next gang gets a reservation only when the first one is placed."""
    ledger = busy(30, 60).submit(*members()).settle()
    ledger.play(gang("team/next", 2))
    ledger.submit(*(member(f"x{n}", cards(2), group="team/next") for n in range(2)))
    ledger.settle().at(20).settle()
    assert [each.name for each in ledger.reserved] == ["team/job"]
    ledger.at(60).gone("p0-0", "p0-1", "p1-0", "p1-1").settle()
    assert ledger.where("g0")
    assert [each.name for each in ledger.reserved] == ["team/job", "team/next"]


def test_a_gang_of_higher_priority_takes_the_reservation() -> None:
    """It must have waited for long, too. Then the first gang gets the next reservation."""
    ledger = busy(30, 60).submit(*members(1)).settle().at(10).settle()
    assert ledger.reserved[-1].name == "team/job"
    more = (
        gang("team/urgent", min_available=1),
        member("u0", cards(2), group="team/urgent", priority=5, preempts=False),
    )
    ledger.submit(*more).settle().at(19).settle()
    assert ledger.reserved[-1].name == "team/job"
    (first, second) = ledger.at(20).settle().reserved
    assert (first.name, second.name, second.starts) == ("team/job", "team/urgent", at(30))
    assert len(ledger.at(25).settle().reserved) == 2
    ledger.play(PodGone(uid="p0-0"), PodGone(uid="p0-1")).settle()
    assert ledger.where("u0") == "n0"
    assert ledger.at(26).settle().reserved[-1].name == "team/job"


def test_a_gang_that_could_never_fit_gets_no_reservation() -> None:
    """The next gang that could fit gets one instead."""
    ledger = busy(30, 60).submit(*members(3)).settle().submit(small("two", count=2)).settle()
    assert [each.name for each in ledger.at(10).settle().reserved] == ["default/two"]


def test_a_queue_gets_no_more_than_it_is_entitled_to() -> None:
    """A gang that needs more than its queue is entitled to gets no reservation."""
    queues = [QueueObserved(queue=name, weight=1) for name in ("a", "b")]
    ledger = Timed(rack("n0", 2), rack("n1", 2), *queues)
    for number in range(4):
        ledger.submit(small(f"p{number}", 60, queue="b")).settle()
    ledger.play(gang("team/job", 2, queue="a"))
    ledger.submit(*(member(f"g{n}", cards(2), queue="a") for n in range(2))).settle()
    assert ledger.at(10).settle().reserved == []
    ledger.submit(small("two", count=2, queue="a")).settle()
    assert [each.name for each in ledger.at(30).settle().reserved] == ["default/two"]


def test_a_snapshot_has_the_reservation() -> None:
    """A scheduler that starts from a snapshot keeps the reserved nodes from other pods."""
    ledger = busy(30, 60).submit(*members()).settle().at(10).settle()
    state = restore(take(ledger.state))
    assert state.reserved == ledger.state.reserved
    assert digest(state) == digest(ledger.state)
    ledger.gone("p0-0", "p0-1")
    ledger.engine = Engine(ledger.state)
    ledger.at(11).submit(small("other"), small("short", 30)).settle()
    assert [ledger.where("other"), ledger.where("short")] == ["", "n0"]


@pytest.mark.parametrize(("said", "starts"), [("10m", True), ("", False)])
def test_small_pods_do_not_overtake_a_gang_for_ever(said: str, *, starts: bool) -> None:
    """With small pods that arrive all the time, a gang starts only thanks to its reservation."""
    ledger = busy(5, 5, 5, said=said).submit(*members()).settle()
    running = [(5, f"p{node}-{slot}") for node in range(3) for slot in range(2)]
    for minute in range(1, 60):
        # One pod more than can end arrives each minute. They run for 3 to 5 minutes.
        ledger.at(minute).submit(*(small(f"s{minute}-{n}", 6) for n in range(3))).settle()
        ended = [uid for end, uid in running if end <= minute]
        running = [each for each in running if each[0] > minute]
        for uid in ended:  # one at a time, so that there is never room for the gang by chance
            ledger.gone(uid).settle()
        known = {uid for _, uid in running}
        for pod_state in list(ledger.state.pods.values()):
            uid = pod_state.uid
            if pod_state.placement is not None and uid not in known and not uid.startswith("g"):
                running.append((minute + 3 + len(running) % 3, uid))
    assert bool(ledger.where("g0")) == starts


def test_a_reservation_that_contradicts_the_state_changes_nothing() -> None:
    """The fold refuses reservations of unknown nodes, for pods that are not pending, or if the
    configuration asks for none."""
    ledger = busy(30, 60).submit(*members()).settle().at(10).settle()
    event = ledger.reserved[-1]
    ledger.at(60).gone("p0-0", "p0-1", "p1-0", "p1-1").settle()
    assert "g0" in ledger.contradict(event)
    ledger.submit(small("later", count=2))
    for node in ("n9", "n0"):
        kept = (KeptNode(namespace="default", pod="later", node=node),)
        ledger.contradict(NodesReserved(pod="later", name="default/later", kept=kept))
        ledger.play(after(""))


def test_why_names_the_reservation() -> None:
    """The explanations of the gang, and of pods kept from its nodes, have the reservation."""
    ledger = busy(30, 60).submit(*members()).settle().at(10).settle()
    ledger.gone("p0-0").submit(small("other"), small("two", count=2)).settle()
    for uid in ("g0", "g1", "other"):
        assert why(ledger.state, ledger.pod(uid)).reserved == ledger.reserved[-1]
    assert why(ledger.state, ledger.pod("p1-0")).reserved is None
