"""For every history with quotas: no decision takes a namespace beyond them, nor depends on more.

What a namespace holds is added up here from the state alone, without the code that decides.
"""

from collections import Counter

from hypothesis import given

from apportion.core.ledger.state import State
from apportion.core.placement.namespaces import Namespaces
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import Decide, Effect, Step, limited_histories, trying
from tests.properties.test_core_engine import ROUNDS_MAX, certain, decided
from tests.support.ledger_of import Ledger

SETTINGS = trying(60)
Held = dict[str, Counter[str]]


def held(state: State) -> Held:
    """What each namespace holds, under the names of the limits."""
    found: Held = {}
    for pod in state.pods.values():
        if pod.placement is None:
            continue
        amounts = found.setdefault(pod.submitted.namespace, Counter())
        by_id = state.nodes[pod.placement.node].by_id
        for share in pod.placement.shares:
            device = by_id[share.device].device
            if device.family == "nvidia":
                entire = (share.memory_mib, share.cores) == (device.memory_mib, device.cores)
                amounts["requests.volcano.sh/gpu-number"] += entire and share.instance is None
                amounts["requests.nvidia.com/gpu"] += 1
                amounts["limits.nvidia.com/gpumem"] += share.memory_mib
                amounts["limits.volcano.sh/vgpu-cores"] += share.cores
            else:
                amounts["huawei.com/Ascend310P"] += 1
    return found


def check_quotas(state: State, before: Held) -> None:
    """What a decision added to a namespace is within every quota that it has."""
    for name, now in held(state).items():
        for quota in state.quotas.get(name, {}).values():
            for resource, most in quota.hard.items():
                grown = now[resource] > before.get(name, Counter())[resource]
                assert not grown or now[resource] <= most, f"{name} holds too much {resource}"


def follow(ledger: Ledger, steps: list[Step]) -> None:
    """Play the history; every decision is checked against the quotas."""
    for step in steps:
        if not isinstance(step, Decide):
            data = step.about(ledger.state) if isinstance(step, Effect) else step
            if data is not None:
                ledger.take(data)
            continue
        before = held(ledger.state)
        decision = ledger.consider() if step.rival else decided(ledger, step)
        if step.lost and not step.rival:
            ledger.engine.retry(decision)
            continue
        ledger.play(*decision.events)
        check_quotas(ledger.state, before)


@SETTINGS
@given(limited_histories())
def test_no_decision_takes_a_namespace_beyond_its_quota(steps: list[Step]) -> None:
    """Counts, memory and cores hold, and an engine's past does not count."""
    follow(Ledger(), steps)


@SETTINGS
@given(limited_histories())
def test_with_quotas_too_nobody_is_forgotten(steps: list[Step]) -> None:
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
@given(limited_histories())
def test_as_pods_of_a_namespace_end_those_that_wait_follow(steps: list[Step]) -> None:
    """Whoever waits for a quota is asked again as soon as a new engine would find a place."""
    ledger = Ledger()
    follow(ledger, steps)
    ledger.settle()
    for uid in [uid for uid, pod in ledger.state.pods.items() if pod.placement is not None]:
        follow(ledger.gone(uid), [Decide()])


@SETTINGS
@given(limited_histories())
def test_what_namespaces_hold_is_what_a_walk_finds(steps: list[Step]) -> None:
    """Kept up by the pod, or counted anew from the state: the same."""
    ledger = Ledger()
    kept = Namespaces(ledger.state)
    for step in steps:
        if isinstance(step, Decide):
            events: list[Payload | None] = [*ledger.consider().events]
        else:
            events = [step.about(ledger.state) if isinstance(step, Effect) else step]
        for data in events:
            if data is not None:
                kept.observe(ledger.take(data))
    anew = Namespaces(ledger.state)
    for name in ("team", "web", "free"):
        assert kept.held(name) == anew.held(name)
