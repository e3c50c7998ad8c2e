"""Tests that devices of every vendor whose devices HAMi shares are served."""

import pytest

from apportion.core.workloads.dialects.listing import claims
from apportion.core.workloads.dialects.names import DialectConfig
from tests.support.manifests import container, draft, pod


@pytest.mark.parametrize(
    "resource",
    [
        "amd.com/gpumem", "aws.amazon.com/neuroncore", "birentech.com/gpu", "cambricon.com/vmlu",
        "enflame.com/drs-gcu", "enflame.com/vgcu-percentage", "hygon.com/dcunum",
        "iluvatar.ai/MR-V100-vgpu", "kunlunxin.com/vxpu", "kunlunxin.com/xpu",
        "metax-tech.com/gpu", "metax-tech.com/sgpu", "mthreads.com/vgpu", "vastaitech.com/va",
    ],
)  # fmt: skip
def test_G11_devices_that_hami_shares_are_served(resource: str) -> None:
    """A resource of any vendor whose devices HAMi shares requests a device, not an extended
    resource."""
    assert resource in claims(DialectConfig())


def test_G11_other_devices_of_a_vendors_own_plugin_are_extended_resources() -> None:
    """A device that HAMi does not share counts as an extended resource of the node."""
    found = draft(pod(containers=[container(limits={"iluvatar.ai/gpu": 2})]))
    assert found.shape.node.extended == {"iluvatar.ai/gpu": 2}
