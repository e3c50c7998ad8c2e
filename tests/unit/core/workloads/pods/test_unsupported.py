"""Tests of pod fields that Apportion does not support. A field that could change a decision is
refused by name; all others are accepted."""

from typing import Any

import pytest

from apportion.core.workloads.kinds.drafts import submitted
from tests.support.manifests import container, draft, pod, read, refused, task, volcano_job


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"nodeName": "node-1"}, "nodeName"),
        ({"workloadRef": {"name": "w", "podGroup": "g"}}, "workloadRef"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resourceClaims"),
    ],
)
def test_pod_spec(spec: dict[str, Any], field: str) -> None:
    """An unsupported field is refused with its path, in a pod and in a pod template."""
    assert refused(pod(**spec)).field == f"spec.{field}"
    bad = task()
    bad["template"]["spec"] |= spec
    assert refused(volcano_job(bad)).field == f"spec.tasks[0].template.spec.{field}"


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": ""},
        {"affinity": {"podAffinity": {}, "podAntiAffinity": None}},
        {"topologySpreadConstraints": []},
        {"hostNetwork": True},
        {"hostNetwork": False, "containers": [container(ports=[{"containerPort": 80}])]},
        {"volumes": [{"emptyDir": {}}, {"configMap": {"name": "a"}}, {"nfs": {"server": "a"}}]},
        {"volumes": [], "resourceClaims": None},
    ],
)
def test_what_has_no_effect_is_let_through(spec: dict[str, Any]) -> None:
    """Empty fields, and volume types that every node supports, are accepted."""
    assert draft(pod(**spec)).name == "pod"


def test_claims_of_volumes_are_read_by_name() -> None:
    """The names of a pod's volume claims are read in order, each once. An ephemeral claim has the
    name that Kubernetes generates."""
    claims = [
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "again", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "a", "emptyDir": {}},
    ]
    assert submitted(draft(pod(volumes=claims)), "u").volume_claims == ("pod-scratch", "data")
    assert "is missing" in refused(pod(volumes=[{"persistentVolumeClaim": {}}])).problem


def test_claims_of_a_volcano_job_are_claims_of_its_pods() -> None:
    """Every pod of a Volcano Job mounts the claims that the Job names. A claim that the Job creates
    has a random name, so it is not read."""
    new = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volumes = [
        {"mountPath": "/x", "volumeClaimName": "data"}, {"mountPath": "/y", "volumeClaim": new},
        {"mountPath": "/z"},
    ]  # fmt: skip
    mounted = task(replicas=2)
    pods = [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}]
    mounted["template"]["spec"]["volumes"] = pods
    found = read(volcano_job(mounted, task(), volumes=volumes)).pods
    assert [each.volume_claims for each in found] == [("a", "data"), ("a", "data"), ("data",)]


def test_G8_what_a_task_may_not_say() -> None:
    """A Volcano Job is refused if one of its tasks has an unsupported field. The error has the
    task's index."""
    error = refused(volcano_job(task(), task(dependsOn={"name": ["master"]})))
    assert error.field == "spec.tasks[1].dependsOn"


def test_gangs_made_by_annotation() -> None:
    """A pod that declares a gang only by annotation is refused. Volcano would create the gang, but
    Apportion would start each pod alone."""
    error = refused(pod(None, {"scheduling.volcano.sh/group-min-member": "2"}))
    assert error.field == 'metadata.annotations["scheduling.volcano.sh/group-min-member"]'
    assert "create a PodGroup" in str(error)


@pytest.mark.parametrize(("value", "any_model"), [("any", True), ("one", False)])
def test_the_models_of_a_gang(value: str, *, any_model: bool) -> None:
    """An annotation of a gang's pods permits several device models. Other values are refused. The
    annotation has no effect without a gang."""
    key, gang = "apportion.dev/gang-models", {"scheduling.k8s.io/group-name": "train"}
    assert draft(pod(None, {key: value, **gang})).any_model is any_model
    assert not draft(pod(None, {key: value})).any_model
    assert refused(pod(None, {key: "all", **gang})).field == f'metadata.annotations["{key}"]'


@pytest.mark.parametrize("name", ["checkpoint-every", "eviction-notice"])
def test_durations_of_a_pod(name: str) -> None:
    """A pod may state its checkpoint interval and its eviction notice as durations. Other values
    are refused."""
    key = f"apportion.dev/{name}"
    found = draft(pod(None, {key: "15m1s"}))
    assert {found.checkpoint_s, found.notice_s} == {901, 0}
    for wrong in ("0", "0s", "30", "-5m", "soon", "", "9000h"):
        assert refused(pod(None, {key: wrong})).field == f'metadata.annotations["{key}"]'


def test_the_deadline_of_a_pod() -> None:
    """A pod may have a deadline from 1 s to the largest 32-bit number, as in Kubernetes. Other
    values are refused with their field."""
    assert draft(pod()).deadline_s == 0
    for seconds in (1, 2_147_483_647):
        assert draft(pod(activeDeadlineSeconds=seconds)).deadline_s == seconds
    for wrong in (0, -1, 2_147_483_648, "1h", 1.5):
        assert refused(pod(activeDeadlineSeconds=wrong)).field == "spec.activeDeadlineSeconds"


def test_a_pod_of_a_gang_may_also_name_its_members() -> None:
    """If a pod names its PodGroup, its annotation with the gang's size is accepted, because Volcano
    ignores it too."""
    notes = {"scheduling.volcano.sh/group-min-member": "2", "scheduling.k8s.io/group-name": "train"}
    assert draft(pod(None, notes)).group == "default/train"
