"""Tests of the ways to name a device, and of the errors for ambiguous names."""

import pytest

from apportion.core.explain.text.names import did_you_mean, meant, unclear
from apportion.core.explain.text.words import device_words
from apportion.core.names import near

A, B, OTHER = "GPU-1a2b3c4d-0001", "GPU-1a2b3c4d-0002", "GPU-1a2bffff-0003"
MIG, BARE = "MIG-GPU-9f8e7d6c-1", "card-in-a-long-rack-7"
ALL = (A, B, OTHER, MIG, BARE)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        (A, [A]),
        ("GPU-1a2b", [A, B, OTHER]),
        ("GPU-1a2bf", [OTHER]),
        ("GPU-1a2", []),
        ("GPU-", []),
        ("MIG-GPU-9f8", []),
        ("MIG-GPU-9f8e", [MIG]),
        ("card", [BARE]),
        ("car", []),
        ("", []),
    ],
)
def test_enough_of_the_beginning_will_do(name: str, devices: list[str]) -> None:
    """A device id may be shortened to four characters after the vendor's prefix."""
    assert meant(name, ALL) == devices


def test_a_whole_id_is_never_the_beginning_of_another() -> None:
    """A complete device id means exactly that device, even if another device's id begins with
    it."""
    assert meant(A, (A + "-more", A)) == [A]


@pytest.mark.parametrize("device", [A, OTHER, MIG, BARE])
def test_what_a_table_shows_of_an_id_is_enough(device: str) -> None:
    """Every command accepts the short device id that tables show."""
    assert device in meant(device_words(device), ALL)


def test_what_is_wrong_with_a_name() -> None:
    """If a name is the beginning of several device ids, the error lists these ids. A shortened id
    with fewer than four characters after its prefix is also an error.

    A name that does not look like a device id causes no error here."""
    assert unclear("GPU-1a2b3c4d", meant("GPU-1a2b3c4d", ALL)) == (
        f"'GPU-1a2b3c4d' is the beginning of 2 device ids: {A}, {B}"
    )
    for short in ("GPU-1a", "GPU-"):
        said = f"{short!r} is too short: a device id needs at least four characters after GPU-"
        assert unclear(short, meant(short, ALL)) == said
    assert not unclear("node-7", meant("node-7", ALL))


def test_of_names_that_look_the_same_all_are_offered_the_likest_first() -> None:
    """All look-alike names are suggested, the closest first. Case and look-alike digits are
    ignored."""
    assert did_you_mean("gpu-l", ["GPU-1", "gpu-1"]) == "did you mean gpu-1, GPU-1?"
    assert near("pool-1", ["pool-l", "pool-1", "other"])[0] == "pool-1"
    assert near("pool-l", ["pool-l", "pool-1", "other"])[0] == "pool-l"
