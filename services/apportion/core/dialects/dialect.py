"""What a dialect is: the names it claims, and what amounts under them mean."""

from collections.abc import Callable
from typing import NamedTuple

from apportion.core.dialects.container import Amounts, Container
from apportion_schemas import Ask


class Selecting(NamedTuple):
    """The annotations by which pods choose among the devices of a vendor that is not NVIDIA's."""

    use_types: str
    nouse_types: str
    use_ids: str
    nouse_ids: str


class Dialect(NamedTuple):
    """One dialect as configured.

    `read` gives what a container wants, or None where it wants no device, and raises
    `ManifestError` where its amounts contradict one another. `priority` is the resource that gives
    a container's tasks their priority on a shared device, where the dialect has one; `selecting`
    is None where the annotations are those of NVIDIA's cards or Ascend's.
    """

    name: str
    claims: frozenset[str]
    read: Callable[[Container, Amounts], Ask | None]
    priority: str = ""
    selecting: Selecting | None = None
