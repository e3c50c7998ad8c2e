"""What was planned is what then happens, whatever the cluster has been through."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.explain.plans import PlannedPod
from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import PodState
from apportion.core.manifests import PodDraft, submitted
from apportion.lab.changes import Changes
from apportion.lab.planning import Plan, plan
from apportion_schemas import PodEvicted, PodGone, PodSubmitted, PolicyChanged
from tests.properties.core_histories import Step, submissions, trying
from tests.properties.core_playing import follow
from tests.properties.crowded_histories import crowded_histories
from tests.support.ledger_of import Ledger

DECISIONS_MAX = 200
POLICIES = ("", "binpack", "spread", "bestfit")


def drafts(pods: list[PodSubmitted]) -> tuple[PodDraft, ...]:
    """These pods as a manifest would give them, each under a name of its own."""
    fields = set(PodDraft.__struct_fields__) & set(PodSubmitted.__struct_fields__)
    return tuple(
        PodDraft(**{name: getattr(pod, name) for name in fields} | {"name": f"new-{number}"})
        for number, pod in enumerate(pods)
    )


def happen(ledger: Ledger) -> list[str]:
    """Decide until nothing is left to say; whoever is evicted goes, and they are returned."""
    gone: list[str] = []
    for _ in range(DECISIONS_MAX):
        events = ledger.decide()
        if not events:
            return gone
        for event in events:
            if isinstance(event, PodEvicted):
                gone.append(f"{event.namespace}/{event.name} for {event.beneficiary_name}")
                ledger.play(PodGone(uid=event.pod))
    raise AssertionError("the engine never falls silent")


def agree(planned: PlannedPod, pod: PodState | None) -> None:
    """The same place and the same shares, or none."""
    if pod is None or pod.placement is None:
        assert planned.outcome in {"not-now", "never"}, planned.sentence
        return
    assert planned.outcome == "fits", planned.sentence
    assert planned.placed is not None
    assert planned.node == pod.placement.node
    assert tuple(held.share for held in planned.placed.shares) == pod.placement.shares


@trying(60)
@given(
    crowded_histories(),
    st.lists(submissions(), min_size=1, max_size=6),
    st.sampled_from(POLICIES),
)
def test_what_was_planned_then_happens(
    steps: list[Step], wanted: list[PodSubmitted], policy: str
) -> None:
    """Pods of any shape, gang, priority and queue, with another policy or the same."""
    ledger = Ledger()
    follow(ledger, steps)
    pods = drafts(wanted)
    before = digest(ledger.state)
    answer = plan(ledger.state, Plan(pods=pods, changes=Changes(policy=policy)))
    assert digest(ledger.state) == before, "a plan leaves the state as it was"
    gone = happen_with(ledger, pods, policy)
    for number, planned in enumerate(answer.pods):
        agree(planned, ledger.state.pods.get(f"planned-{number}"))
    evicted = [f"{each.namespace}/{each.pod} for {each.beneficiary}" for each in answer.evicted]
    assert evicted == gone


def happen_with(ledger: Ledger, pods: tuple[PodDraft, ...], policy: str) -> list[str]:
    """The pods are submitted, after the policy was changed where it is to be."""
    for uid in list(ledger.state.evictions):
        ledger.gone(uid)
    if policy:
        ledger.play(PolicyChanged(by="test", node_policy=policy, device_policy=policy))  # type: ignore[arg-type]
    for number, pod in enumerate(pods):
        ledger.submit(submitted(pod, f"planned-{number}"))
    return happen(ledger)
