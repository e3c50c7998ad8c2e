"""Tests of devices of vendors that Apportion does not support."""

import pytest
from msgspec import structs

from apportion.core.workloads.dialects.names import DialectConfig
from tests.support.manifests import container, draft, pod, refused


@pytest.mark.parametrize(
    ("resource", "vendor"),
    [
        ("iluvatar.ai/MR-V100-vgpu", "Iluvatar"),
        ("iluvatar.ai/BI-V150.vMem", "Iluvatar"),
        ("iluvatar.ai/vgpu", "Iluvatar"),
        ("iluvatar.ai/vcuda-core", "Iluvatar"),
        ("enflame.com/shared-gcu", "Enflame"),
        ("metax-tech.com/sgpu", "MetaX"),
        ("mthreads.com/vgpu", "Moore Threads"),
        ("mthreads.com/sgpu-memory", "Moore Threads"),
        ("enflame.com/vgcu-percentage", "Enflame"),
        ("enflame.com/drs-gcu", "Enflame"),
        ("kunlunxin.com/vxpu", "Kunlunxin"),
        ("amd.com/gpumem", "AMD"),
    ],
)
def test_G11_shared_devices_are_refused_by_their_vendor(resource: str, vendor: str) -> None:
    """A pod that requests part of an unsupported vendor's device is refused, and the error names
    the vendor."""
    error = refused(pod(containers=[container(limits={resource: 1})]))
    assert error.field == f'spec.containers[0].resources.limits["{resource}"]'
    assert vendor in error.problem


@pytest.mark.parametrize(
    "resource",
    [
        "amd.com/gpu", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "enflame.com/gcu",
        "kunlunxin.com/xpu", "metax-tech.com/gpu", "vastaitech.com/va", "birentech.com/gpu",
        "iluvatar.ai/gpu",
    ],
)  # fmt: skip
def test_G11_whole_devices_of_a_vendors_own_plugin_are_extended_resources(resource: str) -> None:
    """A whole device of an unsupported vendor counts as an extended resource of the node."""
    found = draft(pod(containers=[container(limits={resource: 2})]))
    assert found.shape.node.extended == {resource: 2}


def test_G11_a_name_that_the_configuration_gives_to_a_dialect_is_its() -> None:
    """If the configuration gives an unsupported vendor's resource name to a dialect, the name
    belongs to that dialect."""
    limits = {"nvidia.com/gpu": 1, "amd.com/gpumem": 3000}
    document = pod(containers=[container(limits=limits)])
    assert "AMD" in str(refused(document))
    renamed = structs.replace(DialectConfig().hami, memory="amd.com/gpumem")
    assert draft(document, hami=renamed).shape.asks[0].memory_mib == 3000
