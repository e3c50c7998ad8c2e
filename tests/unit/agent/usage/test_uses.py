"""Tests of how the agent assigns GPU usage to shares, using HAMi-core regions, the driver's
counters and processes."""

from pathlib import Path

from apportion.agent.backend import Load, Running
from apportion.agent.reporting.view import Claim
from apportion.agent.usage.owners import Owners
from apportion.agent.usage.uses import Counted, Look, Reading
from apportion_schemas import Device, MigInstance, PodPlaced, Score, Share
from tests.unit.agent.usage.processes import OTHER, UID, cgroup, write

MIB = 1 << 20
CARD = "GPU-1"
CUT = MigInstance(profile="1g.5gb", start=2, size=1)


def card(device: str = CARD, index: int = 0) -> Device:
    return Device(
        id=device, index=index, family="nvidia", model="NVIDIA A100", memory_mib=40_960,
        physical_memory_mib=40_960, slots=10, mode="hami-core",
    )  # fmt: skip


def share(container: str = "main", device: str = CARD, cut: MigInstance | None = None) -> Share:
    """Return a share of 10 % of a GPU's compute."""
    return Share(container, device, 4_000, 10, cut)


def claim(pod: str, *shares: Share, borrowed: tuple[Share, ...] = ()) -> Claim:
    """Return a bound pod with these shares."""
    placed = PodPlaced(
        pod=pod, namespace="default", name=f"pod-{pod[:2]}", attempt=1, node="n1", shares=shares,
        borrowed=borrowed, score=Score(node="n1", total=1.0),
    )  # fmt: skip
    return Claim(placed, 1)


def look(
    proc: Path,
    claims: list[Claim],
    loads: list[Load],
    readings: dict[tuple[str, str], dict[str, Reading]] | None = None,
) -> Look:
    """Sample the usage of the test node's two GPUs once."""
    devices = {device.id: device for device in (card(), card("GPU-2", 1))}
    return Counted(claims, loads, Owners(proc).of).look(devices, readings or {})


def test_processes_add_up_to_their_container(tmp_path: Path) -> None:
    """The agent adds up the usage of a container's processes."""
    for pid, uid in ((1, UID), (2, UID), (3, OTHER)):
        write(tmp_path, pid, uid=uid, container="main", inner=pid + 10)
    running = (Running(1, 300 * MIB, 20), Running(2, 200 * MIB, 5), Running(3, 50 * MIB, 7))
    found = look(
        tmp_path, [claim(UID, share()), claim(OTHER, share())], [Load(CARD, 0, 0, None, running)]
    )
    assert [(use.pod, use.memory_used // MIB, use.cores_used) for use in found.uses] == [
        (UID, 500, 25),
        (OTHER, 50, 7),
    ]
    assert found.pids == {(UID, "main"): {11: 1, 12: 2}, (OTHER, "main"): {13: 3}}
    assert not found.unshared


def test_a_process_of_a_share_counts_under_the_name_of_our_daemon(tmp_path: Path) -> None:
    """A process of a container counts towards its share even if it has the name of our MPS
    daemon."""
    write(tmp_path, 1, uid=UID, container="main", inner=11, command="nvidia-cuda-mps")
    loads = [Load(CARD, 0, 0, None, (Running(1, 300 * MIB, None),))]
    found = look(tmp_path, [claim(UID, share())], loads)
    assert [use.memory_used for use in found.uses] == [300 * MIB]
    assert list(found.cgroups) == [(UID, "main")]
    assert [each.code for each in found.breaches] == ["unheld"]


def test_containers_of_one_pod_are_told_apart(tmp_path: Path) -> None:
    """If two containers of a pod use the same GPU, the agent tells their processes apart by their
    mounts."""
    write(tmp_path, 1, uid=UID, container="aide")
    loads = [Load(CARD, 0, 0, None, (Running(1, 300 * MIB, None),))]
    main, aide = look(tmp_path, [claim(UID, share(), share("aide"))], loads).uses
    assert (main.memory_used, main.cores_used) == (0, 0)
    assert (aide.memory_used, aide.cores_used) == (300 * MIB, None)


def test_what_an_init_container_borrows_is_its_own(tmp_path: Path) -> None:
    """An init container may borrow its pod's share while the containers that own the share do not
    run. The agent then treats the init container's processes as processes with a share."""
    write(tmp_path, 1, uid=UID, container="fetch")
    loads = [Load(CARD, 0, 0, None, (Running(1, MIB, 0),))]
    assert not look(tmp_path, [claim(UID, share(), borrowed=(share("fetch"),))], loads).unshared


def test_of_an_instance_the_driver_counts(tmp_path: Path) -> None:
    """The usage of a MIG instance comes from the driver, even if the agent sees none of its
    processes."""
    held = MigInstance(profile="1g.5gb", start=2, size=1, group="small", position=1)
    loads = [Load(CARD, 900 * MIB, None), Load(CARD, 800 * MIB, 61, CUT)]
    (use,) = look(tmp_path, [claim(UID, share(cut=held))], loads).uses
    assert (use.instance, use.memory_used, use.cores_used) == (CUT, 800 * MIB, 61)


def test_without_an_answer_of_the_driver_compute_is_not_known(tmp_path: Path) -> None:
    """If the driver does not report a device, the compute of its shares is not measured."""
    (one,) = look(tmp_path, [claim(UID, share())], []).uses
    assert one.cores_used is None
    region = Reading(600 * MIB, 0, (1, 2, 3), 4.0, running=True)
    (one,) = look(tmp_path, [claim(UID, share())], [], {(UID, "main"): {CARD: region}}).uses
    assert one.cores_used is None


def test_a_region_tells_of_its_container(tmp_path: Path) -> None:
    """A container's usage is the value in its HAMi-core region or the driver's value, whichever is
    larger. The memory usage never exceeds the GPU's memory."""
    write(tmp_path, 1, uid=UID, container="main")
    loads = [Load(CARD, 0, 0, None, (Running(1, 900 * MIB, 90),))]
    reading = Reading(600 * MIB, 25, (1, 2, 3), 4.0, running=True)
    held = {(UID, "main"): {CARD: reading}}
    (use,) = look(tmp_path, [claim(UID, share())], [], held).uses
    assert (use.memory_limit, use.memory_used) == (4_000 * MIB, 600 * MIB)
    assert (use.cores_limit, use.cores_used, use.kinds, use.idle_s) == (10, 25, (1, 2, 3), 4.0)
    for lie in (reading._replace(running=False), reading._replace(memory_used=0, cores_used=0)):
        (use,) = look(tmp_path, [claim(UID, share())], loads, {(UID, "main"): {CARD: lie}}).uses
        assert (use.memory_used, use.cores_used) == (900 * MIB, 90)
    more = {(UID, "main"): {CARD: reading._replace(memory_used=1 << 54)}}
    (use,) = look(tmp_path, [claim(UID, share())], [], more).uses
    assert use.memory_used == 40_960 * MIB


def test_who_has_no_share_is_named(tmp_path: Path) -> None:
    """The agent lists all processes, in pods or not, that use a GPU without a share."""
    write(tmp_path, 1, command="Xorg")
    write(tmp_path, 2, uid=OTHER, container="main", command="sneaky")
    write(tmp_path, 3, uid=UID, container="main", command="train")
    running = tuple(Running(pid, pid * MIB, 0) for pid in (1, 2, 3, 99))
    found = look(tmp_path, [claim(UID, share(device="GPU-2"))], [Load(CARD, 0, 0, None, running)])
    assert [(each.owner.command, each.owner.pod, each.memory) for each in found.unshared] == [
        ("Xorg", "", MIB),
        ("sneaky", OTHER, 2 * MIB),
        ("train", UID, 3 * MIB),
    ]


def test_our_own_daemons_are_no_strangers(tmp_path: Path) -> None:
    """The agent omits its own MPS server from the list of processes without a share."""
    write(tmp_path, 1, command="nvidia-cuda-mps")
    loads = [Load(CARD, 0, 0, None, (Running(1, MIB, 0),))]
    assert not look(tmp_path, [], loads).unshared


def test_positions_are_those_of_the_container(tmp_path: Path) -> None:
    """The agent numbers the devices of each container from 0 in the order of their index, as CUDA
    does."""
    shares = (share(device="GPU-2"), share(), share("aide", "GPU-2"))
    uses = look(tmp_path, [claim(UID, *shares)], []).uses
    assert [(use.container, use.device, use.position) for use in uses] == [
        ("main", CARD, 0),
        ("main", "GPU-2", 1),
        ("aide", "GPU-2", 0),
    ]


def test_a_region_that_names_other_cards_too_is_not_believed(tmp_path: Path) -> None:
    """If a container's HAMi-core region also names GPUs of which the container has no share, the
    agent ignores the region and uses the driver's values."""
    write(tmp_path, 1, uid=UID, container="main")
    loads = [Load("GPU-2", 0, 0, None, (Running(1, 300 * MIB, 20),))]
    reading = Reading(900 * MIB, 7, (0, 0, 0), None, running=True)
    held = [claim(UID, share(device="GPU-2"))]
    alone, all_of_them = {"GPU-2": reading}, {CARD: reading, "GPU-2": reading}
    (use,) = look(tmp_path, held, [], {(UID, "main"): alone}).uses
    assert (use.memory_used // MIB, use.cores_used) == (900, 7)
    (use,) = look(tmp_path, held, loads, {(UID, "main"): all_of_them}).uses
    assert (use.memory_used // MIB, use.cores_used) == (300, 20)


def test_cgroups_are_of_containers_with_a_share(tmp_path: Path) -> None:
    """A sample includes the cgroup of each container with a share of the GPU, but not of the pod's
    other containers."""
    for pid, name in ((1, "main"), (2, "aide")):
        write(tmp_path, pid, uid=UID, container=name)
    running = (Running(1, 300 * MIB, 20), Running(2, 200 * MIB, 5))
    found = look(tmp_path, [claim(UID, share())], [Load(CARD, 0, 0, None, running[1:])])
    assert not found.cgroups
    found = look(tmp_path, [claim(UID, share())], [Load(CARD, 0, 0, None, running)])
    assert found.cgroups == {(UID, "main"): cgroup(UID).strip().removeprefix("0::")}


def test_a_process_that_its_region_does_not_have_is_a_breach(tmp_path: Path) -> None:
    """The agent reports a breach if a process of a container is missing from the container's
    HAMi-core region. Processes of other containers do not matter."""
    for pid, uid, container in (
        (1, UID, "main"),
        (2, UID, "main"),
        (3, UID, "helper"),
        (4, "", ""),
    ):
        write(tmp_path, pid, uid=uid, container=container, inner=pid + 10)
    running = tuple(Running(pid, 300 * MIB, None) for pid in (1, 2, 3, 4))
    loads, claims = [Load(CARD, 0, 0, None, running)], [claim(UID, share())]

    def breaches(*pids: int) -> list[tuple[str, str, int]]:
        reading = Reading(600 * MIB, 0, (0, 0, 0), None, bool(pids), dict.fromkeys(pids, 0))
        found = look(tmp_path, claims, loads, {(UID, "main"): {CARD: reading}}).breaches
        return [(each.container, each.code, each.memory // MIB) for each in found]

    assert breaches(11, 12, 99) == []
    assert breaches(11) == breaches() == [("main", "unheld", 600)]
    assert [each.code for each in look(tmp_path, claims, loads).breaches] == ["unheld"]


def test_a_region_that_counts_far_less_than_the_driver_is_a_breach(tmp_path: Path) -> None:
    """The agent reports a breach if a container's HAMi-core region counts less memory than the
    driver, and the difference is more than 512 MiB per process."""
    for pid in (1, 2):
        write(tmp_path, pid, uid=UID, container="main", inner=pid + 10)
    running = (Running(1, 1_500 * MIB, None), Running(2, 500 * MIB, None))
    loads, claims = [Load(CARD, 0, 0, None, running)], [claim(UID, share())]

    def codes(counted: int) -> list[str]:
        reading = Reading(counted * MIB, 0, (0, 0, 0), None, bool(loads), {11: 0, 12: 0})
        found = look(tmp_path, claims, loads, {(UID, "main"): {CARD: reading}})
        return [each.code for each in found.breaches]

    assert codes(0) == codes(487) == ["zeroed"]
    assert codes(488) == codes(2_000) == []
