"""Apply events about cluster-wide facts, such as gangs, quotas, policy and prices.

These events change no node and place no pod. Invariant: the newest event about an object replaces
all earlier facts about that object."""

from typing import Final

from msgspec import structs

from apportion.core.configuration import check
from apportion.core.ledger.handlers import idle, past_use
from apportion.core.ledger.handlers.change import Change, Context, Refused, folds
from apportion.core.workloads.document import ManifestError
from apportion_schemas import (
    BudgetGone,
    BudgetObserved,
    ConfigurationChanged,
    DifferenceFound,
    FormatEnabled,
    LedgerRebuilt,
    LimitsChecked,
    NamespaceGone,
    NamespaceObserved,
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

CHECKED_MAX: Final = 10_000  # limits whose newest check the state keeps


@folds(QueueObserved)
def _queue_observed(context: Context, data: QueueObserved) -> Change:
    context.state.queues[data.queue] = data
    return Change(data)


# For each namespaced object: the payload's field with its name, and the state's map.
_OF_NAMESPACES: dict[type, tuple[str, str]] = {
    QuotaObserved: ("quota", "quotas"),
    QuotaGone: ("quota", "quotas"),
    BudgetObserved: ("budget", "budgets"),
    BudgetGone: ("budget", "budgets"),
    VolumeClaimObserved: ("claim", "volume_claims"),
    VolumeClaimGone: ("claim", "volume_claims"),
}


@folds(QuotaObserved, BudgetObserved, VolumeClaimObserved)
def _object_observed(
    context: Context, data: QuotaObserved | BudgetObserved | VolumeClaimObserved
) -> Change:
    name, kind = _OF_NAMESPACES[type(data)]
    getattr(context.state, kind).setdefault(data.namespace, {})[getattr(data, name)] = data
    return Change(data)


@folds(QuotaGone, BudgetGone, VolumeClaimGone)
def _object_gone(context: Context, data: QuotaGone | BudgetGone | VolumeClaimGone) -> Change:
    name, kind = _OF_NAMESPACES[type(data)]
    by_namespace = getattr(context.state, kind)
    objects = by_namespace.get(data.namespace, {})
    objects.pop(getattr(data, name), None)
    if not objects:
        by_namespace.pop(data.namespace, None)
    return Change(data)


@folds(LimitsChecked)
def _limits_checked(context: Context, data: LimitsChecked) -> Change:
    checked, name = context.state.limits_checked, f"{data.kind}/{data.name}"
    checked.pop(name, None)  # the newest is last
    checked[name] = context.revision
    if len(checked) > CHECKED_MAX:
        del checked[next(iter(checked))]
    return Change(data)


@folds(NamespaceObserved)
def _namespace_observed(context: Context, data: NamespaceObserved) -> Change:
    context.state.namespaces[data.namespace] = data
    return Change(data)


@folds(NamespaceGone)
def _namespace_gone(context: Context, data: NamespaceGone) -> Change:
    context.state.namespaces.pop(data.namespace, None)
    return Change(data)


@folds(DifferenceFound)
def _difference_found(context: Context, data: DifferenceFound) -> Change:
    state = context.state
    state.differences[data.kind] = state.differences.get(data.kind, 0) + 1
    if data.pod in state.pods:
        state.differing[data.pod] = data
    return Change(data)


@folds(LedgerRebuilt)
def _ledger_rebuilt(context: Context, data: LedgerRebuilt) -> Change:
    if context.state.pods:
        raise Refused(f"the ledger has {len(context.state.pods)} pods, and so is not lost")
    return Change(data)


@folds(PolicyChanged)
def _policy_changed(context: Context, data: PolicyChanged) -> Change:
    context.state.policy, context.state.policy_revision = data, context.revision
    return Change(data)


@folds(ConfigurationChanged)
def _configuration_changed(context: Context, data: ConfigurationChanged) -> Change:
    state, policy = context.state, data.configuration.policy
    try:
        check(data.configuration)
    except ManifestError as error:
        raise Refused(str(error)) from None
    before = state.configuration
    state.configuration, state.configuration_revision = data.configuration, context.revision
    past_use.configure(state, context.time)
    idle.configure(state, before.idle)
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


@folds(PricesLearnt)
def _prices_learnt(context: Context, data: PricesLearnt) -> Change:
    context.state.prices, context.state.prices_revision = data, context.revision
    return Change(data)


@folds(FormatEnabled)
def _format_enabled(context: Context, data: FormatEnabled) -> Change:
    refused = context.state.rules.enable(context.revision, data)
    if refused:
        raise Refused(refused)
    return Change(data)


@folds(RevisionSetAside)
def _revision_set_aside(context: Context, data: RevisionSetAside) -> Change:
    refused = context.state.rules.heed(context.revision, data)
    if refused:
        raise Refused(refused)
    return Change(data)
