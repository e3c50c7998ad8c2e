"""A service that is started with DRA exits with an error if the API server lacks a DRA feature."""

from pathlib import Path

import pytest

from apportion.runtime.service.lifecycle import EXIT_CONFIG
from tests.support.control_plane import DRA_SINCE, ControlPlane, binaries
from tests.support.nats import running_bus
from tests.support.processes import ServiceProcess


@pytest.mark.parametrize(
    ("option", "verb", "named"),
    [
        ("--runtime-config=resource.k8s.io/v1=false", "watcher", "has no resource.k8s.io/v1"),
        ("--runtime-config=resource.k8s.io/v1=false", "binder", "has no resource.k8s.io/v1"),
        ("--feature-gates=DRAConsumableCapacity=false", "binder", "DRAConsumableCapacity off"),
        ("--feature-gates=DRAPartitionableDevices=false", "binder", "DRAPartitionableDevices off"),
    ],
)
async def test_an_api_server_that_lacks_it_is_refused_by_name(
    control_plane: ControlPlane, tmp_path: Path, option: str, verb: str, named: str
) -> None:
    """A service started with `--dra` exits as for a wrong setting if the API server lacks DRA.

    Its error names the missing feature, the API server's version and the fix."""
    if control_plane.version < DRA_SINCE:
        pytest.skip("this version has none of it anyway")
    plane = ControlPlane(binaries(), tmp_path / "plane", whole=True, options=(option,))
    try:
        plane.start()
        async with running_bus(tmp_path / "nats") as bus:
            kube = ("--kubeconfig", str(plane.kubeconfig), "--dra")
            service = ServiceProcess(verb, bus.server.url_for(verb), *kube)
            async with service:
                assert await service.ended() == EXIT_CONFIG
            said = " ".join(str(line) for line in service.log)
    finally:
        plane.stop()
    assert named in said
    assert f"Kubernetes {control_plane.version[0]}.{control_plane.version[1]}" in said
    assert "dra.enabled" in said
