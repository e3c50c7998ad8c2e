"""Test that an API server without complete DRA is refused with its version and what is missing."""

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from apportion.binder.kubernetes.slices import Slices
from apportion.core.ledger.state import State
from apportion.runtime.kube.client import Answer
from apportion.runtime.kube.examining import SLICES, require_dra
from apportion.runtime.process.config import ConfigError
from tests.simulation.clocks import SkewedClock
from tests.support.memory_kube import MemoryKube, status_body
from tests.support.memory_kube_api import MemoryKubeApi

CLOCK = SkewedClock(random.Random(1), skew_s=0.0)


class Gated(MemoryKube):
    """An API server that drops fields of devices, as it does with a feature gate off."""

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
        """Drop the configured fields from a new ResourceSlice, or refuse the slice with the
        configured status."""
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
    """The error for an old API server names the missing API, the required version and the
    setting."""
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
    """The error for a disabled feature gate names the gate, based on the field that the server
    drops."""
    with pytest.raises(ConfigError, match=f"feature gate {gate} off"):
        await slices(Gated(field)).require()
    await slices(Gated()).require()


async def test_a_server_that_takes_no_such_slices_is_refused() -> None:
    """The error for an API server that rejects Apportion's ResourceSlices contains the server's
    message."""
    with pytest.raises(ConfigError, match="no such counter set"):
        await slices(Gated(status=422)).require()


def slices(server: MemoryKube) -> Slices:
    """Return a publisher of ResourceSlices to this server."""
    return Slices(MemoryKubeApi(server), State(), CLOCK)
