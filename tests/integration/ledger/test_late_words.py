"""The gateway counts refused events that came too late, after their pod had ended."""

from pathlib import Path

from apportion.core.ledger.state import RefusedEvent
from apportion.gateway.api.doctor import LateWords
from apportion_schemas import PodBound, PodGone, SharesAllocated
from tests.support.facts import Facts
from tests.support.nats import running_bus


async def test_what_was_said_while_a_pod_ended_came_late(tmp_path: Path) -> None:
    """If an event was refused because its pod had ended, it counts as late. Other refused events do
    not."""
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.submit("p")
        await facts.write(PodGone(uid="p", reason="test"), role="watcher")
        bound = await facts.write(PodBound(pod="p", node="n1", attempt=1), role="binder")
        shares = SharesAllocated(pod="p", node="n1", attempt=1, devices=("g",))
        allocated = await facts.write(shares)
        stray = await facts.write(PodBound(pod="nobody", node="n1", attempt=1), role="binder")
        refused = [
            RefusedEvent(bound, "PodBound", "not live"),
            RefusedEvent(allocated, "SharesAllocated", "not live"),
            RefusedEvent(stray, "PodBound", "not live"),
            RefusedEvent(stray + 1, "PodBound", "not live"),
            RefusedEvent(bound - 1, "PodGone", "not live"),
        ]
        words = LateWords((await bus.connect("gateway")).wire)
        assert await words.among(refused) == {bound, allocated}
        assert await words.among(refused[1:]) == {allocated}, "asked again"
