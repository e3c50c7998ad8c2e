"""`PodPlaced` as it was: of what containers borrow, and how they are held, it said nothing."""

from typing import Annotated, Any

from msgspec import Meta

from apportion_schemas.placement import Score, Share
from apportion_schemas.quantities import CONTAINERS_MAX, COUNT_MAX, Name, Natural, Payload


class PodPlaced(Payload, frozen=True):
    """A pod has a place. `previous` is the SHA-256 of the placement before it on that node.

    `previous` is over the bytes of the whole message, so whoever reads `placement.<node>` can show
    from the data alone that nothing was lost, reordered or rewritten. `fitting` of `nodes` could
    have taken the pod; `runners_up` are the best of the others.
    """

    pod: Name
    namespace: Name
    name: Name
    attempt: Natural
    node: Name
    shares: Annotated[tuple[Share, ...], Meta(max_length=CONTAINERS_MAX * COUNT_MAX)]
    score: Score
    runners_up: Annotated[tuple[Score, ...], Meta(max_length=8)] = ()
    fitting: Natural = 0
    nodes: Natural = 0
    previous: Annotated[str, Meta(max_length=64)] = ""


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """What was added has a default; nodes gave nobody anything when this was written."""
    return data
