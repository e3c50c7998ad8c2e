"""Tests of VastAI accelerators where they differ from other whole devices."""

from tests.support.manifests import draft, pod, refused

COUNT = "vastaitech.com/va"


def test_mutex_is_refused_by_name() -> None:
    """A pod with the policy `mutex` is refused. The policy would reserve whole cards of several
    dies, which is not supported."""
    error = refused(pod({COUNT: 1}, {"hami.io/gpu-scheduler-policy": "binpack, mutex"}))
    assert error.field == 'metadata.annotations["hami.io/gpu-scheduler-policy"]'
    assert draft(pod({COUNT: 1}, {"hami.io/gpu-scheduler-policy": "binpack"})).shape.asks
