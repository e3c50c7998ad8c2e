"""Properties of parsing the device amounts that pods request: amounts are read exactly, and every
pod is read or refused."""

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.core.workloads.dialects import DialectConfig, ManifestError
from apportion.core.workloads.dialects.amounts import quantity
from apportion.core.workloads.dialects.listing import claimed
from apportion.core.workloads.dialects.names import HAMI, VgpuNames
from apportion.core.workloads.kinds.drafts import Manifest, submitted
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.reading import read_document
from apportion_schemas import Event, encode
from tests.support.manifests import container, pod

SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(1 << 10), "Mi": Decimal(1 << 20),
    "Gi": Decimal(1 << 30), "Ti": Decimal(1 << 40), "Pi": Decimal(1 << 50), "Ei": Decimal(1 << 60),
}  # fmt: skip
NUMBERS = st.from_regex(r"[+]?([0-9]{1,15}(\.[0-9]{0,9})?|\.[0-9]{1,9})", fullmatch=True)
NAMES = [*sorted(claimed(DialectConfig())), "cpu", "memory", "example.com/fpga", "gpu", ""]
AMOUNTS = (
    st.integers(-1, 200)
    | st.sampled_from([1 << 24, 1 << 25, 1 << 53, (1 << 53) + 1, 0.5, None, True, "", "x", "1k"])
    | st.integers(0, 500).map(str)
)
NOTES = {
    "volcano.sh/vgpu-mode": ["mig", "mps", "hami-core", "x", ""],
    "nvidia.com/vgpu-mode": ["mig", "mig,mps"],
    "nvidia.com/use-gputype": ["A100", "a100,T4", ","],
    "nvidia.com/nouse-gputype": ["A100", "T4"],
    "volcano.sh/gpu-index": ["0,2", "63", "64", "-1", "²"],
    "nvidia.com/numa-bind": ["true", "false", "1"],
    "hami.io/gpu-scheduler-policy": ["binpack", "spread", "mutex"],
    "hami.io/use-Ascend310P-uuid": ["a"],
}
LIMITS = st.dictionaries(st.sampled_from(NAMES), AMOUNTS, max_size=4)
ANNOTATIONS = st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in NOTES.items()})


def outcome(document: dict[str, Any], config: ManifestConfig | None = None) -> Manifest | str:
    """Return the manifest that was read from this document, or the text of its refusal.

    Any other exception fails the test."""
    try:
        manifest = read_document(document, config or ManifestConfig())
    except ManifestError as error:
        return f"{error.field} refused: {error}"
    for each in manifest.pods:
        event = Event(id="1", source="s", time="2026-03-01T09:30:00Z", data=submitted(each, "u"))
        encode(event)
    return manifest


@given(NUMBERS, st.sampled_from(sorted(SUFFIXES)))
def test_quantity_is_decimal_arithmetic(number: str, suffix: str) -> None:
    """A quantity with any suffix is read exactly."""
    with localcontext() as context:
        context.prec = 100
        assert quantity(number + suffix, "f") == Fraction(Decimal(number) * SUFFIXES[suffix])


@given(NUMBERS, st.integers(-99, 99), st.sampled_from("eE"))
def test_quantity_with_exponent(number: str, exponent: int, letter: str) -> None:
    """A quantity with any supported exponent is read exactly."""
    with localcontext() as context:
        context.prec = 200
        expected = Fraction(Decimal(number) * Decimal(10) ** exponent)
    assert quantity(f"{number}{letter}{exponent}", "f") == expected


@given(st.floats(0, 1e15) | st.integers(0, 1 << 60))
def test_quantity_of_a_number(value: float) -> None:
    """A JSON number is read as it is written in decimal, not as its binary float."""
    assert quantity(value, "f") == Fraction(Decimal(repr(value)))


@given(st.text(max_size=12) | st.none() | st.booleans() | st.floats() | st.binary(max_size=3))
def test_quantity_of_anything(value: object) -> None:
    """Any value is either read as a quantity of zero or more, or refused."""
    try:
        amount = quantity(value, "f")
    except ManifestError:
        return
    assert amount >= 0


@settings(max_examples=400, deadline=None)
@given(st.lists(LIMITS, min_size=1, max_size=3), ANNOTATIONS)
def test_any_pod(limits: list[dict[str, object]], notes: dict[str, str]) -> None:
    """Any pod is either read and encoded as an event, or refused with an error that names a field.

    The order in which the pod lists its limits and annotations makes no difference."""

    def written(turn: int) -> dict[str, Any]:
        containers = [
            container(f"c{i}", dict(list(each.items())[::turn])) for i, each in enumerate(limits)
        ]
        return pod(None, dict(list(notes.items())[::turn]), containers=containers)

    forward, backward = outcome(written(1)), outcome(written(-1))
    assert isinstance(forward, str) == isinstance(backward, str)
    if isinstance(forward, Manifest):
        assert forward == backward


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(HAMI.every)), st.integers(0, 100), max_size=4),
    st.integers(1, 4),
    st.integers(0, 100),
)
def test_renaming_changes_nothing_but_names(
    amounts: dict[str, int], count: int, cores: int
) -> None:
    """If resources are renamed, a pod with the new names requests the same as before."""
    renamed = VgpuNames(
        **{name: getattr(HAMI, name).replace("nvidia.com", "cards.example") for name in FIELDS}
    )
    # The plain name is one of HAMi's, so it is renamed too.
    defaults: dict[str, Any] = {"default_gpu_count": count, "default_cores": cores}
    usual = DialectConfig(**defaults)
    other = DialectConfig(hami=renamed, plain_count=renamed.count, **defaults)
    moved = {name.replace("nvidia.com", "cards.example"): n for name, n in amounts.items()}
    before = outcome(pod(amounts), ManifestConfig(dialects=usual))
    after = outcome(pod(moved), ManifestConfig(dialects=other))
    if isinstance(before, str):
        assert after == before.replace("nvidia.com", "cards.example")
    else:
        assert after == before


FIELDS = ("count", "memory", "memory_percent", "cores", "priority")
