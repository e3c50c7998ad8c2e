"""What became of a placement in the API server: written by the binder from an observed answer."""

from apportion_schemas.quantities import Name, Natural, Payload, Text


class PodBound(Payload, frozen=True):
    """The pod is bound to the node of its placement."""

    pod: Name
    node: Name
    attempt: Natural


class BindFailed(Payload, frozen=True):
    """The binding was refused. `final`: trying again cannot help, the placement must be voided."""

    pod: Name
    node: Name
    attempt: Natural
    message: Text
    final: bool
