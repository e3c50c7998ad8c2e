"""Group pods into the rows of a report: by namespace, queue, user, node, model or label.

Invariant: every pod is in one row; a pod without a namespace, queue, user or label to group by is
in `UNNAMED`. Unallocated devices are in `NO_POD`, or in the row of their node or model."""

from typing import Final

from msgspec import Struct

from apportion.core.ledger.state import PodState, State, queue_of

KINDS: Final = ("namespace", "queue", "user", "node", "model", "label")
KINDS_SAID: Final = "namespace, queue, user, node, model or label:KEY"
USER_LABEL: Final = "apportion.dev/user"  # Kubernetes does not record a pod's user, so a label does

UNNAMED: Final = "(none)"  # not a valid label value, so it cannot collide
NO_POD: Final = ""


class WrongBy(ValueError):
    """Raised if the text names no supported way to group pods."""


class By(Struct, frozen=True):
    """How to group shares: by the pod's namespace, queue, user or label, or by node or model."""

    kind: str
    label: str = ""

    def __str__(self) -> str:
        """Return the text form, as in `namespace` or `label:team`."""
        return f"{self.kind}:{self.label}" if self.label else self.kind

    @property
    def of_devices(self) -> bool:
        """Return True if each row is a node or model: only such rows have a capacity."""
        return self.kind in {"node", "model"}

    def row_of_device(self, node: str, model: str) -> str:
        """Return the name of the row for the unallocated part of a device."""
        if self.kind == "model":
            return model
        return node if self.kind == "node" else NO_POD

    def row_of(self, state: State, pod: PodState, node: str, model: str) -> str:
        """Return the name of the row for a pod's share of a device of this node and model."""
        match self.kind:
            case "namespace":
                row = pod.submitted.namespace
            case "queue":
                row = queue_of(state, pod)
            case "user":
                row = pod.submitted.labels.get(USER_LABEL, "")
            case "label":
                row = pod.submitted.labels.get(self.label, "")
            case _:
                row = self.row_of_device(node, model)
        return row or UNNAMED


def by_of(text: str) -> By:
    """Parse `namespace`, `queue`, `user`, `node`, `model` or `label:KEY`. Raises `WrongBy`."""
    kind, colon, label = text.partition(":")
    if kind not in KINDS or bool(colon) != (kind == "label") or (colon and not label):
        raise WrongBy(f"by: {text[:300]!r} is not valid; use {KINDS_SAID}")
    return By(kind, label)
