"""What people wish to try, as they sent it, read into a plan."""

from __future__ import annotations

from itertools import chain

from apportion.core.answers.plans import PlanRequest
from apportion.core.configuration import manifest_config
from apportion.core.ledger.state import State
from apportion.lab.changes import Changes, WishInvalid
from apportion.lab.planning import PODS_MAX, Plan
from apportion.runtime.files.manifest_set import TooManyPods, read_wish, undeclared_queues
from apportion.runtime.files.manifests import read_manifest_text


def plan_of(request: PlanRequest, state: State) -> Plan:
    """The plan that somebody sent, read as the cluster of this state reads manifests.

    Raises:
        WishInvalid: it has too many pods.
    """
    texts = {**({"manifest": request.manifest} if request.manifest else {}), **request.files}
    found = chain.from_iterable(read_manifest_text(text, name) for name, text in texts.items())
    try:
        wish, problems = read_wish(found, manifest_config(state.configuration), most=PODS_MAX)
    except TooManyPods as error:
        raise WishInvalid("manifest", str(error), "plan for fewer") from None
    return Plan(
        pods=tuple(wish.pods),
        groups=tuple(wish.groups.values()),
        changes=Changes(
            lose=request.lose,
            drain=request.drain,
            add=request.add,
            policy=request.policy,
            limits=tuple(wish.limits),
        ),
        problems=tuple(map(str, problems)),
        warnings=(*wish.slips, *undeclared_queues(wish, state.queues)),
        passed_over=tuple(wish.passed_over),
    )
