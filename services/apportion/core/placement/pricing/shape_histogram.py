"""Count how often each shape of pod is submitted; old counts decay.

Invariant: counts depend only on the ledger, so a restart continues them."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import structs

from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import PodState, State
from apportion.core.placement.pricing.sizes import SeenShape, Sort, sort_of
from apportion_schemas import Ask, PodSubmitted, PricesLearnt, Shape
from apportion_schemas.pricing import SHAPES_MAX

FIRST_PODS: Final = 20  # fewer do not show what is frequent
FRESH_PODS_MAX: Final = 10_000  # the most pods between two prices
MEMORY_PODS: Final = 20_000  # at twice as many, all counts are halved
KEYS_MAX: Final = 10_000
ANY_CONTAINER: Final = "any"

K = TypeVar("K")


Key = tuple[Sort, tuple[str, ...]]  # sort and models


class ShapeHistogram:
    """Counts submitted pods by shape."""

    def __init__(self, state: State) -> None:
        self._counts: dict[bytes, int] = {}
        self._shapes: dict[bytes, Shape] = {}
        learnt = state.prices.shapes if state.prices else ()
        self._learnt = Counter({(sort_of(each), each.use_types): each.pods for each in learnt})
        self._memory_mib = {(sort_of(each), each.use_types): each.memory_mib for each in learnt}
        self._counted = self._learnt.total()
        self.pods = state.prices.pods if state.prices else 0
        self.fresh = 0  # pods since the last prices
        for pod in state.pods.values():
            if pod.submitted_revision > state.prices_revision:
                self.note(pod)

    def observe(self, change: Change) -> None:
        """Count the pod if the event submits one; restart the `fresh` count at new prices."""
        kind = type(change.data)
        if kind is PodSubmitted and change.pod is not None:
            self.note(change.pod)
        elif kind is PricesLearnt:
            self.priced()

    def note(self, pod: PodState) -> None:
        """Count one more submitted pod."""
        key = pod.shape_key
        before = self._counts.get(key, 0)
        if not before:
            self._shapes[key] = pod.submitted.shape
        self._counts[key] = before + 1
        self._counted += 1
        self.pods += 1
        self.fresh += 1
        if self._counted >= 2 * MEMORY_PODS or len(self._counts) > KEYS_MAX:
            self._counts = _halved(self._counts)
            self._learnt = Counter(_halved(self._learnt))
            self._shapes = {each: self._shapes[each] for each in self._counts}
            self._counted = sum(self._counts.values()) + self._learnt.total()

    def priced(self) -> None:
        """Restart the count of pods since the last prices, because new prices were set."""
        self.fresh = 0

    @property
    def due(self) -> bool:
        """Return True if the number of pods doubled since the last prices, so new ones are due."""
        known = max(self.pods - self.fresh, FIRST_PODS)
        return self.fresh >= min(known, FRESH_PODS_MAX)

    def shapes(self) -> list[SeenShape]:
        """Return at most `SHAPES_MAX` shapes, the most frequent first."""
        pods = self._learnt.copy()
        memory_mib = {key: count * self._memory_mib[key] for key, count in pods.items()}
        for shape_key, count in self._counts.items():
            shape = self._shapes[shape_key]
            wanted: list[Ask | None] = [
                structs.replace(ask, container=ANY_CONTAINER, init=False) for ask in shape.asks
            ]
            parts = max(len(wanted), 1)
            for ask in wanted or [None]:
                sort = Sort(ask, shape.devices.modes, shape.node.cpu_milli // parts)
                key = sort, shape.devices.use_types
                pods[key] += count
                memory_mib[key] = memory_mib.get(key, 0) + count * shape.node.memory_mib // parts
        found = [
            SeenShape(
                ask=sort.ask,
                cpu_milli=sort.cpu_milli,
                memory_mib=memory_mib[sort, use_types] // count,
                pods=count,
                modes=sort.modes,
                use_types=use_types,
            )
            for (sort, use_types), count in pods.items()
        ]
        found.sort(key=lambda seen: (-seen.pods, repr(seen)))
        return found[:SHAPES_MAX]


def _halved(counts: Mapping[K, int]) -> dict[K, int]:
    return {key: count // 2 for key, count in counts.items() if count > 1}
