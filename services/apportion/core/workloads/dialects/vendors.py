"""Vendors whose devices HAMi or Volcano share and Apportion does not: their names are refused.

Taken as extended resources such a pod would wait for a node that offers the names, and on one where
HAMi's own plugin does, it would get no device, for nobody writes what that plugin reads. Names of
whole devices that a vendor's own plugin offers (`amd.com/gpu`, `aws.amazon.com/neuron`,
`enflame.com/gcu`, `metax-tech.com/gpu`, `vastaitech.com/va`, `birentech.com/gpu`) are such
resources, and stay so. The names are those of HAMi's `pkg/device` and of Volcano's device sharing.

Invariant: a name that a dialect claims under the configuration is nobody else's.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

from apportion.core.workloads.dialects.amounts import Container
from apportion.core.workloads.dialects.errors import ManifestError


class Vendor(NamedTuple):
    """A vendor, and what stands behind its domain in a name that only sharing knows.

    `endings`: such names begin with the model's.
    """

    name: str
    domain: str
    words: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()


VENDORS = (
    Vendor("Hygon", "hygon.com", ("dcunum", "dcumem", "dcucores")),
    Vendor(
        "Iluvatar",
        "iluvatar.ai",
        ("vgpu", "vcuda-memory", "vcuda-core"),
        ("-vgpu", ".vMem", ".vCore", ".vmem", ".vcore"),
    ),
    Vendor("MetaX", "metax-tech.com", ("sgpu", "vcore", "vmemory")),
    Vendor("Moore Threads", "mthreads.com", ("vgpu", "sgpu-memory", "sgpu-core")),
    Vendor(
        "Enflame",
        "enflame.com",
        ("drs-gcu", "gcu-memory", "gcu-core", "vgcu", "vgcu-percentage", "shared-gcu"),
    ),
    Vendor("Kunlunxin", "kunlunxin.com", ("vxpu", "vxpu-memory")),
    Vendor("AMD", "amd.com", ("gpumem", "gpucores")),
)

HAMI_PLUGINS = frozenset(("amd.com/gpu", "birentech.com/gpu", "vastaitech.com/va"))
"""Names that HAMi's own plugins offer too; they reject a pod that HAMi's scheduler did not bind."""


def vendor_of(resource: str) -> Vendor | None:
    """The vendor whose shared devices this name is about, if it is about any."""
    domain, _, word = resource.partition("/")
    for vendor in VENDORS:
        if domain == vendor.domain and (
            word in vendor.words or (vendor.endings and word.endswith(vendor.endings))
        ):
            return vendor
    return None


def refuse_others(
    containers: tuple[Container, ...], claimed: Collection[str]
) -> tuple[Container, ...]:
    """The same containers, none of which asks for shared devices of a vendor that we lack.

    Raises:
        ManifestError: names the vendor.
    """
    for container in containers:
        for name in (*container.limits, *container.requests):
            vendor = vendor_of(name)
            if vendor is not None and name not in claimed:
                kind: Literal["limits", "requests"]
                kind = "limits" if name in container.limits else "requests"
                raise ManifestError(
                    container.at(kind, name),
                    getattr(container, kind)[name],
                    f"is of a shared device ({vendor.name}), which Apportion does not do",
                    "leave the pod to the scheduler that does, or ask for a whole device by the "
                    "name that its vendor's plugin offers",
                )
    return containers
