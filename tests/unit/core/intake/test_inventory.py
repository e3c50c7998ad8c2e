"""Tests of how the intake, the service that receives agents' events, checks a node's report.

It refuses implausible devices, and asks for confirmation of large changes."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.devices.simulating import models, simulated_devices
from apportion.core.intake.inventory import implausible, jump, memory_most_mib
from apportion_schemas import Configuration, Device, MigSize
from apportion_schemas.configuration import NodeConfiguration, NvidiaConfiguration
from tests.support.fleet import A100_40, T4, gpu, node, rack
from tests.support.golden import Golden

PLAIN = Configuration()


@pytest.mark.parametrize("name", models())
def test_every_card_of_the_catalogue_is_plausible_in_every_mode(name: str) -> None:
    """The intake accepts every device of the catalogue in every mode."""
    for mode in models()[name].modes:
        report = node("n1", *simulated_devices("n1", f"8x{name}:{mode}"))
        assert implausible(report, PLAIN) == ""


def test_a_card_has_no_more_memory_than_its_model(golden: Golden) -> None:
    """A device may report at most 10 % more memory than its model, to allow for other ways of
    counting."""
    assert implausible(node("n1", gpu("g0", model=T4, memory_mib=16_000)), PLAIN) == ""
    found = implausible(node("n1", gpu("g0", model=T4, memory_mib=1 << 24)), PLAIN)
    golden({"16 TiB of a T4": found})


@pytest.mark.parametrize(
    ("model", "most_mib"),
    [("NVIDIA X900 96GB HBM9", 108_134), ("NVIDIA X900-320GB", 360_448), ("Acme X", 393_184)],
)
def test_a_model_that_nobody_knows_has_a_generous_limit(model: str, most_mib: int) -> None:
    """A device of an unknown model may report the memory size that its name states.

    If the name states none, up to twice the memory of the largest catalogued device is plausible.
    """
    assert memory_most_mib(model) == most_mib


def test_a_consumers_card_may_have_been_refitted() -> None:
    """A modified consumer GPU may report twice its memory: 48 GB on a 4090."""
    refitted = gpu("g0", model="NVIDIA GeForce RTX 4090", memory_mib=49_140)
    assert implausible(node("n1", refitted), PLAIN) == ""


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            gpu("g0", memory_mib=163_840, physical_memory_mib=81_920),
            "offers 163,840 MiB, more than its 81,920",
        ),
        (gpu("g0", cores=800), "offers 800 % cores, more than 100 %"),
        (gpu("g0", family="quantum"), "unknown family 'quantum'"),
    ],
)
def test_no_more_is_offered_than_there_is(device: Device, said: str) -> None:
    """A device that offers more than it has, or that has an unknown family, is implausible."""
    assert said in implausible(node("n1", device), PLAIN)


def test_an_instance_has_no_more_memory_than_its_slices(golden: Golden) -> None:
    """A report is implausible if a MIG instance has more memory than its slices. Such an instance
    would attract pods that need a whole GPU."""

    def said(memory_mib: int) -> str:
        sizes = (MigSize(profile="1g.5gb", memory_mib=memory_mib),)
        return implausible(node("n1", gpu("g0", model=A100_40, mode="mig", mig_sizes=sizes)), PLAIN)

    assert said(5_500) == ""
    golden({"40000 MiB of 1g.5gb": said(40_000)})


def test_more_is_offered_where_the_configuration_says_so() -> None:
    """A device may offer more than it physically has if its node's configuration allows it."""
    report = node("n1", gpu("g0", memory_mib=163_840, physical_memory_mib=81_920, cores=200))
    scaled: Any = {"device_memory_scaling": 2.0, "device_core_scaling": 2.0}
    everywhere = Configuration(nvidia=NvidiaConfiguration(**scaled))
    here = Configuration(nodeconfig=(NodeConfiguration(name="n1", **scaled),))
    there = Configuration(nodeconfig=(NodeConfiguration(name="n2", **scaled),))
    assert implausible(report, everywhere) == implausible(report, here) == ""
    assert "offers" in implausible(report, there)


def test_ids_and_indexes_stand_there_once() -> None:
    """A report that repeats a device id or an index is implausible."""
    assert "same id" in implausible(node("n1", gpu("g0"), gpu("g0", index=1)), PLAIN)
    assert "same index" in implausible(node("n1", gpu("g0", index=1), gpu("g1")), PLAIN)


def test_a_reboot_and_a_screwdriver_are_no_jump() -> None:
    """Small changes in a node's report, such as one more device, need no confirmation."""
    eight = rack("n1", 8)
    sick = tuple(structs.replace(d, healthy=False, slots=4) for d in eight.devices)
    fewer = structs.replace(eight, devices=eight.devices[:7])
    assert jump(None, eight) == jump(eight, eight) == jump(fewer, eight) == jump(eight, fewer) == ""
    assert jump(eight, structs.replace(eight, devices=sick)) == ""
    assert jump(rack("n1", 1), node("n1")) == jump(node("n1"), rack("n1", 1)) == ""


def test_most_cards_at_once_and_another_model_are_jumps(golden: Golden) -> None:
    """A report must be confirmed if it changes most devices at once, or the model of a device."""
    eight = rack("n1", 8)
    other = structs.replace(eight.devices[3], model=T4)
    changed = structs.replace(eight, devices=(*eight.devices[:3], other, *eight.devices[4:]))
    golden({
        "eight, then none": jump(eight, node("n1")),
        "two, then eight": jump(rack("n1", 2), eight),
        "n1-g3 becomes a T4": jump(eight, changed),
    })  # fmt: skip
