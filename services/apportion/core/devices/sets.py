"""Which devices of a node may be allocated together, by their indexes.

Most families have no restriction. In others, the devices form modules, such as the two dies of an
Ascend 910C (HAMi's `computeBestCombination910C`), and only whole modules are allocated together.
Other families list the sets for each number of devices, or allow any devices in a row. A single
device is never restricted."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

from apportion.core.devices.catalogue import FAMILIES, model_of
from apportion_schemas import Device
from apportion_schemas.quantities import COUNT_MAX

Sets = tuple[tuple[int, ...], ...]


def in_sets(family: str) -> bool:
    """Return True if only certain devices of this family may be allocated together."""
    known = FAMILIES.get(family)
    return known is not None and (known.module > 1 or bool(known.sets))


@lru_cache(maxsize=64)
def counts_of(family: str) -> tuple[int, ...]:
    """Return the device counts that a pod can get: those that some model of the family allows."""
    everything = range(1, COUNT_MAX + 1)
    if not in_sets(family):
        return tuple(everything)
    models = ("", *(model.match[0] for model in FAMILIES[family].models))
    return tuple(n for n in everything if n == 1 or any(sets_of(family, m, n) for m in models))


@lru_cache(maxsize=1024)
def sets_of(family: str, model: str, count: int) -> Sets:
    """Return the sets of indexes from which `count` devices are allocated, the best first.

    The devices are one set, or several sets if the family has modules. Empty if no sets make up
    `count`."""
    known, of_model = FAMILIES[family], model_of(family, model)
    if known.module > 1:
        return _rows(known.module, apart=known.module) if count % known.module == 0 else ()
    if of_model is not None and of_model.rows:
        return _rows(count, apart=1)
    return known.sets.get(count, ())


def _rows(size: int, *, apart: int) -> Sets:
    starts = range(0, COUNT_MAX - size + 1, apart)
    return tuple(tuple(range(start, start + size)) for start in starts)


def whole_sets(devices: Sequence[Device], count: int) -> Iterator[list[int]]:
    """Yield positions of `count` devices that may be allocated together, best choice first.

    `devices` are of one family in which only some sets are allowed, in order of preference."""
    if not devices:
        return
    position = {device.index: at for at, device in enumerate(devices)}
    sets = sets_of(devices[0].family, devices[0].model, count)
    free = [[position[at] for at in some] for some in sets if all(at in position for at in some)]
    if FAMILIES[devices[0].family].module > 1:
        free.sort(key=min)
    for some in combinations(free, count // len(sets[0])) if sets else ():
        yield sorted(at for each in some for at in each)
