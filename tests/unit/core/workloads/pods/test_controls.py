"""Tests of HAMi-core controls, environment variables with which a container configures
HAMi-core."""

from tests.support.manifests import draft, pod

SHARE = {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}}


def test_the_ledger_hears_of_these_variables_and_of_no_other() -> None:
    """Only HAMi-core's controls are copied into the ledger, because other variables may be secrets.
    Values that are too long are dropped."""
    env = [
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"},
        {"name": "CUDA_DISABLE_CONTROL", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "LIBCUDA_LOG_LEVEL", "value": "x" * 65},
        {"name": "PASSWORD", "value": "secret"},
    ]
    found = draft(pod(containers=[{"name": "a", "image": "x", "resources": SHARE, "env": env}]))
    assert found.controls == {"a": {"GPU_CORE_UTILIZATION_POLICY": "force"}}


def test_containers_without_devices_have_nothing_to_say() -> None:
    """HAMi-core controls of a container without devices are ignored."""
    env = [{"name": "ACTIVE_OOM_KILLER", "value": "false"}]
    idle = {"name": "b", "image": "x", "env": env}
    found = draft(pod(containers=[{"name": "a", "image": "x", "resources": SHARE}, idle]))
    assert found.controls == {}
