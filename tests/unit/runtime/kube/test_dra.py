"""Tests that the client refuses an API server with incomplete support of DRA. The error has the
server's version and names what is missing."""

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from apportion.binder.kubernetes.slices import Slices
from apportion.core.ledger.state import State
from apportion.runtime.kube.client import Answer, KubeRefused
from apportion.runtime.kube.examining import SLICES, require_dra
from apportion.runtime.process.config import ConfigError
from tests.simulation.clocks import SkewedClock
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi

CLOCK = SkewedClock(random.Random(1), skew_s=0.0)


class Gated(MemoryKube):
    """An API server that drops fields of devices, as it does if a feature gate is off."""

    def __init__(self, *drops: str, status: int = 201) -> None:
        super().__init__()
        self._drops = drops
        self._status = status

    def handle(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> Answer:
        """Drop the chosen fields of a new ResourceSlice, or refuse it with the chosen status."""
        if (method, path) != ("POST", SLICES):
            return super().handle(method, path, query=query, body=body, content_type=content_type)
        assert query == {"dryRun": "All"}
        if self._status >= 400:
            return Answer(self._status, status_body(self._status, "Invalid", "no such counter set"))
        said: dict[str, Any] = msgspec.json.decode(body or b"")
        for device in said["spec"]["devices"]:
            for name in self._drops:
                device.pop(name, None)
        return Answer(self._status, msgspec.json.encode(said))


async def test_an_old_api_server_is_refused_by_its_version() -> None:
    """For an API server that is too old, the error names the missing API, the required version and
    our setting."""
    with pytest.raises(ConfigError) as refused:
        await require_dra(MemoryKubeApi(MemoryKube()), CLOCK)
    said = str(refused.value)
    assert "--dra" in said
    assert "Kubernetes 1.21" in said
    assert "resource.k8s.io/v1" in said
    assert "1.34" in said
    assert "dra.enabled" in said


@pytest.mark.parametrize(
    ("field", "gate"),
    [
        ("allowMultipleAllocations", "DRAConsumableCapacity"),
        ("consumesCounters", "DRAPartitionableDevices"),
    ],
)
async def test_a_feature_gate_that_is_off_is_named(field: str, gate: str) -> None:
    """If the API server drops a field, the error names the feature gate that is off."""
    with pytest.raises(ConfigError, match=f"feature gate {gate} off"):
        await slices(Gated(field)).require()
    await slices(Gated()).require()


async def test_a_server_that_takes_no_such_slices_is_refused() -> None:
    """If the API server rejects our ResourceSlices, the error has its message."""
    with pytest.raises(ConfigError, match="no such counter set"):
        await slices(Gated(status=422)).require()


async def test_a_missing_permission_is_not_blamed_on_the_version() -> None:
    """If the API server does not permit the binder to create ResourceSlices, the error is that
    refusal and does not recommend an upgrade of Kubernetes."""
    with pytest.raises(KubeRefused) as refused:
        await slices(Gated(status=403)).require()
    assert refused.value.status == 403


def slices(server: MemoryKube) -> Slices:
    return Slices(MemoryKubeApi(server), State(), CLOCK)
