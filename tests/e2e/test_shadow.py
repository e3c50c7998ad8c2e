"""Shadow mode on a real API server: Apportion binds no pod, and its report is correct."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from typing import Any

from apportion_schemas import NodeReported, PodAdopted, PodBound, PodPlaced
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld


def command(world: KubeWorld, *options: str) -> tuple[str, ...]:
    """Return the command line that runs `apportion shadow` as the operator."""
    url = world.bus.server.url_for("operator")
    return (sys.executable, "-m", "apportion.cli.main", "shadow", "--nats", url, *options)


async def shadow(world: KubeWorld, *options: str) -> str:
    process = await create_subprocess_exec(*command(world, *options), stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def place(world: KubeWorld, name: str, node: str, card: str) -> None:
    """Place a pod as HAMi does: with an annotation and a binding."""
    count = len(world.facts.of(PodAdopted))
    await world.plane.apply(kube_pod(name, share(4_000), schedulerName="hami-scheduler"))
    annotation = {"hami.io/vgpu-devices-allocated": f"{card},NVIDIA,4000,0:;"}
    await world.bind(name, node, annotation)
    await world.facts.count(PodAdopted, count + 1)


async def test_another_scheduler_is_compared_and_left_alone(world: KubeWorld) -> None:
    """`apportion shadow` reports where it would place pods differently from the scheduler in use.

    It changes no pod."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "2xT4"))
    await world.start("watcher", "--scheduler-name=apportion")  # as the chart has it
    await world.start("scheduler")
    (report,) = await world.facts.count(NodeReported, 1)
    first, second = (device.id for device in report.devices)
    await place(world, "one", "n1", first)
    following = await create_subprocess_exec(
        *command(world, "--follow", "--json"), stdout=PIPE, stderr=PIPE
    )
    try:
        assert following.stdout is not None
        lines: list[dict[str, Any]] = [json.loads(await following.stdout.readline())]
        await place(world, "two", "n1", second)
        lines.append(json.loads(await following.stdout.readline()))
    finally:
        following.terminate()
        _, told = await asyncio.wait_for(following.communicate(), 20)
    assert b"; stop with Ctrl-C" in told, "until the first pod comes it would say nothing"
    assert [each["verdict"] for each in lines] == ["same", "other-devices"]
    assert lines[1]["ours"] == {"node": "n1", "devices": [first], "opened": 0}
    answer = json.loads(await shadow(world, "--json"))
    assert answer["pods"] == lines
    assert (answer["opened_theirs"], answer["opened_ours"]) == (2, 1)
    said = await shadow(world)
    assert "default/two" in said
    assert "default/one" not in said
    assert re.search(r"\b2\b.*\b1\b.*\b1\b", said)
    assert not [*world.facts.of(PodPlaced), *world.facts.of(PodBound)]
