"""The agent reads the containers' usage from the driver, and publishes it as metrics, in messages
and in the ledger."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from apportion.agent.shares.regions import SharedFile
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import Region
from apportion_schemas import NodeReported, Share, ShareBreached, UsageRecorded, UsageSample
from tests.support.facts import Facts
from tests.support.fake_kubelet import FakeKubelet
from tests.support.nats import Bus
from tests.support.nvidia.driver import FakeDriver, fake_driver
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.support.regions import run_process
from tests.unit.agent.usage.processes import OTHER, UID, write

NODE = "n1"
GPU = "nvidia.com/gpu"
RECORD_S = 3


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Provide a fake driver with two GPUs. The agent's process loads the same driver."""
    with fake_driver(tmp_path, "2xT4") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
async def agent(
    bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> AsyncIterator[ServiceProcess]:
    """Provide the node's agent, which samples usage often and reads processes from a fake `/proc`
    folder."""
    assert driver.ids
    options = ["--node", NODE, "--kubelet", str(kubelet.folder), "--cdi", str(kubelet.cdi)]
    options += ["--state", str(kubelet.folder / "state"), "--run", str(kubelet.folder / "run")]
    options += ["--proc", str(kubelet.folder / "proc"), "--metrics-as", "hami"]
    options += ["--usage-sample", "0.2", "--usage-record", str(RECORD_S)]
    options += ["--library", str(kubelet.folder / "libvgpu.so")]
    (kubelet.folder / "libvgpu.so").touch()
    async with ServiceProcess("agent", bus.server.url_for("agent"), *options) as running:
        await running.ready()
        await facts.count(NodeReported, 1)
        await kubelet.offered(GPU, 20)
        yield running


async def begun(kubelet: FakeKubelet, facts: Facts, uid: str, device: str) -> Path:
    """Start a pod with 700 MiB of a GPU, and return the path of its HAMi-core region file."""
    share = Share(container="main", device=device, memory_mib=700, cores=30)
    await facts.hold(uid, NODE, share)
    await kubelet.admit(uid, uid, GPU, {"main": 1})
    await kubelet.begin(uid, "main")
    (edits,) = kubelet.edits(kubelet.ids(uid, "main"))
    home = next(each for each in edits["mounts"] if each["containerPath"] == "/usr/local/vgpu")
    return Path(home["hostPath"]) / "share.cache"


async def scraped(agent: ServiceProcess) -> dict[tuple[str, str], float]:
    """Return the agent's metrics with a device label, by metric name and device."""
    status, text = await agent.get("/metrics")
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            device = sample.labels.get("device", sample.labels.get("device_uuid"))
            if device:
                found[sample.name, device] = sample.value
    return found


async def test_A9_use_is_scraped_heard_and_recorded(
    agent: ServiceProcess, bus: Bus, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """The agent publishes the same usage in metrics, in messages and in the ledger."""
    first, second = driver.ids
    proc = kubelet.folder / "proc"
    await begun(kubelet, facts, UID, first)
    write(proc, 4711, uid=UID, container="main", inner=7)
    write(proc, 4712, command="sneaky")
    driver.process(0, 4711, 600, 25)
    driver.process(1, 4712, 50, 3)

    async def seen() -> bool:
        found = await scraped(agent)
        return (
            found.get(("apportion_container_memory_used_bytes", first)) == 600 << 20
            and found.get(("hami_vgpu_memory_used_bytes", first)) == 600 << 20
            and found.get(("apportion_container_cores_used_ratio", first)) == 0.25
            and found.get(("apportion_unshared_memory_bytes", second)) == 50 << 20
            and found.get(("apportion_device_memory_used_bytes", second)) == 50 << 20
        )

    await until(seen, "a scrape that tells all of it")
    line = await agent.logged("without a share of it")
    assert "sneaky" in str(line)
    sample = await heard(bus)
    (use,) = sample.shares
    assert (use.name, use.memory_mib, use.memory_used_mib, use.cores_used) == (UID, 700, 600, 25)
    assert [(each.command, each.device) for each in sample.unshared] == [("sneaky", second)]
    assert {each.device for each in sample.devices} == {first, second}

    records: list[UsageRecorded] = await facts.count(UsageRecorded, 2)
    (share,) = records[-1].shares
    assert (share.pod, share.memory_mib, share.memory_mib_peak) == (UID, 700, 600)
    assert 0 < share.seconds <= records[-1].seconds + 1
    assert share.cores_peak == 25
    assert [each.command for each in records[-1].unshared] == ["sneaky"]


async def heard(bus: Bus) -> UsageSample:
    """Return the next usage sample, received with an auditor's rights."""
    ledger = await bus.connect("auditor")
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def note(_subject: str, payload: bytes) -> None:
        came.put_nowait(payload)

    await ledger.serve("apportion.usage.*", note)
    return msgspec.json.decode(await asyncio.wait_for(came.get(), 20), type=UsageSample)


async def test_a_region_learns_who_its_processes_are(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """The agent writes the kernel's process ids into a container's HAMi-core region. HAMi-core
    alone could confuse the processes of two containers."""
    proc = kubelet.folder / "proc"
    files = {}
    for pid, uid in ((4711, UID), (4712, OTHER)):
        files[pid] = await begun(kubelet, facts, uid, driver.ids[0])
        run_process(files[pid], inner=7, host=99)
        write(proc, pid, uid=uid, container="main", inner=7)
        driver.process(0, pid, 10, 1)

    def known() -> bool:
        found = {}
        for pid, path in files.items():
            with SharedFile(path) as file:
                found[pid] = next(Region(file).processes()).host_pid
        return found == {4711: 4711, 4712: 4712}

    await facts.until(known, "the ids of both processes in their own regions")


async def test_what_was_used_survives_the_agent(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """A restarted agent includes usage from before the restart in its next usage records."""
    await begun(kubelet, facts, UID, driver.ids[0])
    write(kubelet.folder / "proc", os.getpid(), uid=UID, container="main")
    driver.process(0, os.getpid(), 600)
    await facts.count(UsageRecorded, 1)
    await agent.kill()
    before = len(facts.of(UsageRecorded))
    await agent.start()
    await agent.ready()
    records = await facts.count(UsageRecorded, before + 2)
    assert records[-1].shares[0].memory_mib_peak == 600
    assert all(share.seconds <= record.seconds + 1 for record in records for share in record.shares)


async def test_a_container_that_gets_out_of_its_share_is_in_the_ledger(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """If a container overwrites the limits in its HAMi-core region, the agent restores them each
    time and records a breach. Each kind of breach is recorded at most once an hour, with the
    granted and the found amount."""
    assert agent is not None
    proc, path = kubelet.folder / "proc", await begun(kubelet, facts, UID, driver.ids[0])
    run_process(path, inner=7, mib=600)
    write(proc, 4711, uid=UID, container="main", inner=7)
    driver.process(0, 4711, 600, 1)

    def raise_limit() -> bool:
        with SharedFile(path) as file:
            region = Region(file)
            (plan,) = [RegionPlan("", region.devices, (14_000 << 20,), (100,))]
            if region.memory != (700 << 20,):
                return False
            region.hold(plan)
        return True

    assert raise_limit()
    (raised,) = await facts.count(ShareBreached, 1)
    found = (raised.pod, raised.container, raised.device, raised.code, raised.attempt)
    assert found == (UID, "main", driver.ids[0], "raised", 1)
    amounts = (raised.memory_mib, raised.memory_found_mib, raised.cores, raised.cores_found)
    assert amounts == (700, 14_000, 30, 99)
    await facts.until(raise_limit, "the restored limit, raised again")

    run_process(path, inner=7, mib=0)
    (_, zeroed) = await facts.count(ShareBreached, 2)
    assert (zeroed.code, zeroed.memory_mib, zeroed.memory_found_mib) == ("zeroed", 700, 600)

    write(proc, 4712, uid=UID, container="main", inner=8)
    driver.process(0, 4712, 50, 1)
    (_, _, unheld) = await facts.count(ShareBreached, 3)
    assert (unheld.code, unheld.memory_found_mib) == ("unheld", 650)

    path.unlink()
    codes = [each.code for each in await facts.count(ShareBreached, 4)]
    assert codes == ["raised", "zeroed", "unheld", "removed"]


async def test_a_container_without_its_slots_is_in_the_ledger(
    agent: ServiceProcess, kubelet: FakeKubelet, facts: Facts, driver: FakeDriver
) -> None:
    """If the kubelet loses its checkpoint, it no longer knows a container's device slots. The
    ledger then records a breach for that container."""
    assert agent is not None
    for uid in (UID, OTHER):
        await begun(kubelet, facts, uid, driver.ids[0])
    kubelet.forget(UID)
    (unheld,) = await facts.count(ShareBreached, 1)
    assert (unheld.pod, unheld.container, unheld.code) == (UID, "main", "unheld")
