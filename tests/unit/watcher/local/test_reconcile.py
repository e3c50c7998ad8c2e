"""Tests of which events the watcher appends for the pods of a source."""

import msgspec
import pytest

from apportion.core.ledger import fold
from apportion.core.ledger.state import State
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.watcher.local.reconcile import (
    CHANGED,
    PREEMPTED,
    REMOVED,
    SUPERSEDED,
    Fact,
    Known,
    Observation,
    Source,
    next_facts,
)
from apportion_schemas import Event, PodEvicted, PodGone, PodGroupObserved, PodSubmitted, Shape
from apportion_schemas.quantities import Payload
from tests.support.fleet import node
from tests.support.pods import placed

TIME = "2026-01-01T00:00:00.000000Z"
GANG = PodGroupObserved(group="d/gang", min_available=2)


class Named(Source):
    """A source of pods with short, readable uids."""

    def uid(self, key: str, incarnation: int) -> str:
        """Return a uid such as `mine:d/a:1`."""
        return f"mine:{key}:{incarnation}"

    def incarnation(self, key: str, uid: str) -> int:
        """Return the incarnation in the uid, or 0 if the uid is of another source."""
        mine, _, rest = uid.partition(":")
        return int(rest.rpartition(":")[2]) if mine == "mine" and key in rest else 0


def draft(name: str, **fields: object) -> PodDraft:
    """Return a pod in the namespace `d`."""
    plain = PodDraft(namespace="d", name=name, shape=Shape(), dialect="plain")
    return msgspec.structs.replace(plain, **fields)


def wanting(*drafts: PodDraft, groups: tuple[PodGroupObserved, ...] = ()) -> Observation:
    """Return a complete observation of a source that contains these pods and gangs."""
    return Observation(
        pods={f"d/{pod.name}": pod for pod in drafts},
        groups={group.group: group for group in groups},
    )


class World:
    """An in-memory ledger with the state that a watcher folds from it."""

    def __init__(self) -> None:
        self.source = Named()
        self.state = State()
        self.known = Known(self.source)

    def take(self, *payloads: Payload) -> None:
        for data in payloads:
            event = Event(id="x", source="test", time=TIME, data=data)
            change = fold.apply(self.state, self.state.revision + 1, event)
            self.known.observe(self.state, change)

    def next(self, wanted: Observation) -> list[Fact]:
        """Return the events that the watcher would append after this reading of the folder."""
        return next_facts(self.source, self.known, self.state, wanted)

    def settle(self, wanted: Observation) -> list[Fact]:
        """Append events until the watcher has none left, and return all of them."""
        written: list[Fact] = []
        while facts := self.next(wanted):
            written += facts
            self.take(*(fact.data for fact in facts))
            assert len(written) < 100, written
        return written


def test_a_pod_comes_stays_and_goes() -> None:
    """The watcher submits a requested pod once. When the pod is no longer requested, the watcher
    ends it."""
    world = World()
    (came,) = world.settle(wanting(draft("a")))
    assert isinstance(came.data, PodSubmitted)
    assert came.event_id == "mine:d/a:1/submitted"
    assert world.settle(wanting(draft("a"))) == []
    gone = Fact(PodGone(uid="mine:d/a:1", reason=REMOVED), "mine:d/a:1/gone")
    assert world.settle(wanting()) == [gone]
    assert world.settle(wanting()) == []


def test_each_return_is_another_pod() -> None:
    """If a pod's manifest is removed and comes back, the watcher submits a new pod with the next
    incarnation."""
    world = World()
    world.settle(wanting(draft("a")))
    world.settle(wanting())
    world.settle(wanting(draft("a")))
    world.take(PodGone(uid="mine:d/a:2", reason="deleted by hand"))
    assert [fact.event_id for fact in world.settle(wanting(draft("a")))] == ["mine:d/a:3/submitted"]


def test_a_changed_manifest_replaces_the_pod() -> None:
    """If a manifest changes, the watcher ends the old pod and then submits a new one."""
    world = World()
    world.settle(wanting(draft("a")))
    gone, came = world.settle(wanting(draft("a", priority=7)))
    assert gone.data == PodGone(uid="mine:d/a:1", reason=CHANGED)
    assert isinstance(came.data, PodSubmitted)
    assert (came.data.uid, came.data.priority) == ("mine:d/a:2", 7)


def test_an_evicted_pod_goes_and_waits_for_another_place() -> None:
    """If a pod is evicted, the watcher ends the pod and submits it again, since without Kubernetes
    no controller does that."""
    world = World()
    wanted = wanting(draft("a"), draft("h", priority=9))
    world.settle(wanted)
    low, high = world.state.pods["mine:d/a:1"], "mine:d/h:1"
    world.take(node("n"), placed(low.uid, "n", namespace="d", name="a"))
    world.take(
        PodEvicted(
            pod=low.uid, namespace="d", name="a", attempt=1, node="n", priority=0,
            beneficiary=high, beneficiary_name="d/h", beneficiary_priority=9, nominated="n",
            reason="preempted",
        )
    )  # fmt: skip
    gone, again = world.settle(wanted)
    assert gone.data == PodGone(uid=low.uid, reason=f"{PREEMPTED} d/h")
    assert again.event_id == "mine:d/a:2/submitted"


def test_pods_of_others_are_left_alone() -> None:
    """The watcher does not touch pods of other sources, even if they have the same name."""
    world = World()
    world.take(PodSubmitted(uid="theirs", namespace="d", name="a", shape=Shape(), dialect="plain"))
    assert world.settle(wanting()) == []
    assert [fact.event_id for fact in world.settle(wanting(draft("a")))] == ["mine:d/a:1/submitted"]


def test_nothing_is_gone_that_could_not_be_looked_for() -> None:
    """If the watcher cannot read the whole folder, it ends only those missing pods that it has seen
    in the folder before."""
    world = World()
    world.settle(wanting(draft("a"), draft("b")))
    partly = Observation(pods={}, groups={}, seen={"d/b"}, whole=False)
    assert [fact.event_id for fact in world.settle(partly)] == ["mine:d/b:1/gone"]


def test_two_live_pods_of_one_name() -> None:
    """If two pods with the same name are alive, the watcher ends the earlier one."""
    world = World()
    for uid in ("mine:d/a:1", "mine:d/a:2"):
        world.take(PodSubmitted(uid=uid, namespace="d", name="a", shape=Shape(), dialect="plain"))
    (gone,) = world.settle(wanting(draft("a")))
    assert gone.data == PodGone(uid="mine:d/a:1", reason=SUPERSEDED)


def test_a_gang_is_declared_before_its_pods() -> None:
    """The watcher declares a gang before the gang's pods. It declares the gang again only if the
    gang changes."""
    world = World()
    wanted = wanting(draft("a", group="d/gang"), groups=(GANG,))
    assert [type(fact.data) for fact in world.settle(wanted)] == [PodGroupObserved, PodSubmitted]
    larger = msgspec.structs.replace(GANG, min_available=1)
    (again,) = world.settle(wanting(draft("a", group="d/gang"), groups=(larger,)))
    assert again.data == larger


def test_a_gang_that_left_with_its_last_pod_is_declared_anew() -> None:
    """If the last pod of a gang is replaced, the gang ends together with the old pod. The watcher
    declares the gang again before it submits the new pod."""
    world = World()
    wanted = wanting(draft("a", group="d/gang"), groups=(GANG,))
    first = world.settle(wanted)[0]
    changed = wanting(draft("a", group="d/gang", priority=1), groups=(GANG,))
    gone, declared, _ = world.settle(changed)
    assert isinstance(gone.data, PodGone)
    assert declared.data == first.data
    assert declared.event_id != first.event_id
    assert world.state.groups["d/gang"].min_available == 2


@pytest.mark.parametrize("events", [1, 2, 3, 4])
def test_any_prefix_leads_to_the_same_end(events: int) -> None:
    """If the watcher restarts after any of its events, it appends exactly the events that are still
    missing."""
    wanted = wanting(draft("a", group="d/gang"), draft("b"), draft("c"), groups=(GANG,))
    straight = World().settle(wanted)
    world = World()
    world.take(*(fact.data for fact in straight[:events]))
    assert world.settle(wanted) == straight[events:]
