"""What a dialect is: the names it claims, and what amounts under them mean."""

from collections.abc import Callable
from typing import NamedTuple

from apportion.core.dialects.container import Amounts, Container
from apportion_schemas import Ask


class Dialect(NamedTuple):
    """One dialect as configured.

    `read` gives what a container wants, or None where it wants no device, and raises
    `ManifestError` where its amounts contradict one another. `priority` is the resource that gives
    a container's tasks their priority on a shared device, where the dialect has one.
    """

    name: str
    claims: frozenset[str]
    read: Callable[[Container, Amounts], Ask | None]
    priority: str = ""
