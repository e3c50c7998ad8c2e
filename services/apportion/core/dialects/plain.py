"""The plain name of NVIDIA's own device plugin: `nvidia.com/gpu: N` and nothing else.

N whole cards, as under that plugin, unless a default amount of memory is configured.
"""

from apportion.core.dialects import measures, vgpu
from apportion.core.dialects.container import Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

NAME = "plain"


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""

    def read(container: Container, amounts: Amounts) -> Ask | None:
        cards = amounts.get(config.plain_count)
        if cards is None or cards.value == 0:
            return None
        memory_mib = config.default_memory_mib or None
        return Ask(
            container=container.name,
            family=vgpu.FAMILY,
            count=measures.count(cards),
            memory_mib=memory_mib,
            cores=WHOLE if memory_mib is None else config.default_cores,
            init=container.role == "init",
        )

    return (Dialect(NAME, frozenset({config.plain_count}), read),)
