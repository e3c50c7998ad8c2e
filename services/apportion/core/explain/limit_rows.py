"""Queues and quotas, put into answers: what each limits, and how much of that is held.

Amounts are in the units of the event that set the limit: CPU in thousandths, memory in MiB. What is
held is counted as the scheduler counts it, of the pods of what is answered alone. Invariant: of
what is not limited only the devices of queues are counted, so that a cluster without queues and
quotas costs nothing here.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from apportion.core.answers.reads import QueueAnswer, QuotaAnswer
from apportion.core.ledger.belonging import queue_of
from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.placement.limits.quotas import (
    EXTENDED,
    Amount,
    Amounts,
    amounts_by_name,
    of_devices,
    of_shares,
)
from apportion.core.workloads.dialects.names import dialect_config
from apportion.core.workloads.kinds.limits import OF_CLAIMS
from apportion_schemas import Shape, Share

Taken = Callable[[Shape, Iterable[Share], NodeState], Amounts]


def queue_answers(state: State, names: Iterable[str]) -> tuple[QueueAnswer, ...]:
    """These queues; costs a look at each live pod, if there are any queues."""
    queues = [state.queues[name] for name in names]
    pods: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in state.pods.values() if queues else ():
        pods[queue_of(state, pod)].append(pod)
    known = amounts_by_name(dialect_config(state.configuration))
    return tuple(
        QueueAnswer(
            queue=each.queue,
            weight=each.weight,
            open=each.open,
            capability=each.capability,
            used=used(
                {name: known.get(name, ((EXTENDED, name), 1)) for name in each.capability},
                held_by(state, pods[each.queue] if each.capability else (), of_shares),
            ),
            cards=each.cards,
            devices=_by_model(state, pods[each.queue]),
            pods=sum(pod.placement is not None for pod in pods[each.queue]),
            waiting=sum(pod.placement is None for pod in pods[each.queue]),
        )
        for each in queues
    )


def quota_answers(state: State, names: Iterable[tuple[str, str]]) -> tuple[QuotaAnswer, ...]:
    """The quotas of these namespaces and names; costs a look at each live pod, if there are any."""
    quotas = [state.quotas[namespace][name] for namespace, name in names]
    wanted = {each.namespace for each in quotas}
    pods: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in state.pods.values() if wanted else ():
        if pod.submitted.namespace in wanted:
            pods[pod.submitted.namespace].append(pod)
    held = {name: held_by(state, pods[name], of_devices) for name in wanted}
    known = amounts_by_name(dialect_config(state.configuration))
    return tuple(
        QuotaAnswer(
            namespace=each.namespace,
            quota=each.quota,
            hard=each.hard,
            used=used(counted_devices(known, each.hard), held[each.namespace]),
            of_kubernetes=each.version > 0,
        )
        for each in quotas
    )


def counted_devices(
    known: Mapping[str, tuple[Amount, int]], hard: Iterable[str]
) -> dict[str, tuple[Amount, int]]:
    """What is counted under the names of a quota, of those that are of devices."""
    found = {}
    for name in hard:
        resource = name
        for prefix in OF_CLAIMS:
            resource = resource.removeprefix(prefix)
        if resource in known:
            found[name] = known[resource]
    return found


def held_by(state: State, pods: Iterable[PodState], taken: Taken) -> Counter[Amount]:
    """What all of these hold that have places, as it is `taken` of a pod's shares."""
    held: Counter[Amount] = Counter()
    for pod in pods:
        if pod.placement is not None:
            node = state.nodes[pod.placement.node]
            held.update(taken(pod.submitted.shape, pod.placement.shares, node))
    return held


def _by_model(state: State, pods: Iterable[PodState]) -> dict[str, int]:
    """How many devices of each model the pods hold all or a part of."""
    held = {
        share.device: state.nodes[pod.placement.node].by_id[share.device].device.model
        for pod in pods
        if pod.placement is not None
        for share in pod.placement.shares
    }
    return dict(sorted(Counter(held.values()).items()))


def used(counted: Mapping[str, tuple[Amount, int]], held: Amounts) -> dict[str, int]:
    """Rounded up to whole units, as limits are compared."""
    return {name: -(-held.get(amount, 0) // unit) for name, (amount, unit) in counted.items()}
