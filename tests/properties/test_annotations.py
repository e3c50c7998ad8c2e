"""Property tests: other systems' device plugins read the placement's shares from the annotations
that we write."""

from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.core.workloads.adoption.placement_annotations import annotations_for, read_shares
from apportion_schemas import Ask, Configuration, Device, PodPlaced, PodSubmitted, Share
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.fleet import A100_40, gpu
from tests.support.plugin_views import hami_containers, mig_position, volcano_containers
from tests.support.pods import instance, placed, pod, shape

CARDS = {
    f"GPU-{at}": gpu(f"GPU-{at}", index=at, model=A100_40, mode="mig" if at > 5 else "hami-core")
    for at in range(8)
}
SHARED = [card.id for card in CARDS.values() if card.mode == "hami-core"]
CUT = [card.id for card in CARDS.values() if card.mode == "mig"]
NAMES = [f"c{at}" for at in range(5)]
STARTS = {"1g.5gb": (1, range(7)), "2g.10gb": (2, (0, 2, 4)), "3g.20gb": (4, (0, 4))}


@st.composite
def containers(draw: Any, *, cut: bool) -> list[tuple[Ask, list[Share]]]:
    """Draw the device requests of one to five containers, each with the shares that it got.

    If `cut` is set, the devices are in MIG mode."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True)):
        devices = draw(st.lists(st.sampled_from(CUT if cut else SHARED), min_size=1, unique=True))
        memory = draw(st.integers(1, 4000))
        cores = 0 if cut else draw(st.integers(0, 100))
        ask = Ask(
            container=name, family="nvidia", count=len(devices), memory_mib=memory, cores=cores
        )
        found.append((ask, [_share(draw, name, device, memory, cores) for device in devices]))
    return found


def _share(draw: Any, name: str, device: str, memory: int, cores: int) -> Share:
    if device in SHARED:
        return Share(container=name, device=device, memory_mib=memory, cores=cores)
    profile = draw(st.sampled_from(sorted(STARTS)))
    size, starts = STARTS[profile]
    cut = instance(profile, draw(st.sampled_from(starts)), size)
    group = draw(st.sampled_from(["", "g1", "big.2"]))
    cut = msgspec.structs.replace(cut, group=group, position=draw(st.integers(0, 6)))
    return Share(container=name, device=device, memory_mib=5120, cores=0, instance=cut)


def written(
    dialect: str, held: list[tuple[Ask, list[Share]]], **nvidia: Any
) -> tuple[PodSubmitted, PodPlaced, dict[str, str]]:
    """Return a pod, its placement, and the annotations that we write for the pod.

    `held` has the device requests and shares of each container that has devices."""
    submitted = pod("p", shape=shape(*(ask for ask, _ in held)), dialect=dialect)
    submitted = msgspec.structs.replace(submitted, containers=tuple(NAMES))
    place = placed("p", shares=[share for _, shares in held for share in shares])
    devices: dict[str, Device] = CARDS
    notes = annotations_for(
        submitted,
        place,
        revision=7,
        devices=devices,
        now_ns=1_700_000_000_999_999_999,
        configuration=Configuration(nvidia=NvidiaConfiguration(**nvidia)),
    )
    return submitted, place, notes


def by_container(place: PodPlaced) -> Iterator[list[Share]]:
    """Yield the shares of each container, in the order of the pod's spec."""
    for name in NAMES:
        yield [share for share in place.shares if share.container == name]


@settings(max_examples=200, deadline=None)
@given(containers(cut=False))
def test_hami_reads_every_container_where_it_stands(held: list[tuple[Ask, list[Share]]]) -> None:
    """HAMi's plugin reads each container's devices, memory and cores at its position in the pod.

    Containers without devices also have a position."""
    _, place, notes = written("hami", held)
    read = hami_containers(notes["hami.io/vgpu-devices-allocated"])
    assert [[(r.device, r.memory, r.cores) for r in each] for each in read] == [
        [(share.device, share.memory_mib, share.cores) for share in shares]
        for shares in by_container(place)
    ]
    assert {record.kind for each in read for record in each} == {"NVIDIA"}


@settings(max_examples=200, deadline=None)
@given(containers(cut=False), st.integers(1, 64))
def test_volcano_reads_the_containers_that_have_devices(
    held: list[tuple[Ask, list[Share]]], factor: int
) -> None:
    """Volcano's device plugin reads the shares that we placed, with memory in Volcano's unit.

    Volcano's annotation lists only the containers that have devices."""
    _, place, notes = written("volcano-vgpu", held, gpu_memory_factor=factor)
    read = volcano_containers(notes["volcano.sh/vgpu-ids-new"])
    assert [[(r.device, r.memory, r.cores) for r in each] for each in read] == [
        [(share.device, share.memory_mib // factor, share.cores) for share in shares]
        for shares in by_container(place)
        if shares
    ]
    assert notes["volcano.sh/devices-to-allocate"] == notes["volcano.sh/vgpu-ids-new"]


@settings(max_examples=200, deadline=None)
@given(containers(cut=True))
def test_both_read_which_instance_it_is(held: list[tuple[Ask, list[Share]]]) -> None:
    """Our annotations for HAMi name a MIG instance by profile and slices.

    Our annotations for Volcano name it by group and position."""
    _, place, notes = written("hami", held)
    allocations = msgspec.json.decode(notes["hami.io/vgpu-mig-allocations"])
    assert {
        (NAMES[a["containerIndex"]], a["gpuUUID"], a["profile"], *a["placement"].values())
        for a in allocations
    } == {
        (s.container, s.device, s.instance.profile, s.instance.start, s.instance.size)
        for s in place.shares
        if s.instance
    }
    _, place, notes = written("volcano-vgpu", held)
    read = [r for each in volcano_containers(notes["volcano.sh/vgpu-ids-new"]) for r in each]
    shares = [share for shares in by_container(place) for share in shares]
    for record, share in zip(read, shares, strict=True):
        device, group, position = mig_position(record.device)
        assert device == share.device
        if share.instance and share.instance.group:
            assert (group, position) == (share.instance.group, share.instance.position)


@settings(max_examples=100, deadline=None)
@given(containers(cut=False) | containers(cut=True), st.sampled_from(["hami", "volcano-vgpu"]))
def test_our_annotations_have_the_whole_placement(
    held: list[tuple[Ask, list[Share]]], dialect: str
) -> None:
    """Our own annotations contain the whole placement, so that a lost ledger can be rebuilt from
    the pods."""
    _, place, notes = written(dialect, held)
    assert read_shares(notes) == place.shares


@settings(max_examples=100, deadline=None)
@given(containers(cut=False), st.sampled_from(["docker.com", "tencent.com"]))
def test_vcuda_reads_card_numbers_by_container(
    held: list[tuple[Ask, list[Share]]], prefix: str
) -> None:
    """The vcuda plugin finds the device numbers of each container in the pod's annotations."""
    _, place, notes = written(f"{prefix}/vcuda", held)
    read = {
        int(key.rpartition("-")[2]): [int(index) for index in text.split(",")]
        for key, text in notes.items()
        if key.startswith(f"{prefix}/predicate-gpu-idx-")
    }
    assert read == {
        at: [CARDS[share.device].index for share in shares]
        for at, shares in enumerate(by_container(place))
        if shares
    }
    assert all(key.startswith((f"{prefix}/", "apportion.dev/")) for key in notes)
