"""Tests that a new dialect needs only one module and one row in the list of dialects.

A dialect is the set of resource names and annotations of one system, such as HAMi or Volcano."""

from collections.abc import Iterator
from typing import cast

import pytest
import yaml

from apportion.core.placement.limits import quotas
from apportion.core.placement.limits.quotas import NamespaceQuota
from apportion.core.workloads.adoption.claims import claim_of
from apportion.core.workloads.adoption.recovery import recover
from apportion.core.workloads.dialects import DialectConfig, hami, listing
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    COUNTED,
    SHARES,
    SLOT,
    Bound,
    BoundPod,
    Dialect,
    Held,
    Notes,
    PlacedPod,
    Resource,
    Resources,
    whole_number,
)
from apportion.core.workloads.dialects.listing import (
    DIALECTS,
    claimed,
    claims,
    count_names,
    families_of,
    render,
)
from apportion.core.workloads.pods.template import ManifestConfig
from apportion_schemas import Ask, Configuration, DeviceConstraints, QuotaObserved, Share
from tests.support import generated
from tests.support.golden import Golden
from tests.support.manifests import draft, pod, refused
from tests.support.pods import placed, shape
from tests.support.pods import pod as submitted
from tools.managed_resources import FILE, told

COUNT = "tpu.example/chips"
CONFIG = DialectConfig()


def _resources(_: DialectConfig) -> Resources:
    return {COUNT: Resource(("tpu",), Bound(SHARES, "tpu"))}


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    chips = amounts.get(COUNT)
    if chips is None:
        return None
    return Ask(container=container.name, family="tpu", count=chips.devices(), cores=100)


def _choose(notes: Notes) -> DeviceConstraints:
    return DeviceConstraints(use_types=tuple(notes.values.get("tpu.example/type", "").split()))


def _render(it: PlacedPod) -> dict[str, str]:
    return {"tpu.example/held": str(len(it.placed.shares))}


def _recover(pod: BoundPod, text: str) -> Iterator[Held]:
    for number in range(whole_number(text)):
        yield Held(pod.containers[0], "tpu", number=number)


TPU = Dialect(
    name="tpu",
    devices="TPUs",
    resources=_resources,
    read=_read,
    choose=_choose,
    reserved={"tpu.example/type": "selects TPUs, but the pod requests {devices}"},
    render=_render,
    recover={"tpu.example/held": _recover},
)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a dialect for TPUs to the list of dialects for the duration of a test."""
    kept = (
        *(listing.claims, listing.claimed, listing.meanings, listing.resources),
        quotas.amounts_by_name,
    )
    monkeypatch.setattr(listing, "DIALECTS", (*DIALECTS, TPU))
    for table, row in ((listing.RESERVED, TPU.reserved), (listing.RECOVERS, TPU.recover)):
        for key, value in row.items():
            monkeypatch.setitem(cast("dict[str, object]", table), key, value)
    for cache in kept:
        cache.cache_clear()
    yield
    for cache in kept:
        cache.cache_clear()


@pytest.mark.usefixtures("listed")
def test_a_pod_of_a_listed_dialect_is_read_and_told_of_its_place() -> None:
    """Once a dialect is in the list, its pods are read, and placed pods get its annotations."""
    found = draft(pod({COUNT: 2}, {"tpu.example/type": "v5e"}))
    assert (found.dialect, found.shape.devices.use_types) == ("tpu", ("v5e",))
    assert found.shape.asks == (Ask(container="main", family="tpu", count=2, cores=100),)
    at = placed("p", shares=[Share(container="main", device="t", memory_mib=1, cores=100)])
    about = submitted("p", shape=shape(*found.shape.asks), dialect="tpu")
    assert render(PlacedPod(about, at, {}, 0, CONFIG)) == {"tpu.example/held": "1"}


@pytest.mark.usefixtures("listed")
def test_a_bound_pod_of_a_listed_dialect_is_known_to_hold_devices() -> None:
    """Once a dialect is in the list, the shares of its bound pods are read back.

    If a pod's shares cannot be read, all devices of the dialect's family count as in use."""
    found = recover(BoundPod({"tpu.example/held": "2"}, (), ("main",), (), CONFIG))
    assert found is not None
    assert [each.number for each in found.held] == [0, 1]
    unreadable = pod({COUNT: 65}, nodeName="n1")
    unreadable["metadata"]["uid"] = "u"
    claim = claim_of(unreadable, ManifestConfig(), ours=False)
    assert claim is not None
    assert claim.families == ("tpu",)


@pytest.mark.usefixtures("listed")
def test_a_limit_in_a_listed_dialect_binds() -> None:
    """Once a dialect is in the list, quotas on its resource names are enforced."""
    quota = NamespaceQuota(
        QuotaObserved(namespace="n", quota="q", hard={f"limits.{COUNT}": 1}), Configuration()
    )
    assert quota.limits
    assert quota.exceeded({(SHARES, "tpu"): 0}, {(SHARES, "tpu"): 1}) is None
    assert quota.exceeded({(SHARES, "tpu"): 1}, {(SHARES, "tpu"): 1}) is not None


@pytest.mark.usefixtures("listed")
def test_annotations_of_a_listed_dialect_are_for_its_own_pods(golden: Golden) -> None:
    """Once a dialect is in the list, its annotations are refused on pods of other dialects."""
    theirs = refused(pod({"nvidia.com/gpu": 1}, {"tpu.example/type": "v5e"}))
    assert theirs.field == 'metadata.annotations["tpu.example/type"]'
    ours = refused(pod({COUNT: 1}, {"nvidia.com/use-gputype": "A100"}))
    assert ours.field == 'metadata.annotations["nvidia.com/use-gputype"]'
    golden({"TPU's on a pod of GPUs": str(theirs), "GPU's on a pod of TPUs": str(ours)})


def test_each_vendors_annotations_are_for_its_own_pods() -> None:
    """A vendor's annotations are refused on pods that request another vendor's devices."""
    keys = {
        "nvidia.com/gpu": "nvidia.com/use-gputype",
        "huawei.com/Ascend310P": "hami.io/use-Ascend310P-uuid",
        "cambricon.com/vmlu": "cambricon.com/use-gpuuuid",
    }
    for resource, own in keys.items():
        assert draft(pod({resource: 1}, {own: "a"})).shape.asks
        for other in set(keys.values()) - {own}:
            error = refused(pod({resource: 1}, {other: "a"}))
            assert error.field == f'metadata.annotations["{other}"]'


def test_every_name_has_a_family_and_counts_something_known() -> None:
    """Every resource name of every dialect has a device family and a known unit, so that no use of
    a device is overlooked."""
    names = [dialect.name for dialect in DIALECTS]
    assert len(set(names)) == len(names)
    for dialect in DIALECTS:
        for config in (CONFIG, DialectConfig(mig_by_profile=True)):
            for resource in dialect.resources(config).values():
                assert resource.families
                assert resource.bound is None or resource.bound.counts in COUNTED


def test_a_name_of_several_dialects_is_the_first_ones() -> None:
    """If several dialects have the same resource name, the name belongs to the first dialect in the
    list.

    A pod that requests only `nvidia.com/gpu` therefore has the dialect `plain`, not HAMi's."""
    assert [dialect.name for dialect in claims(CONFIG)["nvidia.com/gpu"]] == ["plain", hami.NAME]


def test_npu_core_is_about_every_ascend_family() -> None:
    """MindCluster's resource name `npu-core` may stand for any Ascend family."""
    families = families_of(("huawei.com/npu-core",), CONFIG)
    assert "ascend310p" in families
    assert all(family.startswith("ascend") for family in families)


def test_kube_scheduler_is_told_of_every_name() -> None:
    """The generated kube-scheduler configuration in `deploy/` lists every device resource name."""
    text = FILE.read_text("utf-8")
    generated.assert_none([FILE] if told(text) != text else [])
    (extender,) = yaml.safe_load(text)["extenders"]
    assert len(extender["managedResources"]) == len(claimed(CONFIG))


def test_a_slot_is_of_a_container_whose_names_count_no_devices() -> None:
    """The resource `apportion.dev/slot` is accepted only on a container whose other resource names
    contain no device count."""
    vcuda = {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4}
    assert draft(pod(vcuda | {SLOT: 1})).shape == draft(pod(vcuda)).shape
    for limits in ({SLOT: 1}, {"nvidia.com/gpu": 1, SLOT: 1}):
        assert refused(pod(limits)).field == f'spec.containers[0].resources.limits["{SLOT}"]'
    assert "nvidia.com/gpu" in refused(pod({"nvidia.com/gpu": 1, SLOT: 1})).problem
    assert SLOT in count_names(CONFIG)
    assert SLOT in claimed(CONFIG)
