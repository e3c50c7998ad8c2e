"""Tests of parsing Kubernetes quantities such as `1500m` or `4Gi`, and of the errors for invalid
ones."""

from fractions import Fraction

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.dialects.amounts import Container, amount_of, quantity, whole


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        (2, Fraction(2)),
        (0.5, Fraction(1, 2)),
        (0.1, Fraction(1, 10)),
        ("100m", Fraction(1, 10)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("+3", Fraction(3)),
        ("1k", Fraction(1000)),
        ("1Ki", Fraction(1024)),
        ("2Gi", Fraction(2 << 30)),
        ("1.5Mi", Fraction(3 << 19)),
        ("1E", Fraction(10**18)),
        ("1Ei", Fraction(1 << 60)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("12E-1", Fraction(6, 5)),
        ("7n", Fraction(7, 10**9)),
        ("250u", Fraction(1, 4000)),
        ("0.1Ki", Fraction(1024, 10)),
    ],
)
def test_amount(written: object, meant: Fraction) -> None:
    """A quantity is parsed exactly, even where a float would lose digits."""
    assert quantity(written, "field") == meant


@pytest.mark.parametrize(
    "written",
    ["", " 1", "1 ", "1K", "1ki", "Ki", "1Kib", "1e", "1e3Ki", "0x10", "1_000", "--1", "one",
     "\u0661", "1e999", "9" * 65, True, None, [1], {}, float("nan"), float("inf")],
)  # fmt: skip
def test_no_quantity(written: object) -> None:
    """Text that Kubernetes does not accept as a quantity is refused, and so is very long text."""
    with pytest.raises(ManifestError, match="is not a quantity"):
        quantity(written, "field")


@pytest.mark.parametrize("written", ["-1", -1, "-0.5Gi"])
def test_negative(written: object) -> None:
    """A negative quantity is refused."""
    with pytest.raises(ManifestError, match=r"field: .* is negative; write 0 or more"):
        quantity(written, "field")


@pytest.mark.parametrize(("written", "meant"), [("1k", 1000), ("2000m", 2), (3, 3), ("1e2", 100)])
def test_whole_number(written: object, meant: int) -> None:
    """An extended resource's amount is a whole number, in any notation."""
    assert whole(written, "field", limit=10_000) == meant


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("4000MB", 'write a whole number without "MB", such as "4000"'),
        ("4000 MiB", 'write a whole number without "MiB", such as "4000"'),
        ("50%", 'write a whole number without "%", such as "50"'),
        ("4GB", 'write a whole number such as "2"'),
        ("many", 'write a whole number such as "2"'),
        (None, 'write a whole number such as "2"'),
    ],
)
def test_a_number_with_its_unit_is_the_fix(written: object, fix: str) -> None:
    """A memory or core amount with a unit is refused. The error has the plain number to write
    instead."""
    with pytest.raises(ManifestError) as caught:
        whole(written, "field", limit=10_000)
    assert caught.value.fix == fix


@pytest.mark.parametrize("written", ["1.5", "100m", 0.25])
def test_fraction_of_a_device(written: object) -> None:
    """A fraction of a device is refused. The error advises to request memory or cores instead."""
    with pytest.raises(ManifestError, match="is a fraction; write a whole number"):
        whole(written, "field", limit=10)


def test_limit_of_a_whole_number() -> None:
    """The largest allowed number is accepted; one more is refused."""
    assert whole("10", "field", limit=10) == 10
    with pytest.raises(ManifestError, match="write at most 10"):
        whole("11", "field", limit=10)


@pytest.mark.parametrize(
    ("value", "fix"),
    [("one", 'write a whole number such as "2"'), (-1, "write 1 or more, or remove it")],
)
def test_of_cards_a_whole_number_is_asked_for(value: object, fix: str) -> None:
    """A device count that is not a number, or is negative, is refused with a fix."""
    container = Container("main", "spec", {"nvidia.com/gpu": value}, {})
    with pytest.raises(ManifestError) as refused:
        amount_of(container, "nvidia.com/gpu")
    assert refused.value.fix == fix
