"""Tests of which events the watcher would append ("facts"), from its view of the cluster and the
ledger's state."""

from typing import Any

import msgspec
import pytest

from apportion.core.workloads.adoption.placement_annotations import ATTEMPT
from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion.core.workloads.kinds.queues import CARD_QUOTA
from apportion.watcher.kubernetes.facts import Fact
from apportion.watcher.kubernetes.view import KAI_QUEUES
from apportion_schemas import (
    BudgetGone,
    BudgetObserved,
    DevicesRegistered,
    LabelExpression,
    Neighbour,
    NodeGone,
    NodeObserved,
    PodChanged,
    PodGone,
    PodRejected,
    PodSelector,
    PodSubmitted,
    PodTerm,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
)
from tests.support.fleet import gpu, node
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.unit.watcher.kubernetes.followed_cluster import Cluster


def test_a_pod_is_submitted_once_and_expects_a_subject_without_events() -> None:
    """The watcher submits a pod once. The ledger refuses the submission if the pod's subject
    already has an event."""
    cluster = Cluster()
    cluster.pod("p")
    (fact,) = cluster.pod_facts()
    assert isinstance(fact.data, PodSubmitted)
    assert (fact.event_id, fact.expect) == ("p/submitted", 0)
    cluster.write([fact])
    cluster.pod("p", version=2)
    assert cluster.pod_facts() == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"phase": "Succeeded"}, "Succeeded"),
        ({"phase": "Failed"}, "Failed"),
        ({"on": "n9"}, "bound to n9 without a placement in the ledger"),
    ],
)
def test_a_pod_ends_with_its_reason_and_expects_its_submission(
    fields: dict[str, Any], reason: str
) -> None:
    """When the watcher ends a pod, its event states the reason. The ledger refuses the event unless
    the pod's submission is the newest event on the pod's subject."""
    cluster = Cluster()
    cluster.pod("p")
    cluster.write(cluster.pod_facts())
    cluster.pod("p", version=2, **fields)
    (fact,) = cluster.pod_facts()
    assert isinstance(fact.data, PodGone)
    assert (fact.data.reason, fact.expect) == (reason, 1)


def test_what_changes_of_a_pod_is_told_once_and_expects_the_last_word_on_it() -> None:
    """The watcher reports each change of a pod's labels, scheduling gates or size once. Each report
    is fenced with the last revision of the pod's subject."""
    cluster = Cluster()
    cluster.pod("p", schedulingGates=[{"name": "g"}])
    cluster.write(cluster.pod_facts())
    assert cluster.ledger.pod("p").submitted.gates == ("g",)
    cluster.pod("p", version=2, labels={"app": "web"})
    (fact,) = cluster.pod_facts()
    assert fact.data == PodChanged(uid="p", labels={"app": "web"})
    assert (fact.event_id, fact.expect) == ("p/changed/1", 1)
    cluster.write([fact])
    assert cluster.pod_facts() == []
    cluster.pod("p", version=3, labels={"app": "web"}, resources={"requests": {"cpu": "2"}})
    (fact,) = cluster.pod_facts()
    assert (fact.data, fact.expect) == (
        PodChanged(uid="p", labels={"app": "web"}, cpu_milli=2000),
        2,
    )
    cluster.write([fact])
    cluster.pod("p", version=4, phase="Failed")
    (fact,) = cluster.pod_facts()
    assert (fact.data, fact.expect) == (PodGone(uid="p", reason="Failed"), 3)


def test_H3_a_bound_pod_that_gets_another_label_is_marked() -> None:
    """When our binder binds a pod, the watcher reports no change of the pod. It reports a label
    that is added later."""
    cluster = Cluster()
    cluster.ledger.play(node("n1", gpu("n1-g0")))
    cluster.pod("p")
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle().bound("p")
    notes = {ATTEMPT: "1"}
    cluster.pod("p", version=2, on="n1", annotations=notes)
    assert cluster.pod_facts() == []
    cluster.pod("p", version=3, on="n1", annotations=notes, labels={"app": "web"})
    (fact,) = cluster.pod_facts()
    assert fact.data == PodChanged(uid="p", labels={"app": "web"})


def test_a_pod_that_is_being_deleted_is_told_while_it_runs() -> None:
    """If a running pod is being deleted, the watcher reports it as terminating."""
    cluster = Cluster()
    cluster.ledger.play(node("n1", gpu("n1-g0")))
    cluster.see("nodes", kube_node("n1"))
    cluster.pod("p")
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle().bound("p")
    cluster.write(cluster.node_facts())
    notes = {ATTEMPT: "1"}
    cluster.pod("p", version=2, on="n1", annotations=notes)
    assert cluster.pod_facts() == []
    cluster.pod("p", version=3, on="n1", annotations=notes, deleted=True)
    (fact,) = cluster.pod_facts()
    assert fact.data == PodChanged(uid="p", terminating=True)
    cluster.write([fact])
    assert cluster.ledger.pod("p").terminating
    assert cluster.pod_facts() == []
    theirs: dict[str, Any] = {"schedulerName": "default-scheduler", "on": "n1", "limits": {}}
    cluster.pod("a", **theirs)
    cluster.pod("b", deleted=True, **theirs)
    (told,) = cluster.node_facts()
    assert isinstance(told.data, NodeObserved)
    assert sorted((each.count, each.terminating) for each in told.data.others) == [
        (1, False),
        (1, True),
    ]


def test_a_resize_downwards_frees_the_node_once_the_kubelet_reports_it() -> None:
    """If a pod is made smaller, its node gets the resources back only when the kubelet reports the
    resize."""
    cluster = Cluster()
    cluster.ledger.play(node("n1", gpu("n1-g0")))

    def see(version: int, cpu: str, status: str = "") -> list[Fact]:
        document = kube_pod("p", share() | {"cpu": cpu})
        document["metadata"]["annotations"] = {ATTEMPT: "1"}
        if status:
            document["spec"]["nodeName"] = "n1"
            given = {"name": "main", "resources": {"requests": {"cpu": status}}}
            document["status"] = {"phase": "Running", "containerStatuses": [given]}
        cluster.see("pods", document, version, "p")
        return cluster.pod_facts()

    cluster.write(see(1, "4"))
    cluster.ledger.settle().bound("p")
    assert see(2, "4", status="4") == []
    assert see(3, "1", status="4") == []
    (fact,) = see(4, "1", status="1")
    assert fact.data == PodChanged(uid="p", cpu_milli=1000)


def test_a_pod_that_this_watcher_has_not_seen_yet_is_not_gone() -> None:
    """The watcher does not report a pod as gone if it has not seen the pod yet."""
    cluster = Cluster()
    ahead = Cluster()
    ahead.pod("p")
    (fact,) = ahead.pod_facts()
    cluster.ledger.play(fact.data)
    cluster.view.mark(fact.data)
    assert cluster.pod_facts() == []
    cluster.view.audiences["pods"].listing()
    cluster.view.audiences["pods"].listed(9)
    (fact,) = cluster.pod_facts()
    assert isinstance(fact.data, PodGone)


def test_a_list_that_began_before_a_pod_was_known_says_nothing_of_it() -> None:
    """If a pod was submitted after the watcher began to list pods, the list may not contain the
    pod. The watcher then does not report the pod as gone."""
    cluster = Cluster()
    ahead = Cluster()
    ahead.pod("p")
    cluster.view.audiences["pods"].listing()
    cluster.ledger.play(ahead.pod_facts()[0].data)
    cluster.view.audiences["pods"].listed(9)
    assert cluster.pod_facts() == []
    assert cluster.view.unseen() == ["p"]


def test_what_the_ledger_placed_itself_is_not_taken_off_twice() -> None:
    """The watcher subtracts the requests of other schedulers' pods from the resources that it
    reports for a node. It does not subtract the requests of our own pods."""
    cluster = Cluster()
    cluster.ledger.report(node("n1", gpu("g0")))
    cluster.see("nodes", kube_node("n1"))
    cluster.pod("ours", limits={"cpu": "2"})
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle()
    cluster.pod("ours", version=5, limits={"cpu": "2"}, on="n1")
    cluster.pod("theirs", version=6, limits={"cpu": "3"}, on="n1", schedulerName="other")
    (fact,) = cluster.node_facts()
    assert isinstance(fact.data, NodeObserved)
    assert (fact.data.cpu_milli, fact.data.pods, fact.data.version) == (61_000, 109, 6)


def test_of_our_own_binding_nothing_follows_until_the_pod_ends() -> None:
    """When our binder binds a pod, the watcher ignores the watch event that this causes. It handles
    any other change of the pod."""
    cluster = Cluster()
    cluster.ledger.report(node("n1", gpu("g0")))
    cluster.pod("p")
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle()
    cluster.view.take()
    cluster.view.stirred.clear()
    cluster.pod("p", version=5, on="n1", annotations={ATTEMPT: "1"})
    assert not cluster.view.take()
    assert not cluster.view.stirred.is_set()
    cluster.pod("p", version=6, on="n1", annotations={ATTEMPT: "2"})
    assert list(cluster.view.take().pods) == ["p"]
    cluster.pod("p", version=7, on="n2", annotations={ATTEMPT: "1"})
    assert list(cluster.view.take().pods) == ["p"]
    cluster.pod("p", version=8, on="n1", annotations={ATTEMPT: "1"}, phase="Succeeded")
    assert cluster.view.stirred.is_set()
    (fact,) = cluster.pod_facts()
    assert fact.data == PodGone(uid="p", reason="Succeeded")


def test_a_foreign_pod_that_ended_gives_back_what_it_took() -> None:
    """When a pod of another scheduler ends, the watcher reports the resources of the pod's node
    again. The report has the resource version at which the pod ended."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"), version=1)
    theirs = {"limits": {"cpu": "3"}, "on": "n1", "schedulerName": "other"}
    cluster.pod("theirs", version=2, **theirs)
    cluster.write(cluster.node_facts())
    cluster.see("nodes", kube_node("n1", labels={"zone": "b"}), version=300)
    cluster.write(cluster.node_facts())
    cluster.pod("theirs", version=500, phase="Succeeded", **theirs)
    (fact,) = cluster.node_facts()
    assert isinstance(fact.data, NodeObserved)
    assert (fact.data.cpu_milli, fact.data.version) == (64_000, 500)


ANTI = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone"}
        ]
    }
}


def test_H2_pods_of_other_schedulers_are_told_with_their_node() -> None:
    """The watcher's report of a node has the labels, host ports and required anti-affinity of other
    schedulers' pods. It counts identical pods in one entry."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    theirs: dict[str, Any] = {"schedulerName": "default-scheduler", "on": "n1", "limits": {}}
    for uid in ("a", "b"):
        cluster.pod(uid, labels={"app": "db"}, **theirs)
    cluster.pod("guard", affinity=ANTI, hostNetwork=True, **theirs)
    cluster.pod("ours", on="n1")
    (fact,) = cluster.node_facts()
    away = PodTerm(
        pods=PodSelector(
            expressions=(LabelExpression(key="app", operator="In", values=("web",)),),
            namespaces=("default",),
        ),
        topology_key="zone",
    )
    assert isinstance(fact.data, NodeObserved)
    assert fact.data.others == (
        Neighbour(namespace="default", anti_affinity=(away,)),
        Neighbour(namespace="default", labels={"app": "db"}, count=2),
        Neighbour(namespace="default"),
    )
    cluster.write([fact])
    cluster.pod("b", version=2, labels={"app": "web"}, **theirs)
    (fact,) = cluster.node_facts()
    assert isinstance(fact.data, NodeObserved)
    assert [each.labels for each in fact.data.others] == [{}, {"app": "db"}, {"app": "web"}, {}]


def test_a_watcher_that_lags_says_nothing_of_a_node() -> None:
    """If the watcher has an older version of a node than the ledger, it reports nothing about the
    node."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"), version=5)
    (fact,) = cluster.node_facts()
    newer = msgspec.structs.replace(fact.data, cpu_milli=1, version=9)
    cluster.ledger.play(newer)
    cluster.see("nodes", kube_node("n1"), version=7)
    assert cluster.node_facts() == []
    cluster.see("nodes", kube_node("n1"), version=10)
    assert len(cluster.node_facts()) == 1


def test_a_node_that_left_is_gone_once() -> None:
    """If a node is removed from Kubernetes, the watcher reports it as gone, once."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    cluster.write(cluster.node_facts())
    cluster.ledger.report(node("agent-only", gpu("g0")))
    cluster.view.audiences["nodes"].listing()
    cluster.view.audiences["nodes"].listed(9)
    facts = cluster.node_facts()
    assert [fact.data for fact in facts] == [NodeGone(node="n1")]
    cluster.write(facts)
    assert list(cluster.facts.nodes(cluster.view.everything().nodes)) == []


def test_what_a_plugin_registered_is_reported_as_it_changes_and_when_it_goes() -> None:
    """The watcher reports the devices in a node's annotation once, and again when they change. When
    the annotation is removed, the watcher reports that there are no devices."""
    entry = '[{"id":"GPU-a","count":10,"devmem":%d,"devcore":100,"type":"T4","health":true}]'

    def reported(version: int, memory_mib: int | None) -> list[DevicesRegistered]:
        document = kube_node("n1", allocatable={"nvidia.com/gpu": "10"})
        if memory_mib is not None:
            document["metadata"]["annotations"] = {
                "hami.io/node-nvidia-register": entry % memory_mib
            }
        cluster.see("nodes", document, version)
        facts = cluster.node_facts()
        cluster.write(facts)
        return [fact.data for fact in facts if isinstance(fact.data, DevicesRegistered)]

    cluster = Cluster()
    assert reported(1, None) == []
    (found,) = reported(2, 15_360)
    assert (found.plugin, [device.id for device in found.devices]) == ("hami", ["GPU-a"])
    assert reported(3, 15_360) == []
    (found,) = reported(4, 16_384)
    assert found.devices[0].memory_mib == 16_384
    assert reported(5, None) == [DevicesRegistered(node="n1", version=5)]
    assert not cluster.ledger.node("n1").devices


def test_a_rejected_pod_that_is_mended_expects_its_rejection() -> None:
    """The watcher rejects an invalid pod once. When the pod is corrected, the watcher submits it
    and fences the event with the revision of the rejection."""
    cluster = Cluster()
    note = {"volcano.sh/vgpu-mode": "teleport"}
    cluster.pod("p", annotations=note)
    (fact,) = cluster.pod_facts()
    assert isinstance(fact.data, PodRejected)
    cluster.write([fact])
    cluster.pod("p", version=2, annotations=note)
    assert cluster.pod_facts() == []
    cluster.pod("p", version=3)
    (fact,) = cluster.pod_facts()
    assert isinstance(fact.data, PodSubmitted)
    assert fact.expect == 1


def test_a_queue_whose_quota_cannot_be_read_stays_as_it_was() -> None:
    """If a queue's device quota is unreadable, the queue's other limits stay in effect. The watcher
    reports the problem until it is fixed."""
    cluster = Cluster()
    document: dict[str, Any] = {
        "metadata": {"name": "ml", "namespace": ""},
        "spec": {"capability": {"pods": "2"}},
    }
    cluster.see("queues", document)
    cluster.see(
        "queues",
        document | {"metadata": {"name": "ml", "namespace": "", "annotations": {CARD_QUOTA: "8"}}},
    )
    assert cluster.view.mirrors["queues"].entries["ml"].capability == {"pods": 2}
    assert CARD_QUOTA in cluster.view.problems["Queue ml"]
    cluster.see("queues", document)
    assert "Queue ml" not in cluster.view.problems


def test_a_queue_of_kai_counts_unless_volcano_has_its_name() -> None:
    """The watcher reads KAI's Queues too. If Volcano has a Queue of the same name, only Volcano's
    Queue counts. The watcher reports the problem until one of the two Queues is deleted."""
    cluster = Cluster()
    free = {"quota": 0, "limit": -1, "overQuotaWeight": 5}
    resources = {"cpu": free, "memory": free, "gpu": {**free, "quota": 2.5}}
    document: dict[str, Any] = {"metadata": {"name": "ml"}, "spec": {"resources": resources}}
    of_volcano: dict[str, Any] = {"metadata": {"name": "ml"}, "spec": {"weight": 3}}
    mirror = cluster.view.mirrors["queues"]

    def seen() -> QueueObserved:
        (queue,) = mirror.differences(mirror.take())
        assert isinstance(queue, QueueObserved)
        cluster.ledger.play(queue)
        return queue

    cluster.see(KAI_QUEUES, document)
    queue = seen()
    assert (queue.weight, queue.priority, queue.deserved) == (5, 100, {GPU_MILLI: 2500})
    cluster.see("queues", of_volcano)
    assert seen() == QueueObserved(queue="ml", weight=3)
    assert "Queues ml" in cluster.view.problems
    cluster.see(KAI_QUEUES, document)
    assert list(mirror.differences(mirror.everything())) == []
    assert "Queues ml" in cluster.view.problems
    cluster.view.audiences["queues"].gone(msgspec.json.encode(of_volcano))
    assert seen() == queue
    assert not cluster.view.problems


def kube_quota(name: str = "gpus", **hard: str) -> dict[str, Any]:
    """Return a ResourceQuota that limits CPU and these resources of HAMi."""
    limits = {f"limits.nvidia.com/{key}": much for key, much in hard.items()}
    return {"metadata": {"name": name}, "spec": {"hard": {"requests.cpu": "8", **limits}}}


def quota_facts(cluster: Cluster) -> list[Any]:
    """Append the watcher's events about quotas to the ledger, and return them."""
    facts = list(cluster.facts.mirrored(cluster.view.take()))
    cluster.write(facts)
    return [fact.data for fact in facts]


def test_a_quota_of_devices_is_told_as_it_changes_and_when_it_goes() -> None:
    """The watcher reports a device quota when it is created, changed or deleted. The limits in the
    report are whole numbers."""
    cluster = Cluster()
    cluster.see("resourcequotas", kube_quota(gpumem="20k", gpu="4"))
    hard = {"limits.nvidia.com/gpu": 4, "limits.nvidia.com/gpumem": 20_000}
    told = QuotaObserved(namespace="default", quota="gpus", hard=hard, version=1)
    assert quota_facts(cluster) == [told]
    cluster.see("resourcequotas", kube_quota(gpumem="30k"), version=2)
    hard = {"limits.nvidia.com/gpumem": 30_000}
    assert quota_facts(cluster) == [msgspec.structs.replace(told, hard=hard, version=2)]
    cluster.view.audiences["resourcequotas"].listing()
    cluster.view.audiences["resourcequotas"].listed(9)
    assert quota_facts(cluster) == [QuotaGone(namespace="default", quota="gpus")]
    assert cluster.ledger.state.quotas == {}


def test_a_quota_that_comes_to_say_nothing_of_devices_is_gone() -> None:
    """The watcher does not report a quota without device limits. If a quota loses its device
    limits, the watcher reports it as gone."""
    cluster = Cluster()
    cluster.see("resourcequotas", kube_quota())
    assert quota_facts(cluster) == []
    cluster.see("resourcequotas", kube_quota(gpu="4"), version=2)
    assert len(quota_facts(cluster)) == 1
    cluster.see("resourcequotas", kube_quota(), version=3)
    assert quota_facts(cluster) == [QuotaGone(namespace="default", quota="gpus")]


def test_what_the_api_server_counts_in_a_quota_is_no_change() -> None:
    """The watcher does not report a change of a quota's status."""
    cluster = Cluster()
    cluster.see("resourcequotas", kube_quota(gpu="4"))
    quota_facts(cluster)
    counted = kube_quota(gpu="4") | {"status": {"used": {"limits.nvidia.com/gpu": "1"}}}
    cluster.see("resourcequotas", counted, version=2)
    assert not cluster.view.take()


def test_a_watcher_that_lags_does_not_bring_an_old_quota_back() -> None:
    """The watcher does not report a version of a quota that is older than the ledger's."""
    cluster = Cluster()
    newer = QuotaObserved(namespace="default", quota="gpus", hard={"x/y": 1}, version=7)
    cluster.ledger.play(newer)
    cluster.see("resourcequotas", kube_quota(gpu="4"), version=5)
    assert quota_facts(cluster) == []
    cluster.see("resourcequotas", kube_quota(gpu="5"), version=8)
    assert len(quota_facts(cluster)) == 1


def test_a_quota_of_some_pods_only_is_a_problem_by_name() -> None:
    """A quota with scopes applies to some pods only. The watcher reports such a quota as a problem
    instead of applying it."""
    cluster = Cluster()
    document = kube_quota(gpu="4")
    document["spec"]["scopes"] = ["Terminating"]
    cluster.see("resourcequotas", document)
    assert quota_facts(cluster) == []
    problem = cluster.view.problems["ResourceQuota default/gpus"]
    assert problem.startswith("spec.scopes ")
    cluster.view.audiences["resourcequotas"].gone(msgspec.json.encode(document))
    assert cluster.view.problems == {}


def test_counts_of_objects_and_storage_are_no_devices() -> None:
    """The watcher does not mistake a quota's limits on storage or on numbers of objects for device
    limits."""
    cluster = Cluster()
    names = ("count/deployments.apps", "fast.storageclass.storage.k8s.io/requests.storage")
    document = {"metadata": {"name": "q"}, "spec": {"hard": dict.fromkeys(names, "1")}}
    cluster.see("resourcequotas", document)
    assert quota_facts(cluster) == []


def kube_budget(allowed: int = 1, **selector: Any) -> dict[str, Any]:
    """Return a PodDisruptionBudget that allows this number of evictions, for pods with these
    labels."""
    return {
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": selector or {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }


def budget_facts(cluster: Cluster) -> list[Any]:
    """Append the watcher's events about disruption budgets to the ledger, and return them."""
    facts = list(cluster.facts.mirrored(cluster.view.take()))
    cluster.write(facts)
    return [fact.data for fact in facts]


def test_a_disruption_budget_is_told_as_it_changes_and_when_it_goes() -> None:
    """The watcher reports a disruption budget when it is created, changed or deleted. It ignores
    irrelevant changes of the status."""
    cluster = Cluster()
    cluster.see("poddisruptionbudgets", kube_budget())
    app = (LabelExpression(key="app", operator="In", values=("web",)),)
    told = BudgetObserved(namespace="default", budget="web", selector=app, allowed=1, version=1)
    assert budget_facts(cluster) == [told]
    cluster.see("poddisruptionbudgets", kube_budget(), version=2)
    assert budget_facts(cluster) == []
    cluster.see("poddisruptionbudgets", kube_budget(0), version=3)
    assert budget_facts(cluster) == [msgspec.structs.replace(told, allowed=0, version=3)]
    cluster.view.audiences["poddisruptionbudgets"].listing()
    cluster.view.audiences["poddisruptionbudgets"].listed(9)
    assert budget_facts(cluster) == [BudgetGone(namespace="default", budget="web")]
    assert cluster.ledger.state.budgets == {}


def test_a_disruption_budget_that_cannot_be_read_is_a_problem_by_name() -> None:
    """If a disruption budget is unreadable, the watcher reports it as a problem instead of applying
    it."""
    cluster = Cluster()
    odd = {"key": "app", "operator": "Like", "values": ["w"]}
    cluster.see("poddisruptionbudgets", kube_budget(matchExpressions=[odd]))
    assert budget_facts(cluster) == []
    assert "Like" in cluster.view.problems["PodDisruptionBudget default/web"]
    cluster.see("poddisruptionbudgets", kube_budget(), version=2)
    assert cluster.view.problems == {}
