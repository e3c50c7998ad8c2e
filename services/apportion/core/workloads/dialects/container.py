"""What one container asks for, resource by resource, before any dialect gives it a meaning.

Extended resources cannot be overcommitted, so a request and a limit for one must agree. Invariant:
an `Amount` is a whole number of zero or more and remembers the field that it came from.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from apportion.core.workloads.dialects.errors import ManifestError, within
from apportion.core.workloads.dialects.quantity import whole

AMOUNT_MAX = 1 << 53  # what a JSON number holds exactly

_LEAST = "write 1 or more, or leave it out"

Role = Literal["init", "sidecar", "app"]
"""An init container ends before the others start; a sidecar is one that is restarted always."""


class Container(NamedTuple):
    """A container's `resources`; `field` is its own path, as in `spec.containers[0]`."""

    name: str
    field: str
    limits: Mapping[str, object]
    requests: Mapping[str, object]
    role: Role = "app"

    def at(self, kind: Literal["limits", "requests"], resource: str) -> str:
        """The path of one of its amounts."""
        return within(f"{self.field}.resources.{kind}", resource)


class Amount(NamedTuple):
    """How much of one resource, and where that was said."""

    value: int
    field: str
    written: object

    def refusal(self, problem: str, fix: str) -> ManifestError:
        """Why this amount cannot be used."""
        return ManifestError(self.field, self.written, problem, fix)


Amounts = Mapping[str, Amount]


def amount_of(container: Container, resource: str) -> Amount:
    """How much of an extended resource the container asks for; it names the resource somewhere.

    Raises:
        ManifestError: the amount is not a whole number, or request and limit differ.
    """
    kind: Literal["limits", "requests"] = "limits" if resource in container.limits else "requests"
    written = getattr(container, kind)[resource]
    field = container.at(kind, resource)
    amount = Amount(whole(written, field, limit=AMOUNT_MAX, least=_LEAST), field, written)
    if kind == "limits" and resource in container.requests:
        field = container.at("requests", resource)
        requested = container.requests[resource]
        if whole(requested, field, limit=AMOUNT_MAX, least=_LEAST) != amount.value:
            raise ManifestError(
                field,
                requested,
                f"differs from the limit, {amount.value}",
                "leave the request out, or make it equal to the limit",
            )
    return amount


def amounts_of(container: Container, resources: Collection[str]) -> dict[str, Amount]:
    """The amounts of those of `resources` that the container names, limits before requests.

    Raises:
        ManifestError: see `amount_of`.
    """
    named = {**container.limits, **container.requests}
    return {name: amount_of(container, name) for name in named if name in resources}
