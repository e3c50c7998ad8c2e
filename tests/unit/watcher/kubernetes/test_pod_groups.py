"""Tests of which events about PodGroups the watcher appends."""

from typing import Any

import msgspec
import pytest

from apportion.core.workloads.pods.gangs import (
    COSCHEDULING,
    KAI,
    KAI_GROUP,
    KAI_SKIPS,
    KUBERNETES,
    KUBERNETES_VERSIONS,
)
from apportion.watcher.kubernetes.pod_groups import GROUPS
from apportion_schemas import Configuration, PodGone, PodGroupGone, PodGroupObserved, PodSubmitted
from tests.support.fleet import observed
from tests.support.pods import member
from tests.unit.watcher.kubernetes.followed_cluster import Cluster


def pod_group(name: str = "job") -> dict[str, Any]:
    """Return a PodGroup that has not been admitted yet."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": 2}}


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_gang_that_never_gets_pods_is_forgotten_with_its_declaration(
    *, seen_before: bool
) -> None:
    """If the PodGroup of a gang without pods is deleted, the gang is removed, even if the watcher
    missed the deletion."""
    cluster = Cluster()
    cluster.see("podgroups", pod_group())
    cluster.write(list(cluster.facts.groups(cluster.view.take().others[GROUPS])))
    assert "default/job" in cluster.ledger.state.groups
    if not seen_before:
        cluster.view.pod_groups.declared.clear()
    cluster.view.audiences["podgroups"].listing()
    cluster.view.audiences["podgroups"].listed(9)
    (fact,) = cluster.facts.groups(cluster.view.take().others[GROUPS])
    assert fact.data == PodGroupGone(group="default/job")
    cluster.write([fact])
    assert cluster.ledger.state.groups == {}


def test_a_gang_with_pods_outlives_its_declaration() -> None:
    """If the PodGroup of a gang with pods is deleted, the watcher reports the deletion once. The
    gang is removed with its last pod. If a PodGroup of the same name is created before that, it
    declares a new gang."""
    cluster = Cluster()
    cluster.ledger.play(observed(version=1))
    cluster.see("podgroups", pod_group())
    cluster.write(list(cluster.facts.groups(cluster.view.take().others[GROUPS])))
    cluster.ledger.submit(member("m0", group="default/job"))
    cluster.view.audiences["podgroups"].listing()
    cluster.view.audiences["podgroups"].listed(9)
    (fact,) = cluster.facts.groups(cluster.view.take().others[GROUPS])
    assert fact.data == PodGroupGone(group="default/job")
    cluster.write([fact])
    deleted = cluster.ledger.state.revision
    assert list(cluster.facts.groups(["default/job"])) == []
    cluster.see("podgroups", pod_group())
    cluster.ledger.gone("m0")
    assert cluster.ledger.state.gangs_left == {"default/job": deleted}
    cluster.write(list(cluster.facts.groups(cluster.view.take().others[GROUPS])))
    cluster.ledger.submit(member("m1", group="default/job"))
    assert cluster.ledger.state.groups["default/job"].since == deleted


def test_a_gang_that_is_declared_again_at_once_is_new() -> None:
    """If a PodGroup is deleted and created again while the gang has pods, the watcher reports both
    the deletion and the new PodGroup."""
    cluster = Cluster()
    cluster.see("podgroups", pod_group())
    cluster.write(list(cluster.facts.groups(cluster.view.take().others[GROUPS])))
    cluster.ledger.submit(member("m0", group="default/job"))
    cluster.view.audiences["podgroups"].gone(msgspec.json.encode(pod_group()))
    cluster.see("podgroups", pod_group())
    reported = []
    while marked := cluster.view.take().others[GROUPS]:
        facts = list(cluster.facts.groups(marked))
        cluster.write(facts)
        reported += [type(fact.data) for fact in facts]
    assert reported == [PodGroupGone, PodGroupObserved]
    assert cluster.ledger.state.groups["default/job"].since == cluster.ledger.state.revision - 1


def test_a_gang_without_pods_loses_its_place_with_its_podgroup() -> None:
    """A gang whose pods are gone keeps its age while its PodGroup exists, and the watcher does not
    declare the gang again. When the PodGroup is deleted, the gang loses its age."""
    cluster = Cluster()
    cluster.ledger.play(observed(version=1))
    cluster.see("podgroups", pod_group())
    cluster.write(list(cluster.facts.groups(cluster.view.take().others[GROUPS])))
    cluster.ledger.submit(member("m0", group="default/job"))
    cluster.view.pod_groups.waiting.clear()
    cluster.ledger.gone(*cluster.ledger.state.pods)
    assert list(cluster.ledger.state.gangs_left) == ["default/job"]
    assert not cluster.view.pod_groups.concerns_us("default/job")
    cluster.view.audiences["podgroups"].listing()
    cluster.view.audiences["podgroups"].listed(9)
    assert cluster.view.pod_groups.concerns_us("default/job")
    (fact,) = cluster.facts.groups(cluster.view.take().others[GROUPS])
    assert fact.data == PodGroupGone(group="default/job")
    cluster.write([fact])
    assert cluster.ledger.state.gangs_left == {}


def test_the_end_of_a_pod_marks_its_gang() -> None:
    """When a pod of a gang ends, the watcher compares the gang with its PodGroup again, because the
    PodGroup may have been deleted before."""
    cluster = Cluster()
    cluster.ledger.submit(member("m0", group="default/job"))
    cluster.view.gone["m0"] = "deleted"
    cluster.view.take()
    (fact,) = cluster.facts.ends(["m0"])
    assert fact.data == PodGone(uid="m0", reason="deleted")
    assert list(cluster.view.take().others[GROUPS]) == ["default/job"]


def test_three_podgroups_of_one_name_are_three_gangs() -> None:
    """The watcher treats PodGroups of different APIs as different gangs, even if they have the same
    name. Only Volcano's PodGroups wait for our admission."""
    cluster = Cluster()
    kinds = {
        "podgroups": "",
        f"podgroups.{COSCHEDULING}": f"{COSCHEDULING}/",
        f"podgroups.v1beta1.{KUBERNETES}": f"{KUBERNETES}/",
    }
    for kind in kinds:
        cluster.see(kind, {"metadata": {"name": "job"}, "spec": {}})
    names = {kind: f"default/{part}job" for kind, part in kinds.items()}
    assert cluster.view.pod_groups.waiting == {"default/job"}
    cluster.write(list(cluster.facts.groups(names.values())))
    assert list(cluster.ledger.state.groups) == list(names.values())
    audience = cluster.view.audiences[f"podgroups.{COSCHEDULING}"]
    audience.listing()
    audience.listed(9)
    gone = [fact.data for fact in cluster.facts.groups(cluster.view.take().others[GROUPS])]
    assert gone == [PodGroupGone(group=names[f"podgroups.{COSCHEDULING}"])]


def test_a_gang_that_cannot_be_read_is_a_problem_until_it_is_gone() -> None:
    """The watcher reports an unreadable PodGroup as a problem until it is deleted."""
    cluster = Cluster()
    kind = f"podgroups.v1alpha3.{KUBERNETES}"
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": [{"name": "x"}]}
    document: dict[str, Any] = {"metadata": {"name": "g"}, "spec": gang}
    cluster.see(kind, document)
    assert "resourceClaims" in cluster.view.problems[f"PodGroup default/{KUBERNETES}/g"]
    cluster.view.audiences[kind].gone(msgspec.json.encode(document))
    assert cluster.view.problems == {}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_a_gang_of_kubernetes_is_read_in_every_version(version: str) -> None:
    """The watcher reads a PodGroup of Kubernetes itself in each supported API version."""
    cluster = Cluster()
    gang = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    document = {"metadata": {"name": "g"}, "spec": gang}
    cluster.see(f"podgroups.{version}.{KUBERNETES}", document)
    cluster.write(list(cluster.facts.groups(cluster.view.take().others[GROUPS])))
    (group,) = cluster.ledger.state.groups.values()
    assert group.observed is not None
    assert (group.observed.group, group.observed.min_available) == (f"default/{KUBERNETES}/g", 3)
    for absent in set(KUBERNETES_VERSIONS) - {version}:
        audience = cluster.view.audiences[f"podgroups.{absent}.{KUBERNETES}"]
        audience.listing()
        audience.listed(9)
    assert list(cluster.facts.groups(cluster.view.take().others[GROUPS])) == []


@pytest.mark.parametrize("served", [None, ("v2alpha2",), ()])
def test_I2_a_pod_waits_for_the_pod_grouper(served: tuple[str, ...] | None) -> None:
    """The watcher submits a pod of KAI's scheduler once KAI's pod-grouper has named the pod's
    PodGroup. If the pod-grouper skips the pod or the cluster lacks KAI's PodGroups, the watcher
    submits the pod at once, without a gang."""
    cluster = Cluster()
    cluster.reader.configure(Configuration(scheduler_names=("kai-scheduler",)))
    cluster.view.pod_groups.served = lambda _api: served
    cluster.pod("a", schedulerName="kai-scheduler")
    cluster.pod("b", schedulerName="kai-scheduler", annotations={KAI_SKIPS: "true"})
    alone = {fact.data.uid for fact in cluster.pod_facts() if isinstance(fact.data, PodSubmitted)}
    assert alone == ({"b"} if served != () else {"a", "b"})
    if served is None or served:
        cluster.pod("a", 2, schedulerName="kai-scheduler", annotations={KAI_GROUP: "pg-a"})
        (fact,) = cluster.pod_facts()
        assert isinstance(fact.data, PodSubmitted)
        assert fact.data.group == f"default/{KAI}/pg-a"
