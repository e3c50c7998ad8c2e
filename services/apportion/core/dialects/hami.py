"""HAMi: `nvidia.com/gpu`, `gpumem`, `gpumem-percentage`, `gpucores`, `priority`.

The defaults are those of HAMi's admission webhook, which sets `gpucores` to 100 where the memory is
the whole card and no cores were given.
"""

from apportion.core.dialects import vgpu
from apportion.core.dialects.container import Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion_schemas import Ask

NAME = "hami"


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""
    names = config.hami

    def read(container: Container, amounts: Amounts) -> Ask | None:
        return vgpu.read(container, amounts, names, config)

    return (Dialect(NAME, names.every, read, names.priority or ""),)
