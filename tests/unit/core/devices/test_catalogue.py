"""Tests of the device catalogue: type names, MIG profiles and vNPU templates."""

import itertools

import pytest

from apportion.core.devices.catalogue import (
    FAMILIES,
    Model,
    mig_profiles,
    normal,
    template_of,
    type_matches,
)
from apportion.core.devices.shares import MIG_SLICES

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("pattern", "model", "means"),
    [
        ("A100", A100, True),
        ("a100", A100, True),
        ("A10", A100, False),
        ("A10", "NVIDIA A10", True),
        ("A10", "NVIDIA A10-24Q", True),
        ("A30", "NVIDIA A30", True),
        ("A100", "NVIDIA A100 80GB PCIe", True),
        ("A100-SXM4", A100, True),
        ("SXM4", A100, True),
        ("80GB", A100, True),
        ("NVIDIA-A100-SXM4-80GB", A100, True),
        ("nvidia a100-sxm4-80gb", A100, True),
        ("L4", "NVIDIA L40", False),
        ("L40", "NVIDIA L40S", False),
        ("H100", "NVIDIA H100-80GB-HBM3", True),
        ("H20", "NVIDIA H200", False),
        ("V100", "Tesla V100-SXM2-32GB", True),
        ("T4", "Tesla T4", True),
        ("T4", A100, False),
        ("4090", "NVIDIA GeForce RTX 4090", True),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
        ("NVIDIA", A100, True),
        ("910B4", "Ascend910B4", True),
        ("910B4", "Ascend910B4-1", False),
        ("910B4-1", "Ascend910B4-1", True),
        ("910B4-1", "Ascend910B4", False),
        ("910b", "Ascend910B4", True),
        ("Ascend910B4", "Ascend910B4-1", False),
    ],
)
def test_type_names(pattern: str, model: str, *, means: bool) -> None:
    """Type names match case-insensitively, and a full name wins over a partial match."""
    assert type_matches(pattern, model) is means


def test_normal_name() -> None:
    """Spaces and hyphens are equivalent in model names: NVML reports spaces, users write
    hyphens."""
    assert normal(" NVIDIA  A100 80GB ") == "nvidia-a100-80gb"


@pytest.mark.parametrize(
    ("model", "smallest"),
    [
        ("NVIDIA A100-SXM4-40GB", "1g.5gb"),
        ("NVIDIA A100-PCIE-40GB", "1g.5gb"),
        ("NVIDIA A100-SXM4-80GB", "1g.10gb"),
        ("NVIDIA A100 80GB PCIe", "1g.10gb"),
        ("NVIDIA H100 80GB HBM3", "1g.10gb"),
        ("NVIDIA A30", "1g.6gb"),
        ("NVIDIA GH200 144G HBM3e", "1g.18gb"),
        ("NVIDIA GH200 480GB", "1g.12gb"),
        ("NVIDIA B200", "1g.23gb"),
        ("NVIDIA GB200", "1g.23gb"),
        ("NVIDIA B300 SXM6 AC", "1g.34gb"),
        ("NVIDIA GB300", "1g.35gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "1g.24gb"),
        ("NVIDIA RTX PRO 5000 Blackwell", "1g.24gb"),
        ("NVIDIA RTX PRO 4500 Blackwell Server Edition", "1g.16gb"),
    ],
)
def test_profiles_of_the_names_that_nvml_reports(model: str, smallest: str) -> None:
    """The catalogue has profiles for the model names that NVML reports, with spaces or with
    hyphens."""
    assert mig_profiles("nvidia", model)[0].name == smallest


@pytest.mark.parametrize(
    ("family", "model"),
    [("nvidia", "Tesla T4"), ("nvidia", "NVIDIA RTX PRO 5000 72GB Blackwell"), ("nobody's", A100)],
)
def test_no_profiles(family: str, model: str) -> None:
    """The catalogue has no MIG profiles for a device without MIG or of an unknown family."""
    assert mig_profiles(family, model) == ()
    assert template_of(family, "vir01") is None


MODELS = [
    pytest.param(model, id=f"{family.name}-{model.match[0]}")
    for family in FAMILIES.values()
    for model in family.models
]


@pytest.mark.parametrize("model", MODELS)
def test_profiles_hang_together(model: Model) -> None:
    """For every model, the MIG profiles are sorted by size and fit the device.

    The positions at which instances of one profile may be created do not overlap."""
    sizes = [profile.memory_mib for profile in model.profiles]
    assert sizes == sorted(sizes)
    usual = [profile.cores for profile in model.profiles if not profile.by_name]
    assert usual == sorted(usual)
    for before, profile in itertools.pairwise(model.profiles):
        assert not profile.by_name or profile.memory_mib == before.memory_mib
    for profile in model.profiles:
        assert all(start + profile.size <= MIG_SLICES for start in profile.starts)
        for (_, one), (_, other) in itertools.combinations(profile.places, 2):
            assert not one & other, f"{profile.name} overlaps itself"
        assert [mask.bit_count() for _, mask in profile.places] == (
            [profile.size] * len(profile.starts)
        )
    assert model.profiles[-1].starts == (0,)
    assert model.profiles[-1].cores == 100


def test_templates_hang_together() -> None:
    """A model's vNPU templates are sorted by size, and each of them is smaller than the device."""
    for family in FAMILIES.values():
        sizes = [template.memory_mib for template in family.templates]
        assert sizes == sorted(sizes)
        for template in family.templates:
            assert template.cores < family.cores
            assert template.cpu <= family.template_cpu
            assert template_of(family.name, template.name) == template
