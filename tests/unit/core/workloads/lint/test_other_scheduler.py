"""Tests of the warning about pods that name another scheduler."""

from typing import Any

import pytest

from apportion.core.configuration import manifest_config
from apportion.core.workloads.lint.checking import checked
from apportion.core.workloads.lint.typo_checks import left_elsewhere
from apportion.core.workloads.pods.template import DEFAULT_CONFIG
from apportion.core.workloads.schedulers import SchedulerNames
from apportion_schemas import Configuration
from tests.support.golden import Golden

WEBHOOK = "unless the webhook takes it"
POD_SPEC = {"containers": [{"name": "main", "image": "x"}]}


def pod(name: str | None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec(name)}


def spec(name: str | None) -> dict[str, Any]:
    """Return the spec of a pod with this `schedulerName`, or without one."""
    return POD_SPEC | ({} if name is None else {"schedulerName": name})


@pytest.mark.parametrize("name", [None, "", "apportion", "volcano", "hami-scheduler"])
def test_a_plain_pod_and_one_of_ours(name: str | None) -> None:
    """A pod without a scheduler name and a pod that names Apportion's scheduler get no warning."""
    assert not list(left_elsewhere(pod(name), SchedulerNames()))


@pytest.mark.parametrize(("name", "webhook"), [("default-scheduler", True), ("gpu-sched", False)])
def test_a_pod_of_another_scheduler(golden: Golden, name: str, webhook: bool) -> None:
    """A pod that names another scheduler causes a warning, because the webhook gives only pods of
    `default-scheduler` to Apportion."""
    ((field, why, *_),) = left_elsewhere(pod(name), SchedulerNames())
    assert field == "spec.schedulerName"
    assert why.startswith(f"{name} ")
    assert (WEBHOOK in why) == webhook
    assert "write apportion" in why
    assert ("schedulerNames" in why) != webhook
    golden({name: why})


def test_the_configuration_says_whose_are_ours() -> None:
    """If the configuration sets scheduler names, only these and extended schedulers count as
    Apportion's."""
    configuration = Configuration(
        scheduler_names=("shared",), extended_scheduler_names=("default-scheduler",)
    )
    names = manifest_config(configuration).schedulers
    assert not list(left_elsewhere(pod("shared"), names))
    assert not list(left_elsewhere(pod("default-scheduler"), names))
    ((_, why, *_),) = left_elsewhere(pod("volcano"), names)
    assert "write shared" in why


def test_it_is_told_where_it_stands_in_what_makes_pods() -> None:
    """If the pod is inside a controller such as a Volcano Job, the warning has the full path of its
    scheduler field."""
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"tasks": [
            {"name": "a", "replicas": 1, "template": {"spec": spec("apportion")}},
            {"name": "b", "replicas": 1, "template": {"spec": spec("other")}},
        ]},
    }  # fmt: skip
    (taken,) = checked(job, DEFAULT_CONFIG)
    assert taken.error is None
    assert [note.field for note in taken.notes] == ["spec.tasks[1].template.spec.schedulerName"]
    deep = {"metadata": {"schedulerName": "other"}, "spec": {"template": {"spec": spec("other")}}}
    ((field, *_),) = left_elsewhere(deep, SchedulerNames())
    assert field == "spec.template.spec.schedulerName"
