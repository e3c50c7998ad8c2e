"""`PodAdopted` as it was, with the second `PodSubmitted`."""

from typing import Annotated, Any

from msgspec import Meta

from apportion_schemas.older import pod_submitted_2
from apportion_schemas.older.pod_submitted_2 import PodSubmitted
from apportion_schemas.placement import Share
from apportion_schemas.quantities import CONTAINERS_MAX, COUNT_MAX, Name, Natural, Payload, Text


class PodAdopted(Payload, frozen=True):
    """A pod that runs in the cluster without a placement of this ledger: it is held from now on."""

    pod: Name
    node: Name
    submitted: PodSubmitted
    attempt: Natural = 0
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)] = ()
    evidence: Text = ""
    running: bool = False


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """Its `submitted` is lifted as the event of that name is."""
    return data | {"submitted": pod_submitted_2.lift(data["submitted"])}
