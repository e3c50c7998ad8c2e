"""A pod as the API server has it now, for services that check a pod before they act on it."""

import msgspec

from apportion.runtime.kube.client import KubeApi, pod_path
from apportion_schemas.decoding import from_outside


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class PodNow(msgspec.Struct, frozen=True):
    """The fields of a pod that the services check before they act on it."""

    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def notes(self) -> dict[str, str]:
        """Return the pod's annotations; empty if it has none."""
        return self.metadata.annotations or {}


read_pod = from_outside(msgspec.json.Decoder(PodNow).decode)


async def find_pod(api: KubeApi, namespace: str, name: str) -> PodNow | None:
    """Return a pod, or None if there is none. Raises KubeUnavailable, KubeRefused."""
    body = await api.find(pod_path(namespace, name))
    return None if body is None else read_pod(body)
