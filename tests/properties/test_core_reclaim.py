"""Properties of reclaim: a queue loses no pod within its entitlement, and gets what it deserves."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given, seed
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.moments import SECOND, micros_of, text_of
from apportion.core.ledger.state import State, queue_of
from apportion.core.placement.limits.queues import Queues
from apportion.core.placement.limits.quotas import WORTH
from apportion.core.placement.limits.tree import ROOT
from apportion_schemas import Configuration, ConfigurationChanged, PodEvicted, PodGone
from apportion_schemas.configuration import QueuesConfiguration
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import Step, trying
from tests.properties.core_playing import follow
from tests.properties.crowded_histories import lending_histories
from tests.support.ledger_of import Ledger

SETTINGS = trying(60)
GPUS = (WORTH, "nvidia")
ROUNDS_MAX = 200


class Aging(Ledger):
    """A ledger that counts past use. Each event advances its time by seven minutes."""

    def __init__(self) -> None:
        super().__init__()
        queues = QueuesConfiguration(usage_half_life="1h")
        self.play(ConfigurationChanged(by="ann", configuration=Configuration(queues=queues)))

    def take(self, data: Payload) -> Change:
        self.time = text_of((micros_of(self.time) or 0) + 7 * 60 * SECOND)
        return super().take(data)


class Keeping(Ledger):
    """A ledger in which no pod is evicted for surplus."""

    def __init__(self) -> None:
        super().__init__()
        queues = QueuesConfiguration(reclaim_surplus=False)
        self.play(ConfigurationChanged(by="ann", configuration=Configuration(queues=queues)))


ledgers = st.sampled_from((Ledger, Aging, Keeping))


def reclaimed(state: State) -> dict[str, PodEvicted]:
    return {uid: each for uid, each in state.evictions.items() if each.reason == "reclaimed"}


@contextmanager
def watched(state: State) -> Iterator[None]:
    """When the block ends, check the pods that were evicted in it for other queues."""
    before, queues = set(state.evictions), Queues(state)
    entitled = {name: queues.parts(name).get(GPUS) for name in (*state.queues, "default")}
    used = {name: queues.used(name).get(GPUS, 0) for name in entitled}
    for uid in before:  # leaving
        for name in queues.path_of(queues.account_of(state.pods[uid])):
            if name in used:
                used[name] -= queues.taken(state.pods[uid]).get(GPUS, 0)
    for uid in state.nominated:  # pods are leaving for them
        pod = state.pods.get(uid)
        if pod is not None and pod.placement is None:
            for name in queues.path_of(queues.account_of(pod)):
                if name in used:
                    used[name] += queues.needs(pod).get(GPUS, 0)
    yield
    for uid, event in reclaimed(state).items():
        if uid in before:
            continue
        victim, one = state.pods[uid], state.pods[event.beneficiary]
        assert (event.queue, event.beneficiary_queue) == (
            queue_of(state, victim),
            queue_of(state, one),
        )
        own = queues.path_of(queues.account_of(one))
        for name in queues.path_of(queues.account_of(victim)):
            if name in own:
                break
            part = entitled.get(name)
            assert part is not None, name
            assert used[name] > part.most, f"{name} is within what it is entitled to"
            queue = state.queues.get(name)
            assert queue is None or queue.reclaimable
        mine = entitled.get(own[0])
        keeping = not state.configuration.queues.reclaim_surplus
        assert not (keeping and mine and used[own[0]] >= mine.owned), f"{own[0]} has all it owns"


@SETTINGS
@given(lending_histories(), ledgers)
def test_a_queue_within_its_entitlement_loses_no_pod(steps: list[Step], kind: type[Ledger]) -> None:
    """A queue loses pods to other queues only if it uses more than its entitlement."""
    follow(kind(), steps, watched=watched)


@SETTINGS
@given(lending_histories(), ledgers)
def test_evictions_end_without_news(steps: list[Step], kind: type[Ledger]) -> None:
    """If nothing else happens, evictions come to an end: no two queues evict each other for ever.

    The test submits each evicted pod again, as a controller would."""
    ledger = kind()
    follow(ledger, steps)
    for again in range(ROUNDS_MAX):
        ledger.settle()
        leaving = sorted(ledger.state.evictions)
        if not leaving:
            return
        for uid in leaving:
            pod = ledger.state.pods[uid].submitted
            ledger.play(PodGone(uid=uid))
            ledger.play(structs.replace(pod, uid=f"{pod.name}-{again}"))
    raise AssertionError("pods are evicted for ever")


@SETTINGS
@given(lending_histories(), ledgers)
def test_what_a_queue_deserves_comes_back(steps: list[Step], kind: type[Ledger]) -> None:
    """In the end, no queue waits for a GPU that it could reclaim by the eviction of a single pod.

    A queue can reclaim up to what it deserves, from queues that use more than their entitlement."""
    ledger = kind()
    follow(ledger, steps)
    while True:
        ledger.settle()
        leaving = sorted(ledger.state.evictions)
        if not leaving:
            break
        ledger.play(*(PodGone(uid=uid) for uid in leaving))
    state = ledger.state
    queues = Queues(state)
    for pod in state.pods.values():
        about = pod.submitted
        if pod.placement is not None or about.group or about.gates or not about.preempts:
            continue
        reclaim = ledger.engine._limits.reclaim(pod, 1 << 62)
        if reclaim is None:
            continue
        for node in state.nodes.values():
            alone = [each for each in node.pods.values() if reclaim.allows([[each]])]
            alone = [each for each in alone if not each.submitted.group]
            whole = [
                each for each in alone
                if queues.taken(each).get(GPUS, 0) >= 1000 * sum(a.count for a in about.shape.asks)
            ]  # fmt: skip
            assert not whole or state.nominated, (about.uid, whole)


def test_pods_are_taken_back() -> None:
    """Generated histories have many evictions for other queues, some of pods in nested queues."""
    found: list[PodEvicted] = []

    @seed(5)
    @trying(300)
    @given(lending_histories())
    def play(steps: list[Step]) -> None:
        ledger = Ledger()
        follow(ledger, steps)
        found.extend(
            event for event in ledger.events
            if isinstance(event, PodEvicted) and event.reason == "reclaimed"
        )  # fmt: skip

    play()
    assert len(found) >= 20
    assert {each.beneficiary_queue for each in found} >= {"ml", "web"}
    assert ROOT not in {each.queue for each in found}
