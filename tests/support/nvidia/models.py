"""Define the GPU models of the fake driver: what NVIDIA's driver reports for each model.

The MIG profiles come from NVIDIA's MIG user guide, not from our own table, so that a test can
compare our table with the guide."""

from __future__ import annotations

import re
from typing import NamedTuple

EVERY = (0, 1, 2, 3, 4, 5, 6)
EVEN = (0, 2, 4, 6)
MIG_NONE = 2


class Profile(NamedTuple):
    """A size of MIG instances, as the driver reports it."""

    name: str
    kind: int  # NVML_GPU_INSTANCE_PROFILE_*
    id: int
    slices: int
    span: int  # Memory slices.
    memory_mib: int
    multiprocessors: int
    at_most: int
    starts: tuple[int, ...]


class Model(NamedTuple):
    """A GPU model and what the driver reports for it."""

    name: str
    memory_mib: int
    capability: tuple[int, int]
    multiprocessors: int
    switch_links: int = 0
    profiles: tuple[Profile, ...] = ()


class Card(NamedTuple):
    """A GPU that a test requests: its model, and whether MIG mode is enabled."""

    model: Model
    mig: bool


MODELS = {
    "A100-40GB": Model(
        "NVIDIA A100-SXM4-40GB",
        40_960,
        (8, 0),
        108,
        12,
        (
            Profile("1g.5gb", 0, 19, 1, 1, 4_864, 14, 7, EVERY),
            Profile("1g.5gb+me", 7, 20, 1, 1, 4_864, 14, 1, EVERY),
            Profile("1g.10gb", 9, 15, 1, 2, 9_984, 14, 4, EVEN),
            Profile("2g.10gb", 1, 14, 2, 2, 9_984, 28, 3, (0, 2, 4)),
            Profile("3g.20gb", 2, 9, 3, 4, 20_096, 42, 2, (0, 4)),
            Profile("4g.20gb", 3, 5, 4, 4, 20_096, 56, 1, (0,)),
            Profile("7g.40gb", 4, 0, 7, 8, 40_448, 98, 1, (0,)),
        ),
    ),
    "A100-80GB": Model(
        "NVIDIA A100-SXM4-80GB",
        81_920,
        (8, 0),
        108,
        12,
        (
            Profile("1g.10gb", 0, 19, 1, 1, 9_728, 14, 7, EVERY),
            Profile("1g.10gb+me", 7, 20, 1, 1, 9_728, 14, 1, EVERY),
            Profile("1g.20gb", 9, 15, 1, 2, 19_968, 14, 4, EVEN),
            Profile("2g.20gb", 1, 14, 2, 2, 19_968, 28, 3, (0, 2, 4)),
            Profile("3g.40gb", 2, 9, 3, 4, 40_192, 42, 2, (0, 4)),
            Profile("4g.40gb", 3, 5, 4, 4, 40_192, 56, 1, (0,)),
            Profile("7g.80gb", 4, 0, 7, 8, 80_896, 98, 1, (0,)),
        ),
    ),
    "H100-80GB": Model(
        "NVIDIA H100 80GB HBM3",
        81_559,
        (9, 0),
        132,
        18,
        (
            Profile("1g.10gb", 0, 19, 1, 1, 9_984, 16, 7, EVERY),
            Profile("1g.10gb+me", 7, 20, 1, 1, 9_984, 16, 1, EVERY),
            Profile("1g.20gb", 9, 15, 1, 2, 20_096, 26, 4, EVEN),
            Profile("2g.20gb", 1, 14, 2, 2, 20_096, 32, 3, (0, 2, 4)),
            Profile("3g.40gb", 2, 9, 3, 4, 40_448, 60, 2, (0, 4)),
            Profile("4g.40gb", 3, 5, 4, 4, 40_448, 64, 1, (0,)),
            Profile("7g.80gb", 4, 0, 7, 8, 81_152, 132, 1, (0,)),
        ),
    ),
    "RTX-PRO-6000": Model(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97_887,
        (12, 0),
        188,
        0,
        (
            Profile("1g.24gb", 0, 14, 1, 3, 24_192, 46, 4, (0, 3, 6, 9)),
            Profile("1g.24gb+me", 7, 21, 1, 3, 24_192, 46, 1, (0, 3, 6, 9)),
            Profile("2g.48gb", 1, 5, 2, 6, 48_512, 94, 2, (0, 6)),
            Profile("4g.96gb", 3, 0, 4, 12, 97_408, 188, 1, (0,)),
        ),
    ),
    "L40S": Model("NVIDIA L40S", 46_068, (8, 9), 142),
    "T4": Model("Tesla T4", 15_360, (7, 5), 40),
}
_PART = re.compile(r"(?P<count>\d+)x(?P<model>[\w-]+)(?P<mig>:mig)?")


def cards_of(text: str) -> list[Card]:
    """Parse `2xA100-40GB:mig+1xT4` into a list of GPUs."""
    cards: list[Card] = []
    for part in text.split("+"):
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r}: write COUNTxMODEL or COUNTxMODEL:mig")
        cards += [Card(MODELS[found["model"]], bool(found["mig"]))] * int(found["count"])
    return cards
