"""A real agent process on a real ledger reports devices, allocates shares, and survives failures
and restarts."""

import asyncio
import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from apportion.agent.backend import DevicesUnavailable
from apportion.agent.main import command
from apportion.agent.nvidia.nvml import NvmlBackend
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import (
    AllocationFailed,
    Device,
    DeviceHealthChanged,
    NodeReported,
    PlacementVoided,
    PodBound,
    SharesAllocated,
    UsageRecorded,
    UsageSample,
)
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.nvidia.driver import FakeDriver
from tests.support.processes import ServiceProcess

NODE = "rack.1"


def agent_of(bus: Bus, *options: str) -> ServiceProcess:
    """Return an agent. By default it has one simulated node with two GPUs."""
    chosen = options or ("--node", NODE, "--simulate", "2xT4")
    return ServiceProcess("agent", bus.server.url_for("agent"), *chosen)


async def devices(facts: Facts) -> tuple[Device, ...]:
    """Return the devices in the node's first report."""
    report: NodeReported = (await facts.count(NodeReported, 1))[0]
    return report.devices


async def order(bus: Bus, **words: str) -> dict[str, object]:
    """Send the agent an order to fail or recover a device, and return the agent's reply."""
    operator = await bus.connect("operator")
    answer = await operator.request(
        "apportion.command.agent.rack%2E1", json.dumps(words).encode(), 30
    )
    return dict(json.loads(answer))


async def bind(facts: Facts, pod: str, *devices: str, attempt: int = 1) -> None:
    """Place and bind a pod on the node."""
    await facts.submit_unless_there(pod)
    await facts.place(pod, NODE, *devices, attempt=attempt)
    await facts.write(PodBound(pod=pod, node=NODE, attempt=attempt))


async def test_inventory_is_reported_once(bus: Bus, facts: Facts) -> None:
    """The agent reports its inventory on its first start, and not again after SIGTERM or SIGKILL
    and a restart."""
    async with agent_of(bus) as agent:
        await agent.ready()
        (report,) = await facts.count(NodeReported, 1)
        assert (report.node, len(report.devices), report.simulated) == (NODE, 2, True)
        assert await agent.stop() == 0
        await agent.start()
        await agent.ready()
        await agent.kill()
        await agent.start()
        await agent.ready()
    assert facts.of(NodeReported) == [report]
    assert facts.revision == 1


async def test_a_changed_inventory_is_reported_again(bus: Bus, facts: Facts) -> None:
    """An agent that restarts with other devices reports its inventory again."""
    async with agent_of(bus) as agent:
        await agent.ready()
    async with agent_of(bus, "--node", NODE, "--simulate", "4xT4") as agent:
        await agent.ready()
    reports = await facts.count(NodeReported, 2)
    assert [len(report.devices) for report in reports] == [2, 4]


async def test_simulated_use_is_sampled_and_recorded(bus: Bus, facts: Facts) -> None:
    """A simulated agent samples the use of allocated shares, and records it in the ledger."""
    samples: asyncio.Queue[bytes] = asyncio.Queue()

    async def note(_subject: str, payload: bytes) -> bytes:
        samples.put_nowait(payload)
        return b""

    await (await bus.connect("gateway")).serve("apportion.usage.*", note)
    options = ("--node", NODE, "--simulate", "2xT4", "--simulate-use", "1")
    async with agent_of(bus, *options) as agent:
        await agent.ready()
        (card, _) = [device.id for device in await devices(facts)]
        await bind(facts, "p1", card)
        (recorded, *_) = await facts.count(UsageRecorded, 1)
        sample = msgspec.json.decode(await samples.get(), type=UsageSample)
        assert [(use.pod, use.device) for use in sample.shares] == [("p1", card)]
        assert (recorded.node, [use.pod for use in recorded.shares]) == (NODE, ["p1"])
        assert recorded.shares[0].memory_mib_peak > 0


async def test_shares_are_allocated_once(bus: Bus, facts: Facts) -> None:
    """The agent allocates each bound pod's shares once, even if the pod was bound while the agent
    was down."""
    async with agent_of(bus) as agent:
        await agent.ready()
        first, second = [device.id for device in await devices(facts)]
        await bind(facts, "p1", second, first)
        (allocated,) = await facts.count(SharesAllocated, 1)
        assert allocated == SharesAllocated(pod="p1", node=NODE, attempt=1, devices=(second, first))
        await agent.kill()
        await bind(facts, "p2", first)
        await facts.submit("p3")
        await facts.place("p3", NODE, first)
        await agent.start()
        await agent.ready()
        await facts.write(PodBound(pod="p3", node=NODE, attempt=1))
        await facts.count(SharesAllocated, 3)
    assert [event.pod for event in facts.of(SharesAllocated)] == ["p1", "p2", "p3"]
    basis = {event.data.pod: event for _, event in facts.events if event.source == f"agent/{NODE}"
             and isinstance(event.data, SharesAllocated)}  # fmt: skip
    assert basis["p2"].id == "p2/1/allocated"
    assert basis["p2"].cause < basis["p3"].cause


async def test_what_cannot_be_allocated(bus: Bus, facts: Facts) -> None:
    """If a pod's device is unhealthy, the agent reports a failed allocation that names the device.
    It ignores withdrawn placements and placements on unknown devices."""
    async with agent_of(bus) as agent:
        await agent.ready()
        well, broken = [device.id for device in await devices(facts)]
        assert await order(bus, verb="fail", device=broken, reason="fan") == {"done": True}
        await facts.count(DeviceHealthChanged, 1)
        await bind(facts, "p1", "GPU-elsewhere")
        line = await agent.logged("event p1/1/allocated skipped")
        assert "attempt 1" in str(line["event"])
        await bind(facts, "p2", well, broken)
        await facts.place("p3", NODE, well)
        await facts.write(PlacementVoided(pod="p3", attempt=1, node=NODE, reason="test"))
        await facts.write(PodBound(pod="p3", node=NODE, attempt=1))
        await bind(facts, "p4", well)
        await facts.count(SharesAllocated, 1)
    (two,) = facts.of(AllocationFailed)
    assert two.pod == "p2"
    assert f"{broken} is unhealthy: fan" in two.message
    assert [event.pod for event in facts.of(SharesAllocated)] == ["p4"]


async def test_fail_and_recover(bus: Bus, facts: Facts) -> None:
    """A simulated failure survives a restart of the agent, and only an order to recover ends it."""
    async with agent_of(bus) as agent:
        await agent.ready()
        device = (await devices(facts))[0].id
        await order(bus, verb="fail", device=device, reason="fan broken")
        await facts.count(DeviceHealthChanged, 1)
        await agent.kill()
        await agent.start()
        await agent.ready()
        await order(bus, verb="fail", device=device, reason="fan broken")
        await order(bus, verb="recover", device=device)
        await facts.count(DeviceHealthChanged, 2)
    assert facts.of(DeviceHealthChanged) == [
        DeviceHealthChanged(node=NODE, device=device, healthy=False, reason="fan broken"),
        DeviceHealthChanged(node=NODE, device=device, healthy=True),
    ]
    assert len(facts.of(NodeReported)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"verb": "fail", "device": "GPU-x"}, "not on this node"),
        ({"verb": "explode", "device": "GPU-x"}, "explode"),
        ({"verb": "fail"}, "device"),
        ({"verb": "fail", "device": "GPU-x", "reason": "x" * 5000}, "4096"),
    ],
)
async def test_bad_orders(bus: Bus, words: dict[str, str], said: str) -> None:
    """The agent answers an invalid order with an error, and changes nothing."""
    async with agent_of(bus) as agent:
        await agent.ready()
        answer = await order(bus, **words)
        assert answer["done"] is False
        assert said in str(answer["error"])


async def test_two_agents_of_one_node(bus: Bus, facts: Facts) -> None:
    """Two agents of a node with the same devices record each fact once.

    If another agent reports different devices for the node, an agent logs a warning."""
    async with agent_of(bus) as one, agent_of(bus) as same:
        await asyncio.gather(one.ready(), same.ready())
        device = (await devices(facts))[0].id
        await order(bus, verb="fail", device=device, reason="fan")
        await bind(facts, "p1", (await devices(facts))[1].id)
        await facts.count(SharesAllocated, 1)
        await facts.count(DeviceHealthChanged, 1)
        async with agent_of(bus, "--node", NODE, "--simulate", "1xA10") as other:
            await other.ready()
            await one.logged("another agent reports different devices")
    assert len(facts.of(NodeReported)) == 2
    assert len(facts.of(DeviceHealthChanged)) == 1
    assert len(facts.of(SharesAllocated)) == 1


async def test_a_report_of_an_earlier_life_is_answered(bus: Bus, facts: Facts) -> None:
    """If a health report of the agent's previous run arrives late, the restarted agent corrects it
    with a new report."""
    async with agent_of(bus) as first:
        await first.ready()
    device = (await devices(facts))[0].id
    async with agent_of(bus) as second:
        await second.ready()
        late = DeviceHealthChanged(node=NODE, device=device, healthy=False, reason="late")
        await facts.write(late)
        assert [event.healthy for event in await facts.count(DeviceHealthChanged, 2)] == [
            False,
            True,
        ]


async def test_the_server_restarts(bus: Bus, facts: Facts) -> None:
    """While the ledger is down nothing is lost, and the agent continues afterwards without a
    restart."""
    async with agent_of(bus) as agent:
        await agent.ready()
        first, second = [device.id for device in await devices(facts)]
        await bind(facts, "p1", first)
        await facts.count(SharesAllocated, 1)
        await bus.crash()
        await bus.restart()
        await bind(facts, "p2", second)
        await facts.count(SharesAllocated, 2)
        assert agent.running
    assert [event.pod for event in facts.of(SharesAllocated)] == ["p1", "p2"]


async def test_a_large_fleet_costs_little_to_start(bus: Bus, facts: Facts, tmp_path: Path) -> None:
    """Reporting the 1,213 nodes of a fleet file takes the agent less than five seconds of CPU
    time."""
    rows = "".join(f"node-{i},64000,262144,{(0, 2, 8)[i % 3]},T4\n" for i in range(1213))
    fleet = tmp_path / "nodes.csv"
    fleet.write_text("sn,cpu_milli,memory_mib,gpu,model\n" + rows)
    async with agent_of(bus, "--fleet", str(fleet)) as agent:
        await facts.count(NodeReported, 1213)
        await agent.ready()
        _, measured = await agent.get("/metrics")
    assert len({report.node for report in facts.of(NodeReported)}) == 1213
    (spent,) = (line for line in measured.splitlines() if line.startswith("process_cpu_seconds"))
    assert float(spent.split()[1]) < 5, spent


async def test_it_stops_while_the_ledger_is_away(bus: Bus) -> None:
    """The agent obeys SIGTERM in time while the ledger is down."""
    async with agent_of(bus) as agent:
        await agent.ready()
        await bus.crash()
        assert await agent.stop() == 0


async def test_the_cards_of_a_driver(
    bus: Bus, facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reports an XID error of a GPU at once, and survives a restart of the driver."""
    driver = FakeDriver(tmp_path, "1xA100-40GB:mig+1xT4")
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    async with agent_of(bus, "--node", NODE) as agent:
        await agent.ready()
        (report,) = await facts.count(NodeReported, 1)
        assert ([device.id for device in report.devices], report.simulated) == (driver.ids, False)
        assert [device.mode for device in report.devices] == ["mig", "hami-core"]
        driver.xid(1, 79)
        (ill,) = await facts.count(DeviceHealthChanged, 1)
        assert (ill.device, ill.healthy, ill.reason) == (driver.ids[1], False, "XID 79")
        driver.stop()
        *_, away = await facts.count(DeviceHealthChanged, 3)
        assert away.reason.startswith("NVML: ")
        driver.start()
        *_, back, _ = await facts.count(DeviceHealthChanged, 5)
        assert (back.device, back.healthy) == (driver.ids[0], True)
        assert await agent.stop() == 0
    assert len(facts.of(NodeReported)) == 1
    driver.close()


async def test_a_call_into_the_driver_that_does_not_return(
    bus: Bus, facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a driver call hangs, the agent reports that GPU as unhealthy, names it at /readyz and
    continues to work."""
    driver = FakeDriver(tmp_path, "2xT4")
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    async with agent_of(bus, "--node", NODE) as agent:
        await agent.ready()
        driver.hang(0)
        (ill,) = await facts.count(DeviceHealthChanged, 1)
        assert (ill.device, ill.healthy) == (driver.ids[0], False)
        status, body = await agent.get("/readyz")
        assert status == 503
        assert driver.ids[0] in body
        labels = f'device="{driver.ids[0]}",node="{NODE}"'
        assert f"apportion_agent_driver_hung{{{labels}}} 1.0" in (await agent.get("/metrics"))[1]
        driver.xid(1, 79)
        *_, other = await facts.count(DeviceHealthChanged, 2)
        assert (other.device, other.reason) == (driver.ids[1], "XID 79")
        driver.let_go(0)
        *_, back = await facts.count(DeviceHealthChanged, 3)
        assert (back.device, back.healthy) == (driver.ids[0], True)
        await agent.ready()
        driver.hang(0)
        assert await agent.stop() == 0
    driver.close()


async def test_no_driver_and_no_simulation(bus: Bus) -> None:
    """On a machine without GPUs the agent exits with 78, and its log suggests --simulate."""
    with contextlib.suppress(DevicesUnavailable):
        await NvmlBackend(SystemClock()).close()
        pytest.skip("this machine has a driver")
    async with agent_of(bus, "--node", NODE) as agent:
        line = await agent.logged("cannot continue")
        assert "--simulate 8xH100-80GB" in line["error"]
        assert await agent.ended() == 78


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--simulate", "8xH10"], "H100-80GB"),
        (["--nodes", "3"], "use --fleet, or --simulate"),
        (["--node", "", "--simulate", "1xT4"], "0 characters"),
    ],
)
def test_bad_options(options: list[str], said: str) -> None:
    """For invalid options the agent prints one line that names the fix, and exits with 78 before it
    starts anything."""
    done = CliRunner().invoke(command, ["--nats", "nats://u:p@127.0.0.1:1", *options])
    assert done.exit_code == 78
    assert said in done.output
