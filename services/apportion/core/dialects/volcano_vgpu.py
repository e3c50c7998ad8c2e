"""Volcano vGPU: `volcano.sh/vgpu-number`, `vgpu-memory`, `vgpu-memory-percentage`, `vgpu-cores`.

Memory above the card's size is capped at the card. A count alone is that many whole cards; a
percentage of 100 without cores is not, because Volcano lets such a card's cores be shared.
"""

from apportion.core.dialects import vgpu
from apportion.core.dialects.container import Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion_schemas import Ask

NAME = "volcano-vgpu"


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""
    names = config.volcano_vgpu

    def read(container: Container, amounts: Amounts) -> Ask | None:
        return vgpu.read(
            container, amounts, names, config, cap_memory=True, full_percentage_is_alone=False
        )

    return (Dialect(NAME, names.every, read, names.priority or ""),)
