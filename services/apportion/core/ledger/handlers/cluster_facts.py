"""What holds beside nodes and pods: gangs, quotas, volumes, policy, configuration, prices, rules.

The part of the fold that touches no node and places no pod. Invariant: the newest word on each of
these is the whole of it.
"""

from collections.abc import Callable
from typing import Any

from msgspec import structs

from apportion.core.configuration import ConfigurationError, check
from apportion.core.ledger.handlers.change import Change, Context, Refused
from apportion.core.ledger.handlers.evictions import budget_gone, budget_observed
from apportion.core.ledger.state import GroupState
from apportion_schemas import (
    BudgetGone,
    BudgetObserved,
    ConfigurationChanged,
    DifferenceFound,
    FormatEnabled,
    LedgerRebuilt,
    NamespaceGone,
    NamespaceObserved,
    PodGroupGone,
    PodGroupObserved,
    PolicyChanged,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    RevisionSetAside,
    VolumeClaimGone,
    VolumeClaimObserved,
)
from apportion_schemas.configuration import PolicyConfiguration


def _group_observed(context: Context, data: PodGroupObserved) -> Change:
    context.state.groups.setdefault(data.group, GroupState()).observed = data
    return Change(data)


def _group_gone(context: Context, data: PodGroupGone) -> Change:
    """Pods that it still has hold together as they did; it goes with the last of them."""
    group = context.state.groups.get(data.group)
    if group is not None and not group.pods:
        del context.state.groups[data.group]
    return Change(data)


def _queue_observed(context: Context, data: QueueObserved) -> Change:
    context.state.queues[data.queue] = data
    return Change(data)


def _quota_observed(context: Context, data: QuotaObserved) -> Change:
    context.state.quotas.setdefault(data.namespace, {})[data.quota] = data
    return Change(data)


def _quota_gone(context: Context, data: QuotaGone) -> Change:
    quotas = context.state.quotas.get(data.namespace, {})
    quotas.pop(data.quota, None)
    if not quotas:
        context.state.quotas.pop(data.namespace, None)
    return Change(data)


def _volume_claim_observed(context: Context, data: VolumeClaimObserved) -> Change:
    context.state.volume_claims.setdefault(data.namespace, {})[data.claim] = data
    return Change(data)


def _volume_claim_gone(context: Context, data: VolumeClaimGone) -> Change:
    claims = context.state.volume_claims.get(data.namespace, {})
    claims.pop(data.claim, None)
    if not claims:
        context.state.volume_claims.pop(data.namespace, None)
    return Change(data)


def _namespace_observed(context: Context, data: NamespaceObserved) -> Change:
    context.state.namespaces[data.namespace] = data
    return Change(data)


def _namespace_gone(context: Context, data: NamespaceGone) -> Change:
    context.state.namespaces.pop(data.namespace, None)
    return Change(data)


def _difference_found(context: Context, data: DifferenceFound) -> Change:
    state = context.state
    state.differences[data.kind] = state.differences.get(data.kind, 0) + 1
    if data.pod in state.pods:
        state.differing[data.pod] = data
    return Change(data)


def _ledger_rebuilt(context: Context, data: LedgerRebuilt) -> Change:
    if context.state.pods:
        raise Refused(f"the ledger has {len(context.state.pods)} pods, and so is not lost")
    return Change(data)


def _policy_changed(context: Context, data: PolicyChanged) -> Change:
    context.state.policy, context.state.policy_revision = data, context.revision
    return Change(data)


def _configuration_changed(context: Context, data: ConfigurationChanged) -> Change:
    """Take the whole document; a policy in it is a change of policy like any other."""
    state, policy = context.state, data.configuration.policy
    try:
        check(data.configuration)
    except ConfigurationError as error:
        raise Refused(str(error)) from None
    state.configuration, state.configuration_revision = data.configuration, context.revision
    if policy != PolicyConfiguration():
        state.policy_revision = context.revision
        state.policy = structs.replace(
            state.policy,
            by=data.by,
            reason=data.reason,
            node_policy=policy.nodes or state.policy.node_policy,
            device_policy=policy.devices or state.policy.device_policy,
            node_weights=policy.weights or state.policy.node_weights,
        )
    return Change(data)


def _prices_learnt(context: Context, data: PricesLearnt) -> Change:
    context.state.prices, context.state.prices_revision = data, context.revision
    return Change(data)


def _format_enabled(context: Context, data: FormatEnabled) -> Change:
    refused = context.state.rules.enable(context.revision, data)
    if refused:
        raise Refused(refused)
    return Change(data)


def _revision_set_aside(context: Context, data: RevisionSetAside) -> Change:
    """It was passed over when its turn came; who did not know that then begins anew."""
    refused = context.state.rules.heed(context.revision, data)
    if refused:
        raise Refused(refused)
    return Change(data)


CLUSTER_FACTS: dict[type, Callable[[Context, Any], Change]] = {
    PodGroupObserved: _group_observed,
    PodGroupGone: _group_gone,
    QueueObserved: _queue_observed,
    QuotaObserved: _quota_observed,
    QuotaGone: _quota_gone,
    BudgetObserved: budget_observed,
    BudgetGone: budget_gone,
    NamespaceObserved: _namespace_observed,
    NamespaceGone: _namespace_gone,
    VolumeClaimObserved: _volume_claim_observed,
    VolumeClaimGone: _volume_claim_gone,
    DifferenceFound: _difference_found,
    LedgerRebuilt: _ledger_rebuilt,
    PolicyChanged: _policy_changed,
    PricesLearnt: _prices_learnt,
    ConfigurationChanged: _configuration_changed,
    FormatEnabled: _format_enabled,
    RevisionSetAside: _revision_set_aside,
}
"""The handler of each type of event that is about the whole."""
