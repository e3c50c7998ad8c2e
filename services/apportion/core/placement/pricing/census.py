"""Which shapes of pods come, and how often: counted, and forgotten again as times change.

Invariant: the counts depend on the events alone, so every scheduler that has folded the same ledger
counts the same.
"""

from typing import Final, NamedTuple

from msgspec import structs

from apportion.core.ledger.state import PodState, State
from apportion_schemas import Ask, Shape
from apportion_schemas.pricing import SHAPES_MAX

FIRST_PODS: Final = 20  # too few to tell what usually comes
FRESH_PODS_MAX: Final = 10_000  # prices are never older than this
MEMORY_PODS: Final = 20_000  # twice as many are counted, then all counts are halved
KEYS_MAX: Final = 10_000
ANY_CONTAINER: Final = "any"


class SeenShape(NamedTuple):
    """One sort of pod and how often it came; of its asks, one. See `PricedShape`."""

    ask: Ask | None
    cpu_milli: int
    memory_mib: int
    pods: int
    use_types: tuple[str, ...] = ()


class Census:
    """Counts pods by shape. `pods` is how many were ever seen, `fresh` how many since prices."""

    def __init__(self, state: State) -> None:
        self._counts: dict[bytes, int] = {}
        self._shapes: dict[bytes, Shape] = {}
        self._counted = 0
        self.pods = state.prices.pods if state.prices else 0
        self.fresh = 0
        for pod in state.pods.values():
            self.note(pod)

    def note(self, pod: PodState) -> None:
        """One more pod was submitted."""
        key = pod.shape_key
        if key not in self._counts:
            self._shapes[key] = pod.submitted.shape
            self._counts[key] = 0
        self._counts[key] += 1
        self._counted += 1
        self.pods += 1
        self.fresh += 1
        if self._counted >= 2 * MEMORY_PODS or len(self._counts) > KEYS_MAX:
            self._forget()

    def priced(self) -> None:
        """Prices have been learnt, here or elsewhere."""
        self.fresh = 0

    @property
    def due(self) -> bool:
        """Whether so many have come that other prices may hold: twice as many as the last time."""
        known = max(self.pods - self.fresh, FIRST_PODS)
        return self.fresh >= min(known, FRESH_PODS_MAX)

    def shapes(self) -> list[SeenShape]:
        """The sorts of pods, the most frequent first, at most `SHAPES_MAX`."""
        pods: dict[tuple[Ask | None, int, tuple[str, ...]], int] = {}
        memory_mib: dict[tuple[Ask | None, int, tuple[str, ...]], int] = {}
        for key, count in self._counts.items():
            shape = self._shapes[key]
            asks = [structs.replace(a, container=ANY_CONTAINER, init=False) for a in shape.asks]
            parts = max(len(asks), 1)
            wanted: list[Ask | None] = [*asks] or [None]
            for ask in wanted:
                sort = (ask, shape.node.cpu_milli // parts, shape.devices.use_types)
                pods[sort] = pods.get(sort, 0) + count
                memory = count * (shape.node.memory_mib // parts)
                memory_mib[sort] = memory_mib.get(sort, 0) + memory
        found = [
            SeenShape(sort[0], sort[1], memory_mib[sort] // count, count, sort[2])
            for sort, count in pods.items()
        ]
        found.sort(key=lambda seen: (-seen.pods, repr(seen)))
        return found[:SHAPES_MAX]

    def _forget(self) -> None:
        kept = {key: count // 2 for key, count in self._counts.items() if count > 1}
        self._counts = kept
        self._shapes = {key: self._shapes[key] for key in kept}
        self._counted = sum(kept.values())
