"""vcuda, the design of gpu-manager: hundredths of a card, and memory in units of 256 MiB.

1 to 99 hundredths are a share of one card and need an amount of memory; a positive multiple of 100
is that many whole cards, whatever memory was written. The names exist under two prefixes, and a pod
uses one of them; its dialect is named after it, as in `docker.com/vcuda`, because the device plugin
wants its annotations under the same one.
"""

from apportion.core.dialects import measures, vgpu
from apportion.core.dialects.container import Amount, Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig, VcudaNames
from apportion.core.dialects.placed_pod import PlacedPod, commas
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

NAME = "vcuda"
UNIT_MIB = 256
CARD = 100


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured, once per prefix."""
    return tuple(_under(names) for names in config.vcuda)


def _under(names: VcudaNames) -> Dialect:
    def read(container: Container, amounts: Amounts) -> Ask | None:
        cores, memory = amounts.get(names.cores), amounts.get(names.memory)
        memory_mib = measures.memory_mib(memory, UNIT_MIB) if memory else None
        if cores is None or cores.value == 0:
            if memory is None or memory_mib is None:
                return None
            raise memory.refusal(
                f"is asked without {names.cores}",
                f"add {names.cores}: 1 to 99 for a share, 100 for a whole card",
            )
        if cores.value < CARD and memory_mib is None:
            raise cores.refusal(
                f"is a share of a card without {names.memory}",
                f"add {names.memory} in units of {UNIT_MIB} MiB",
            )
        shared = cores.value < CARD
        return Ask(
            container=container.name,
            family=vgpu.FAMILY,
            count=1 if shared else _cards(cores),
            memory_mib=memory_mib if shared else None,
            cores=cores.value if shared else WHOLE,
            init=container.role == "init",
        )

    prefix = names.cores.partition("/")[0]
    return Dialect(f"{prefix}/{NAME}", frozenset({names.cores, names.memory}), read)


def _cards(cores: Amount) -> int:
    cards, rest = divmod(cores.value, CARD)
    if rest:
        raise cores.refusal(
            "is neither a share of one card (1 to 99) nor whole cards (a multiple of 100)",
            f"write {cards * CARD} or {(cards + 1) * CARD}",
        )
    return measures.count(Amount(cards, cores.field, cores.written))


def render(it: PlacedPod) -> dict[str, str]:
    """What gpu-admission writes on a pod of this placement; it knows no init containers."""
    prefix = it.pod.dialect.partition("/")[0]
    cards = {
        f"{prefix}/predicate-gpu-idx-{position}": commas(map(it.index_of, shares))
        for position, name in enumerate(it.containers)
        if (shares := it.shares(name))
    }
    return {
        **cards,
        f"{prefix}/predicate-node": it.placed.node,
        f"{prefix}/predicate-time": it.nanoseconds,
        f"{prefix}/gpu-assigned": "false",
    }
