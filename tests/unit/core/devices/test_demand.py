"""Tests of how much of a device one request (an "ask") uses.

They cover each kind of device and each sharing mode."""

import pytest
from msgspec import structs

from apportion.core.devices.catalogue import mig_profiles
from apportion.core.devices.demand import Demand, demand, largest_part, memory_needed_mib
from apportion_schemas import Ask, Device, MigSize, RefusalCode
from tests.support.fleet import A30, A100_40, A100_80, V100, gpu, npu
from tests.support.pods import ask, cards

SHARED = gpu()
MPS = gpu(mode="mps", model=A30)
MIG_A30 = gpu(model=A30, mode="mig")
MIG_40 = gpu(model=A100_40, mode="mig")
MIG_80 = gpu(model=A100_80, mode="mig")
SCALED = gpu(memory_mib=163840, physical_memory_mib=81920, cores=200)
B4 = npu(family="ascend910b4", model="Ascend910B4", memory_mib=32768, cores=20)
A910 = npu(family="ascend910a", model="Ascend910A", memory_mib=32768, cores=30)


def npu_ask(memory_mib: int | None = None, family: str = "ascend310p", **fields: int) -> Ask:
    return ask(memory_mib, family=family, **fields)


MEMORY = [
    ("an amount", ask(3000), SHARED, 3000),
    ("nothing said: all of it", ask(), SHARED, 81920),
    ("a percentage", ask(memory_percent=25), SHARED, 20480),
    ("one percent", ask(memory_percent=1), SHARED, 819),
    ("all percent", ask(memory_percent=100), SHARED, 81920),
    ("above the card", ask(100000), SHARED, 100000),
    ("above the card, capped", ask(100000, cap_memory=True), SHARED, 81920),
    ("below the card, capped", ask(3000, cap_memory=True), SHARED, 3000),
    ("a percentage of what scaling offers", ask(memory_percent=50), SCALED, 81920),
]


@pytest.mark.parametrize(
    ("asked", "device", "mib"), [case[1:] for case in MEMORY], ids=[case[0] for case in MEMORY]
)
def test_memory(asked: Ask, device: Device, mib: int) -> None:
    """A request may state its memory as an amount or a percentage; without either, it needs the
    whole memory. An amount may be capped at the device's memory."""
    assert memory_needed_mib(asked, device) == mib


SHARES = [
    ("memory alone", ask(3000), SHARED, Demand(3000, 1, 0)),
    ("memory and cores", ask(3000, cores=30), SHARED, Demand(3000, 30, 30)),
    ("one percent of the cores", ask(10, cores=1), SHARED, Demand(10, 1, 1)),
    ("nothing said, shared", ask(), SHARED, Demand(81920, 1, 0)),
    ("all cores: alone, with that memory", ask(10, cores=100), SHARED, Demand(10, 100, 100, True)),
    ("all cores by percentage", cards(memory_percent=50), SHARED, Demand(40960, 100, 100, True)),
    ("a whole card", cards(), SHARED, Demand(81920, 100, 100, True)),
    ("a whole card, said twice", cards(memory_percent=100), SHARED, Demand(81920, 100, 100, True)),
    ("a whole scaled card", cards(), SCALED, Demand(163840, 200, 200, True)),
    ("100 of a scaled card's 200 cores", ask(10, cores=100), SCALED, Demand(10, 100, 100)),
    ("half the cores of a scaled card", ask(10, cores=50), SCALED, Demand(10, 50, 50)),
    ("MPS is shared like HAMi-core", ask(8000, cores=25), MPS, Demand(8000, 25, 25)),
    ("a whole MPS card", cards(), MPS, Demand(24576, 100, 100, True)),
    ("a whole exclusive card", cards(), gpu(mode="exclusive"), Demand(81920, 100, 100, True)),
]


@pytest.mark.parametrize(
    ("asked", "device", "wanted"), [case[1:] for case in SHARES], ids=[case[0] for case in SHARES]
)
def test_shared_whole_and_exclusive(asked: Ask, device: Device, wanted: Demand) -> None:
    """A demand states how much of a device must be free, and how many of its cores are then used.

    A request without cores uses none, but at least one percent of the device's cores must be
    free."""
    assert demand(asked, device) == wanted


INSTANCES = [
    ("3 GB gets 5 GB", ask(3000), MIG_40, "1g.5gb", 4864),
    ("to the last MiB", ask(4864), MIG_40, "1g.5gb", 4864),
    ("one more", ask(4865), MIG_40, "2g.10gb", 9984),
    ("20 GB", ask(20000), MIG_40, "3g.20gb", 20096),
    ("more than half is all", ask(20097), MIG_40, "7g.40gb", 40448),
    ("cores choose none", ask(1000, cores=50), MIG_40, "1g.5gb", 4864),
    ("a percentage of the card", ask(memory_percent=24), MIG_40, "2g.10gb", 9984),
    ("nothing said: the whole card", ask(), MIG_40, "7g.40gb", 40448),
    ("a whole card", cards(), MIG_40, "7g.40gb", 40448),
    ("80 GB card, whole though no instance has it all", ask(), MIG_80, "7g.80gb", 80896),
    ("80 GB card, whole card asked", cards(), MIG_80, "7g.80gb", 80896),
    ("80 GB card, nearly all", ask(80896), MIG_80, "7g.80gb", 80896),
    ("capped to the card is the whole card", ask(99999, cap_memory=True), MIG_40, "7g.40gb", 40448),
    ("A30 has four slices", ask(7000), MIG_A30, "2g.12gb", 12288),
    ("A30 by percentage", ask(memory_percent=50), MIG_A30, "2g.12gb", 12288),
]


@pytest.mark.parametrize(
    ("asked", "device", "profile", "mib"),
    [case[1:] for case in INSTANCES],
    ids=[case[0] for case in INSTANCES],
)
def test_smallest_instance(asked: Ask, device: Device, profile: str, mib: int) -> None:
    """On a MIG device, a request gets the smallest instance that has enough memory and cores."""
    wanted = demand(asked, device)
    assert isinstance(wanted, Demand)
    assert wanted.profile is not None
    assert (wanted.profile.name, wanted.memory_mib) == (profile, mib)
    assert (wanted.cores_needed, wanted.cores, wanted.alone) == (0, 0, False)
    assert wanted.places == wanted.profile.places


B300 = gpu(model="NVIDIA B300", mode="mig", memory_mib=275_040)


def reporting(device: Device, **sizes: int) -> Device:
    """Return the device as if it had reported these memory sizes (MiB) of its MIG profiles.

    Each keyword is the first two characters of a profile's name, such as `1g`."""
    profiles = mig_profiles(device.family, device.model)
    return structs.replace(
        device,
        mig_sizes=tuple(
            MigSize(profile=each.name, memory_mib=sizes[each.name[:2]])
            for each in profiles
            if each.name[:2] in sizes and not each.by_name
        ),
    )


@pytest.mark.parametrize(
    ("device", "asked", "profile", "mib"),
    [
        (reporting(MIG_40, **{"1g": 4800}), 4800, "1g.5gb", 4800),
        (reporting(MIG_40, **{"1g": 4800}), 4864, "2g.10gb", 9984),  # the catalogue has 4864
        (reporting(B300, **{"1g": 33_000}), 30_000, "1g.34gb", 33_000),  # and here 28,858
        (reporting(B300, **{"1g": 33_000}), 60_000, "2g.67gb", 60_701),
    ],
)
def test_the_size_that_a_card_reports_counts(
    device: Device, asked: int, profile: str, mib: int
) -> None:
    """If a device reports the memory of a MIG profile, that memory replaces the catalogue's."""
    wanted = demand(ask(asked), device)
    assert isinstance(wanted, Demand)
    assert wanted.profile is not None
    assert (wanted.profile.name, wanted.memory_mib) == (profile, mib)


def test_no_profile_holds_more_than_the_largest_that_a_card_reports() -> None:
    """On a MIG device, a request for more memory than the largest reported instance is refused. A
    request for the whole device gets that instance."""
    less = reporting(MIG_40, **{"7g": 40_000})
    assert demand(ask(40_001), less) is RefusalCode.MIG_NO_PROFILE
    assert largest_part(ask(40_001), less) == (40_001, 40_000)
    whole = demand(cards(), less)
    assert isinstance(whole, Demand)
    assert whole.memory_mib == 40_000


def test_instances_never_oversell_a_card_that_reports_less_than_its_profiles() -> None:
    """If a MIG device reports less memory than its data sheet, an instance has at most the fraction
    of the reported memory that its slices make up."""
    shy = gpu(model=A100_40, mode="mig", memory_mib=40000, physical_memory_mib=40000)
    small, half, most = (demand(asked, shy) for asked in (ask(1), ask(15000), ask()))
    assert isinstance(small, Demand)
    assert isinstance(half, Demand)
    assert isinstance(most, Demand)
    assert (small.memory_mib, half.memory_mib, most.memory_mib) == (4864, 20000, 40000)


TEMPLATES = [
    ("the smallest that holds it", npu_ask(3000), npu(), Demand(3072, 1, 1, False, 1, "vir01")),
    ("to the last MiB", npu_ask(6144), npu(), Demand(6144, 2, 2, False, 2, "vir02")),
    ("one more", npu_ask(6145), npu(), Demand(12288, 4, 4, False, 4, "vir04")),
    ("above every template: whole", npu_ask(12289), npu(), Demand(21527, 8, 8, True, 7)),
    ("nothing said: whole", npu_ask(), npu(), Demand(21527, 8, 8, True, 7)),
    ("several are whole", npu_ask(1000, count=2), npu(), Demand(21527, 8, 8, True, 7)),
    (
        "the other families have theirs",
        npu_ask(9000, "ascend910b4"),
        B4,
        Demand(16384, 10, 10, False, 3, "vir10_3c_16g"),
    ),
    (
        "without AI CPUs",
        npu_ask(9000, "ascend910a"),
        A910,
        Demand(17476, 16, 16, False, 0, "vir16"),
    ),
    (
        "a family that no catalogue knows has none",
        npu_ask(9000, "nobody's"),
        npu(family="nobody's"),
        Demand(21527, 8, 8, True, 0),
    ),
]


@pytest.mark.parametrize(
    ("asked", "device", "wanted"),
    [case[1:] for case in TEMPLATES],
    ids=[case[0] for case in TEMPLATES],
)
def test_templates(asked: Ask, device: Device, wanted: Demand) -> None:
    """A request for part of an NPU uses up the amounts of the vNPU template that it gets."""
    assert demand(asked, device) == wanted


@pytest.mark.parametrize(
    ("asked", "device", "code"),
    [
        (ask(50000), MIG_40, RefusalCode.MIG_NO_PROFILE),
        (ask(1), gpu(model=V100, mode="mig"), RefusalCode.MIG_NO_PROFILE),
        (cards(), gpu(model=V100, mode="mig"), RefusalCode.MIG_NO_PROFILE),
        (npu_ask(21528), npu(), RefusalCode.TEMPLATE_NONE_FITS),
        (ask(1000), gpu(mode="exclusive"), RefusalCode.MODE_MISMATCH),
        (ask(), gpu(mode="exclusive"), RefusalCode.MODE_MISMATCH),
    ],
)
def test_never(asked: Ask, device: Device, code: RefusalCode) -> None:
    """A request that the device could not meet even when empty is refused with a code."""
    assert demand(asked, device) is code


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [
        (1, Demand(6144, 1, 1)),
        (3, Demand(20480, 3, 3)),
        (2, RefusalCode.MODE_MISMATCH),
        (0, RefusalCode.MODE_MISMATCH),
    ],
)
def test_parts_that_a_plugin_reports(cores: int, wanted: Demand | RefusalCode) -> None:
    """If a plugin reports into which parts a device can be divided, a request gets the part with
    exactly the requested cores, and that part's memory. If there is no such part, the device is
    refused."""
    sizes = tuple(MigSize(profile=name, memory_mib=mib) for name, mib in PARTS.items())
    assert demand(ask(cores=cores), npu(mig_sizes=sizes)) == wanted


PARTS = {"1g.6gb/0/4": 6144, "3g.20gb/1/4": 20480, "30g.99gb/2/4": 99 << 10}
