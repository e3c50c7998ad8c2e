"""Properties of idle pods: they match a reference model, and only they are evicted as idle."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.ledger.fold import apply
from apportion.core.ledger.handlers.idle import idle_pod
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import PodState
from apportion_schemas import PodEvicted, PodGone
from tests.properties.core_histories import trying
from tests.support.fleet import rack
from tests.support.idling import at, looking, report, used
from tests.support.ledger_of import Ledger, event_of
from tests.support.pods import cards, gang, pod

AFTER = 2  # hours
GANGS = ("", "", "team/x")
Hour = tuple[frozenset[int], frozenset[int], int, bool]
"""In one hour: devices that work, devices without a report, the priority and gang of a new pod as
one number (0: no pod), and whether the pods that are being evicted end."""
devices = st.frozensets(st.integers(0, 3), max_size=4)
hours = st.lists(st.tuples(devices, devices, st.integers(0, 6), st.booleans()), max_size=12)


class History:
    """Two nodes with two devices each, and a model of how long each pod did no work."""

    def __init__(self) -> None:
        self.ledger = Ledger(looking(f"{AFTER}h", action="reclaim"), gang("team/x", 2))
        self.ledger.report(rack("n0", 2), rack("n1", 2))
        self.idle_h: dict[str, int] = {}
        self.missed: set[str] = set()

    def play(self, number: int, hour: Hour) -> None:
        """Let the pods work for one hour, report it, and let the scheduler decide."""
        working, unreported, new, leave = hour
        ledger = at(self.ledger, number)
        placed = [each for each in ledger.state.pods.values() if each.placement is not None]
        for slot, each in enumerate(placed):
            if slot in unreported:
                self.missed.add(each.uid)  # known only when the next report leaves a gap
            else:
                if each.uid in self.missed:
                    self.idle_h[each.uid] = 0
                    self.missed.discard(each.uid)
                cores = 50 * (slot in working)
                node = ledger.where(each.uid)
                report(ledger, number, node, *used(ledger, each.uid, cores))
                self.idle_h[each.uid] = 0 if cores else self.idle_h.get(each.uid, 0) + 1
        if leave:
            for uid in sorted(ledger.state.evictions):
                self.idle_h.pop(uid, None)
                ledger.play(PodGone(uid=uid))
        if new:
            kind = {"priority": (new - 1) // 3, "group": GANGS[(new - 1) % 3]}
            ledger.submit(pod(f"p{number}", cards(), **kind))
        self.check(len(ledger.events))

    def check(self, since: int) -> None:
        """Let the scheduler decide, and compare every eviction with the model."""
        self.ledger.settle()
        for event in self.ledger.events[since:]:
            if isinstance(event, PodEvicted) and event.reason == "idle":
                assert event.priority == event.beneficiary_priority
                assert self.idle_h[event.pod] * 3_600 == event.idle_s >= AFTER * 3_600
                victim = self.ledger.pod(event.pod)
                assert all(map(self.is_idle, self.together(victim)))

    def together(self, pod: PodState) -> list[PodState]:
        """Return the placed pods that end with this pod: those that its gang needs."""
        group = self.ledger.state.groups.get(pod.submitted.group)
        members = [] if group is None else list(group.pods.values())
        evicted = [each for each in members if each.uid in self.ledger.state.evictions]
        return evicted or [pod]

    def is_idle(self, pod: PodState) -> bool:
        return self.idle_h.get(pod.uid, 0) >= AFTER


@trying(40)
@given(hours)
def test_only_idle_pods_are_evicted_as_idle(steps: list[Hour]) -> None:
    """At each hour, the idle pods are those of the model. A pod is evicted as idle only if it did
    no work for long enough, for a pod of its priority, and with it only idle pods of its gang."""
    history = History()
    for number, hour in enumerate(steps, 1):
        history.play(number, hour)
        state = history.ledger.state
        found = {uid for uid, each in state.pods.items() if idle_pod(state, each)}
        assert found == {each.uid for each in state.pods.values() if history.is_idle(each)}


@trying(15)
@given(hours, hours)
def test_a_restart_changes_no_idle_pod(before: list[Hour], after: list[Hour]) -> None:
    """A reader that restarts from a snapshot has the same state as one that read all events."""
    history = History()
    for number, hour in enumerate(before, 1):
        history.play(number, hour)
    ledger = history.ledger
    again, begin = restore(take(ledger.state)), len(ledger.events)
    for number, hour in enumerate(after, len(before) + 1):
        history.play(number, hour)
        for data in ledger.events[begin:]:
            apply(again, again.revision + 1, event_of(data, ledger.time))
        begin = len(ledger.events)
        assert again.idle == ledger.state.idle
