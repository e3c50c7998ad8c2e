"""Tests of plans for pods that exceed the limit of their queue."""

import pytest

from apportion.core.answers.plans import PlanRequest
from apportion.lab.planning import plan, plan_of
from apportion_schemas import NodeConstraints, PodGroupObserved, QueueObserved
from tests.support.fleet import rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, shape
from tests.unit.lab.test_planning import draft, only, planned


def test_a_queue_of_the_manifest_counts(golden: Golden) -> None:
    """A queue in the manifest applies to the planned pods. The plan lists it as a change."""
    ledger = Ledger(rack("n1", 4))
    small = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: ml}
spec: {capability: {nvidia.com/gpu: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {scheduling.volcano.sh/queue-name: ml}}
spec:
  schedulerName: apportion
  containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]
"""
    answer = plan(ledger.state, plan_of(PlanRequest(manifest=small), ledger.state))
    assert answer.problems == ()
    assert len(answer.changes) == 1
    assert (only(answer).outcome, only(answer).without) == ("never", "fits")
    golden({
        "changes": answer.changes[0].words,
        "p needs 2 of 1": only(answer).sentence,
        "the plan": answer.sentence,
    })  # fmt: skip


def test_a_queue_that_nobody_declares_is_doubtful(golden: Golden) -> None:
    """If a pod's queue is undeclared, the plan's warning names the pod's line in the manifest. The
    queue `default` causes no warning, nor does a cluster without queues."""
    ledger = Ledger(rack("n1", 4))
    head = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  annotations:\n    {}: {}\n"
    spec = "spec: {schedulerName: apportion, containers: [{name: main, image: x}]}\n---\n"
    key = "scheduling.volcano.sh/queue-name"
    queues = ["trian", "default", "own", "trian"]
    text = "".join(head.format(f"p{i}", key, queue) + spec for i, queue in enumerate(queues))
    own = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: own}\n"
    request = PlanRequest(files={"f": text})
    assert plan_of(request, ledger.state).warnings == ()
    ledger.play(QueueObserved(queue="train"))
    first, second = plan_of(request, ledger.state).warnings
    field = f'metadata.annotations["{key}"]'
    assert first.startswith(f"f, line 6: {field}: ")
    assert second.startswith(f"f, line 22: {field}: ")
    (only_one,) = plan_of(PlanRequest(files={"f": text + own}), ledger.state).warnings
    golden({"trian": first, "own": second, "trian, and own is declared": only_one})


def test_a_queue_of_a_gang_is_doubtful_too() -> None:
    """If a Volcano Job's queue is undeclared, the plan warns about `spec.queue`."""
    ledger = Ledger(rack("n1", 4)).play(QueueObserved(queue="train"))
    template = "{spec: {schedulerName: volcano, containers: [{name: main, image: x}]}}"
    job = (
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j}\nspec:\n"
        f"  queue: other\n  tasks: [{{name: work, template: {template}}}]\n"
    )
    (said,) = plan_of(PlanRequest(files={"f": job}), ledger.state).warnings
    assert said.startswith("f, line 5: spec.queue: ")


@pytest.mark.parametrize(
    "capability",
    [{"volcano.sh/vgpu-number": 2}, {"docker.com/vcuda-memory": 11}, {"cpu": 2999}],
    ids=["cards", "memory", "CPU"],
)
def test_a_gang_that_its_queue_never_holds_is_no_fault_of_the_fleet(
    golden: Golden, capability: dict[str, int]
) -> None:
    """If a gang exceeds its queue's limit, its planned outcome is `never`. The cause names the
    queue, not the nodes."""
    ledger = Ledger(rack("n1", 4)).play(QueueObserved(queue="ml", capability=capability))
    told = PodGroupObserved(group="default/job", min_available=3, queue="ml")
    wants = shape(ask(1000), node=NodeConstraints(cpu_milli=1000))
    pods = [draft(f"w{index}", shape=wants, group="default/job") for index in range(3)]
    answer = planned(ledger, *pods, groups=(told,))
    assert {each.outcome for each in answer.pods} == {"never"}
    assert "fleet" not in answer.pods[0].sentence
    refused = answer.pods[0].refused
    assert refused is not None
    assert not refused.never
    (cause,) = refused.causes
    golden({"the plan": answer.sentence, "w0": answer.pods[0].sentence, "fix": cause.unblocked_by})
    larger = {name: most + 1 for name, most in capability.items()}
    ledger.play(QueueObserved(queue="ml", capability=larger))
    assert planned(ledger, *pods, groups=(told,)).outcome == "fits"


def test_a_limit_that_depends_on_the_device_is_named_all_the_same(golden: Golden) -> None:
    """If a queue's limit on a device model makes the outcome `never`, the plan names that limit."""
    cards_of = QueueObserved(queue="ml", cards={"H100": 1})
    ledger = Ledger(rack("n1", 4)).play(cards_of)
    answer = planned(ledger, draft("p", ask(1000), queue="ml"))
    assert only(answer).outcome == "never"
    golden({"p": only(answer).sentence})
    ledger.submit(pod("huge", ask(900_000)))
    both = planned(ledger, draft("p", ask(1000), queue="ml"), draft("q", ask(900_000)))
    assert [each.outcome for each in both.pods] == ["never", "never"]
