"""Property: in any history with queues, no decision exceeds a queue's limits.

These tests compute a queue's usage from the state, without using the engine."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.limits.queues import Queues
from apportion_schemas import PodGroupObserved, QueueObserved
from tests.properties.core_histories import QUEUES, Decide, Step, queued_histories, trying
from tests.properties.core_playing import certain, changes, fall_silent, follow
from tests.support.ledger_of import Ledger

SETTINGS = trying(60)


def queue_name(state: State, pod: PodState) -> str:
    group = state.groups.get(pod.submitted.group)
    declared = group.observed if group is not None else None
    if isinstance(declared, PodGroupObserved):
        return declared.queue
    return pod.submitted.queue or "default"


def unlimited(steps: list[Step]) -> list[Step]:
    """Return the history with queues that keep no pod out."""
    return [
        structs.replace(each, capability={}, cards={}, guarantee={}, open=True, fifo=False)
        if isinstance(each, QueueObserved)
        else each
        for each in steps
    ]


def counted_in(state: State, name: str) -> set[str]:
    """Return the queues whose usage includes the pods of the queue `name`.

    These are the queue and its ancestors, or the queue and `root` if the ancestors form a cycle."""
    path = [name]
    while path[-1] != "root":
        queue = state.queues.get(path[-1])
        above = (queue.parent if queue is not None else "") or "root"
        if above in path:
            return {name, "root"}
        path.append(above)
    return set(path)


def held(state: State, queue: QueueObserved) -> Counter[str]:
    """Return how much of each resource the queue uses, keyed by the resource names in its limits.

    GPUs are also counted by model, under the name that the queue's GPU quota uses."""
    found: Counter[str] = Counter()
    for pod in state.pods.values():
        if pod.placement is None or queue.queue not in counted_in(state, queue_name(state, pod)):
            continue
        needs, by_id = pod.submitted.shape.node, state.nodes[pod.placement.node].by_id
        found.update({"pods": 1, "cpu": needs.cpu_milli, "memory": needs.memory_mib})
        found.update(needs.extended)
        for share in pod.placement.shares:
            device = by_id[share.device].device
            if device.family == "nvidia":
                entire = (share.memory_mib, share.cores) == (device.memory_mib, device.cores)
                found["volcano.sh/gpu-number"] += entire and share.instance is None
                found["nvidia.com/gpu"] += 1
                found["nvidia.com/gpumem"] += share.memory_mib
                found["volcano.sh/vgpu-cores"] += share.cores
            elif device.family == "ascend310p":
                found["huawei.com/Ascend310P"] += 1
            named = [card for card in queue.cards if card in device.model]
            found[f"card {named[0] if named else device.model}"] += 1
    return found


@contextmanager
def within_limits(state: State) -> Iterator[None]:
    """When the block ends, check that no event folded in it took a queue beyond its limits.

    Only queues whose usage increases in the block are checked."""
    before = {name: held(state, queue) for name, queue in state.queues.items()}
    yield
    for name, queue in state.queues.items():
        now, was = held(state, queue), before[name]
        grown = {resource for resource in now if now[resource] > was[resource]}
        assert queue.open or not grown, f"{name} is closed and takes {grown}"
        for resource in grown & queue.capability.keys():
            assert now[resource] <= queue.capability[resource], f"{name} holds too much {resource}"
        for card in grown if queue.cards else ():
            if card.startswith("card "):
                most = queue.cards.get(card.removeprefix("card "), 0)
                assert now[card] <= most, f"{name} holds too many of {card}"


@SETTINGS
@given(queued_histories())
def test_no_decision_takes_a_queue_beyond_its_limits(steps: list[Step]) -> None:
    """No decision exceeds a queue's capability or GPU quota, or places a pod of a closed queue.

    This holds whatever the engine has decided before."""
    follow(Ledger(), steps, within_limits)


@SETTINGS
@given(queued_histories())
def test_no_pod_is_missed_with_queues(steps: list[Step]) -> None:
    """With queues, the engine misses no pod: after it has decided, a new engine places none."""
    ledger = Ledger()
    follow(ledger, steps, within_limits)
    fall_silent(ledger)
    assert certain(ledger.consider()) == []


@SETTINGS
@given(queued_histories())
def test_pods_ending_in_a_queue_wake_the_next(steps: list[Step]) -> None:
    """When a pod ends, the engine retries pods that wait because of the limits of the pod's
    queue."""
    ledger = Ledger()
    follow(ledger, steps, within_limits)
    ledger.settle()
    for uid in [uid for uid, pod in ledger.state.pods.items() if pod.placement is not None]:
        follow(ledger.gone(uid), [Decide()], within_limits)


@SETTINGS
@given(queued_histories(), st.booleans(), st.integers(1, 8))
def test_queue_usage_equals_a_full_count(steps: list[Step], limited: bool, every: int) -> None:
    """The usage of a queue, updated with each change, equals a count over the whole state.

    It does not depend on how often amounts are read. Without limits, pods are counted only then."""
    ledger = Ledger()
    kept = Queues(ledger.state)
    kept.activate()
    for number, change in enumerate(changes(ledger, steps if limited else unlimited(steps))):
        kept.observe(change)
        if number % every == every - 1:
            kept.turn(QUEUES[number % len(QUEUES)])
    fresh = Queues(ledger.state)
    fresh.activate()
    for name in QUEUES:
        assert kept.held(name) == fresh.held(name)
        assert kept.turn(name) == fresh.turn(name)
        assert +Counter(kept.asked(name)) == +Counter(fresh.asked(name))
    for pod in ledger.state.pods.values():
        assert kept.taken(pod) == fresh.taken(pod)
