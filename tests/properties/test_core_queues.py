"""For every history with queues: no decision takes a queue beyond its limits, nor depends on more.

What a queue holds is added up here from the state alone, without the code that decides.
"""

from collections import Counter

from hypothesis import given

from apportion.core.ledger.state import PodState, State
from apportion.core.placement.queues import Queues
from apportion_schemas import PodGroupObserved, QueueObserved
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import (
    QUEUES,
    Decide,
    Effect,
    Step,
    queued_histories,
    trying,
)
from tests.properties.test_core_engine import ROUNDS_MAX, certain, decided
from tests.support.ledger_of import Ledger

SETTINGS = trying(60)


def queue_name(state: State, pod: PodState) -> str:
    """The queue that a pod is of."""
    group = state.groups.get(pod.submitted.group)
    declared = group.observed if group is not None else None
    if isinstance(declared, PodGroupObserved):
        return declared.queue
    return pod.submitted.queue or "default"


def held(state: State, queue: QueueObserved) -> Counter[str]:
    """What the queue holds under the names of its limits; cards by the name in its quota."""
    found: Counter[str] = Counter()
    for pod in state.pods.values():
        if pod.placement is None or queue_name(state, pod) != queue.queue:
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
            else:
                found["huawei.com/Ascend310P"] += 1
            named = [card for card in queue.cards if card in device.model]
            found[f"card {named[0] if named else device.model}"] += 1
    return found


def check_limits(state: State, before: dict[str, Counter[str]]) -> None:
    """What a decision added to a queue is within the limits that it has."""
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


def follow(ledger: Ledger, steps: list[Step]) -> None:
    """Play the history; every decision is checked against the limits."""
    for step in steps:
        if not isinstance(step, Decide):
            data = step.about(ledger.state) if isinstance(step, Effect) else step
            if data is not None:
                ledger.take(data)
            continue
        before = {name: held(ledger.state, queue) for name, queue in ledger.state.queues.items()}
        decision = ledger.consider() if step.rival else decided(ledger, step)
        if step.lost and not step.rival:
            ledger.engine.retry(decision)
            continue
        ledger.play(*decision.events)
        check_limits(ledger.state, before)


@SETTINGS
@given(queued_histories())
def test_no_decision_takes_a_queue_beyond_its_limits(steps: list[Step]) -> None:
    """Capability, card quota and closed queues hold, and an engine's past does not count."""
    follow(Ledger(), steps)


@SETTINGS
@given(queued_histories())
def test_with_queues_too_nobody_is_forgotten(steps: list[Step]) -> None:
    """The engine falls silent, and a new one then finds no place that it has passed over."""
    ledger = Ledger()
    follow(ledger, steps)
    for _ in range(ROUNDS_MAX):
        if not ledger.decide():
            break
    else:
        raise AssertionError("the engine never falls silent")
    assert certain(ledger.consider()) == []


@SETTINGS
@given(queued_histories())
def test_as_pods_end_those_that_wait_follow(steps: list[Step]) -> None:
    """Whoever waits for his queue is asked again as soon as a new engine would find a place."""
    ledger = Ledger()
    follow(ledger, steps)
    ledger.settle()
    for uid in [uid for uid, pod in ledger.state.pods.items() if pod.placement is not None]:
        follow(ledger.gone(uid), [Decide()])


@SETTINGS
@given(queued_histories())
def test_what_queues_hold_is_what_a_walk_finds(steps: list[Step]) -> None:
    """Kept up by the pod, or counted anew from the state: the same."""
    ledger = Ledger()
    kept = Queues(ledger.state)
    kept.activate()
    for step in steps:
        if isinstance(step, Decide):
            events: list[Payload | None] = [*ledger.consider().events]
        else:
            events = [step.about(ledger.state) if isinstance(step, Effect) else step]
        for data in events:
            if data is not None:
                kept.observe(ledger.take(data))
    anew = Queues(ledger.state)
    anew.activate()
    for name in QUEUES:
        assert kept.held(name) == anew.held(name)
        assert kept.share(name) == anew.share(name)
