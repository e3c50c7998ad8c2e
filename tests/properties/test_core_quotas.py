"""Property: in any history, no decision exceeds a namespace's quotas."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given

from apportion.core.ledger.state import State
from apportion.core.placement.limits.limits import Namespaces
from tests.properties.core_histories import Decide, Step, limited_histories, trying
from tests.properties.core_playing import certain, changes, fall_silent, follow
from tests.support.ledger_of import Ledger

SETTINGS = trying(60)
Held = dict[str, Counter[str]]


def held(state: State) -> Held:
    """Return how much of each resource every namespace uses, keyed by the resource names in its
    quotas."""
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
            elif device.family == "ascend310p":
                amounts["huawei.com/Ascend310P"] += 1
    return found


@contextmanager
def within_limits(state: State) -> Iterator[None]:
    """When the block ends, check that no event folded in it took a namespace beyond its quotas.

    Only namespaces whose usage increases in the block are checked."""
    before = held(state)
    yield
    for name, now in held(state).items():
        for quota in state.quotas.get(name, {}).values():
            for resource, most in quota.hard.items():
                grown = now[resource] > before.get(name, Counter())[resource]
                assert not grown or now[resource] <= most, f"{name} holds too much {resource}"


@SETTINGS
@given(limited_histories())
def test_no_decision_takes_a_namespace_beyond_its_quota(steps: list[Step]) -> None:
    """No decision exceeds a namespace's quota on devices, memory or cores."""
    follow(Ledger(), steps, within_limits)


@SETTINGS
@given(limited_histories())
def test_no_pod_is_missed_with_quotas(steps: list[Step]) -> None:
    """With quotas, the engine finishes deciding, and a new engine then finds no pod to place."""
    ledger = Ledger()
    follow(ledger, steps, within_limits)
    fall_silent(ledger)
    assert certain(ledger.consider()) == []


@SETTINGS
@given(limited_histories())
def test_pods_ending_in_a_namespace_wake_the_next(steps: list[Step]) -> None:
    """When a pod ends, the engine tries again the pods that exceeded the namespace's quotas."""
    ledger = Ledger()
    follow(ledger, steps, within_limits)
    ledger.settle()
    for uid in [uid for uid, pod in ledger.state.pods.items() if pod.placement is not None]:
        follow(ledger.gone(uid), [Decide()], within_limits)


@SETTINGS
@given(limited_histories())
def test_namespace_usage_equals_a_full_count(steps: list[Step]) -> None:
    """The usage of a namespace, updated with each change, equals a count over the whole state."""
    ledger = Ledger()
    kept = Namespaces(ledger.state)
    for change in changes(ledger, steps):
        kept.observe(change)
    anew = Namespaces(ledger.state)
    for name in ("team", "web", "free"):
        assert kept.held(name) == anew.held(name)
