"""The dialect of Volcano's older GPU sharing: `volcano.sh/gpu-memory` or `gpu-number`.

A pod requests memory on one GPU, or whole GPUs. The device plugin reads the indexes of the pod's
GPUs, and finds the pod by the time in an annotation. Every container can use all GPUs of the pod.
So all memory is on one GPU: the sum over containers that run together, or more for an init
container (`getGPUMemoryOfPod`)."""

from collections.abc import Collection, Iterator, Sequence

from msgspec import structs

from apportion.core.workloads.dialects import nvidia
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.borrowing import Parts, parted
from apportion.core.workloads.dialects.dialect import (
    ENTIRE,
    PARTIAL_MEMORY,
    Bound,
    BoundPod,
    Held,
    Resource,
    Unclear,
    commas,
    whole_number,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.dialects.nvidia import FAMILY
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

MEMORY = "volcano.sh/gpu-memory"
COUNT = "volcano.sh/gpu-number"
INDEX = "volcano.sh/gpu-index"
TIME = "volcano.sh/predicate-time"


def _read(container: Container, amounts: Amounts, config: DialectConfig) -> Ask | None:
    memory, cards = amounts.get(MEMORY), amounts.get(COUNT)
    memory_mib = memory.memory_mib(config.memory_factor) if memory else None
    if cards and cards.value:
        if memory_mib is not None:
            fix = "keep one of the two resources"
            raise cards.refusal(f"contradicts {MEMORY}, which requests part of one GPU", fix)
        return container.ask(FAMILY, count=cards.devices(), cores=WHOLE)
    return None if memory_mib is None else container.ask(FAMILY, memory_mib=memory_mib)


def _part(asks: Sequence[Ask], apps: Collection[str]) -> Parts:
    running = [ask for ask in asks if ask.memory_mib is not None and not ask.init]
    if len(running) <= 1:
        return parted(asks, apps)
    # The first one takes the memory of all, and lends the others theirs.
    first, *others = running
    total = structs.replace(first, memory_mib=sum(ask.memory_mib or 0 for ask in running))
    left = [total if ask is first else ask for ask in asks if ask not in others]
    own, borrowing = parted(left, {*apps, first.container})
    lent = {ask.container for ask in (*others, first, *borrowing)}
    return own, tuple(ask for ask in asks if ask.container in lent)


def _recover(pod: BoundPod, text: str) -> Iterator[Held]:
    if TIME not in pod.annotations:
        raise Unclear  # the pod's author wrote the index
    indexes = [whole_number(number) for number in text.split(",")]
    if sum(ask.count for ask in pod.asks) == len(indexes):
        left = iter(indexes)
        for ask in pod.asks:
            for _ in range(ask.count):
                yield Held(ask.container, FAMILY, number=next(left))
    elif len(indexes) == 1:
        for ask in pod.asks:
            yield Held(ask.container, FAMILY, number=indexes[0])
    else:
        raise Unclear


DIALECT = nvidia.dialect(
    "volcano-share",
    resources=lambda config: {
        COUNT: Resource((FAMILY,), Bound(ENTIRE, FAMILY)),
        MEMORY: Resource((FAMILY,), Bound(PARTIAL_MEMORY, FAMILY, config.memory_factor)),
    },
    read=_read,
    render=lambda it: {
        INDEX: commas(dict.fromkeys(map(it.index_of, it.placed.shares))),
        TIME: str(it.now_ns),
    },
    recover={INDEX: _recover},
    part=_part,
)
