"""Tests of the suggestions for a pod name that does not exist."""

import pytest

from apportion.cli.client.lookup import pods_meant
from apportion.core.answers.reads import PodAnswer


def answer(name: str, owner: str = "", group: str = "") -> PodAnswer:
    """Return the gateway's answer about a pod in the namespace `serving`."""
    return PodAnswer(
        namespace="serving", name=name, uid=name, phase="placed", owner=owner, group=group
    )


PODS = (
    answer("web-0", "Deployment/web"),
    answer("web-1", "Deployment/web"),
    answer("gang-worker-0", "Job/train", "serving/gang"),
    answer("both", "Deployment/both"),
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("web", "; it is a Deployment with pods serving/web-0, serving/web-1"),
        ("gang", "; it is a gang with pods serving/gang-worker-0"),
        ("train", "; it is a Job with pods serving/gang-worker-0"),
        ("both", "; did you mean serving/both?"),
        ("web-2", "; did you mean serving/web-1, serving/web-0?"),
        ("nothing-like-it", ""),
    ],
)
def test_the_name_of_what_made_pods_is_told_with_its_pods(name: str, said: str) -> None:
    """For an unknown pod name, the CLI suggests a pod of that name in another namespace. If there
    is none, it suggests the pods of a workload or gang of that name, or similar names."""
    assert pods_meant(name, PODS) == said
