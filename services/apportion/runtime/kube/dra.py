"""Whether an API server has what DRA is built on here, asked before anything else is.

Invariant: where it has not, the service does not start, and says which version or feature gate it
would take.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.process.clock import BackOff, Clock
from apportion.runtime.process.config import ConfigError

API: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{API}/resourceclaims"
SLICES: Final = f"{API}/resourceslices"
_BACK_OFF: Final = BackOff(0.5, 10.0)
_NOT_FOUND: Final = 404
_INVALID: Final = 422
_OFF: Final = "leave --dra (dra.enabled of the chart) off"


class _Version(Struct, frozen=True, rename="camel"):
    git_version: str = ""
    major: str = ""
    minor: str = ""


async def require_dra(api: KubeApi, clock: Clock) -> None:
    """Return where the API server has resource.k8s.io/v1; one that does not answer is waited for.

    Raises:
        ConfigError: it has not.
    """
    failures = 0
    while True:
        try:
            await api.get(API)
        except KubeUnavailable:
            failures += 1
            await clock.pause(_BACK_OFF.after(failures))
        except KubeRefused as error:
            if error.status != _NOT_FOUND:
                raise
            raise ConfigError(
                "--dra",
                f"on Kubernetes {await _version(api)}",
                "which has no resource.k8s.io/v1: that came with 1.34. Upgrade Kubernetes, or "
                f"{_OFF}",
            ) from None
        else:
            return


async def require_gates(api: KubeApi, sample: dict[str, Any], gates: dict[str, str]) -> None:
    """Have a slice made in a dry run, and see what is left of it.

    `gates` has each feature gate by the path of a field that the server drops without it.

    Raises:
        ConfigError: names the gates that are off.
        KubeUnavailable, KubeRefused: the server does not say.
    """
    answer = await api.request(
        "POST", SLICES, query={"dryRun": "All"}, body=msgspec.json.encode(sample)
    )
    if answer.status == _INVALID:
        raise ConfigError(
            "--dra",
            f"on Kubernetes {await _version(api)}",
            f"which does not take such ResourceSlices ({answer.refusal().message}). Upgrade "
            f"Kubernetes, or {_OFF}",
        )
    if not answer.ok:
        raise answer.refusal()
    made = msgspec.json.decode(answer.body)
    off = [gate for path, gate in gates.items() if not _has(made, path.split("."))]
    if off:
        raise ConfigError(
            "--dra",
            f"on Kubernetes {await _version(api)}",
            f"which has the feature gate {' and '.join(off)} off. Switch it on in kube-apiserver "
            f"and the kubelets (1.36 has it on), or {_OFF}",
        )


async def _version(api: KubeApi) -> str:
    said = msgspec.json.decode(await api.get("/version"), type=_Version)
    return said.git_version.removeprefix("v") or f"{said.major}.{said.minor}"


def _has(found: Any, path: list[str]) -> bool:
    """Whether anything is at the path; a list is looked into."""
    if isinstance(found, list):
        return any(_has(each, path) for each in found)
    if not path:
        return found is not None
    return isinstance(found, dict) and path[0] in found and _has(found[path[0]], path[1:])
