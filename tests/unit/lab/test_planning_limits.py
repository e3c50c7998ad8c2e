"""Tests of plans for pods that exceed a queue limit, and of how the plan reports the limit."""

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
    """A queue in the manifest applies to the plan's pods, and is listed as a change of the existing
    queue."""
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
    """A pod in an undeclared queue gets a warning with its line, unless the queue is `default` or
    in the manifest. A cluster without declared queues gets no warning."""
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
    """A Volcano job in an undeclared queue gets a warning at `spec.queue`."""
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
    """A gang larger than its queue's limit is `never`. The cause names the queue, not the fleet."""
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
    """The plan names a queue's limit on a device model as the cause of `never`."""
    cards_of = QueueObserved(queue="ml", cards={"H100": 1})
    ledger = Ledger(rack("n1", 4)).play(cards_of)
    answer = planned(ledger, draft("p", ask(1000), queue="ml"))
    assert only(answer).outcome == "never"
    golden({"p": only(answer).sentence})
    ledger.submit(pod("huge", ask(900_000)))
    both = planned(ledger, draft("p", ask(1000), queue="ml"), draft("q", ask(900_000)))
    assert [each.outcome for each in both.pods] == ["never", "never"]
