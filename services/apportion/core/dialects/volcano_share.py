"""Volcano's older GPU sharing: `volcano.sh/gpu-memory` on one card, or `gpu-number` whole cards.

Its device plugin is told the numbers of the pod's cards, and finds the pod by the time.
"""

from apportion.core.dialects import measures, vgpu
from apportion.core.dialects.container import Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion.core.dialects.placed_pod import PlacedPod, commas
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

NAME = "volcano-share"


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""
    names = config.volcano_share

    def read(container: Container, amounts: Amounts) -> Ask | None:
        memory, cards = amounts.get(names.memory), amounts.get(names.count)
        memory_mib = measures.memory_mib(memory, config.memory_factor) if memory else None
        init = container.role == "init"
        if cards and cards.value:
            if memory_mib is not None:
                raise cards.refusal(
                    f"contradicts {names.memory}, which is a part of one card",
                    "keep one of the two",
                )
            return Ask(
                container=container.name,
                family=vgpu.FAMILY,
                count=measures.count(cards),
                cores=WHOLE,
                init=init,
            )
        if memory_mib is None:
            return None
        return Ask(container=container.name, family=vgpu.FAMILY, memory_mib=memory_mib, init=init)

    return (Dialect(NAME, frozenset({names.memory, names.count}), read),)


def render(it: PlacedPod) -> dict[str, str]:
    """What Volcano's scheduler writes on a pod of this placement."""
    indexes = dict.fromkeys(it.index_of(share) for share in it.placed.shares)
    return {
        "volcano.sh/gpu-index": commas(indexes),
        "volcano.sh/predicate-time": it.nanoseconds,
    }
