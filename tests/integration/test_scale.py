"""Several schedulers on a real ledger share the pods, and replace a scheduler that leaves."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Self

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from apportion.core.ledger.invariants import violations
from apportion.core.placement.queueing.sharding import owner
from apportion_schemas import PodGone, PodPlaced, PodRefused, QuotaObserved
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.ledger_of import replayed
from tests.support.nats import Bus, running_bus
from tests.support.pods import ask, gang, member, pod
from tests.support.polling import until
from tests.support.processes import NO_AGENTS, ServiceProcess

NODES = 60
SMALL = ask(4_000, cores=5)
PATIENT = """\
from apportion.runtime.ledger import membership
membership.SILENT_ROUNDS = 1 << 30
"""
"""A build whose services never take another for gone because it is silent."""


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Provide a NATS server with the stream and the shipped permissions."""
    async with running_bus(tmp_path) as running:
        yield running


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger to which a fleet of nodes is reported."""
    reading = Facts(bus)
    await reading.open()
    await reading.write(*(rack(f"n{number:02}", 8) for number in range(NODES)))
    return reading


class Schedulers:
    """The running scheduler processes, by name. Leaving the `async with` block stops them."""

    def __init__(self, bus: Bus, build: Path | None = None) -> None:
        self._build = build
        self._url = bus.server.url_for("scheduler")
        self._stack = AsyncExitStack()
        self.running: dict[str, ServiceProcess] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def start(self, *names: str) -> None:
        """Start these schedulers, and wait until all running schedulers know one another."""
        for name in names:
            service = ServiceProcess(
                "scheduler", self._url, "--name", name, *NO_AGENTS, build=self._build
            )
            await self._stack.enter_async_context(service)
            self.running[name] = service
        await self.agreed()

    async def agreed(self) -> tuple[str, ...]:
        """Wait until every running scheduler lists all running schedulers, and return that list."""

        async def one_list() -> tuple[str, ...]:
            lists = {members_of(each) for each in self.running.values()}
            found = lists.pop()
            return found if not lists and len(found) == len(self.running) else ()

        return await until(one_list, f"{list(self.running)} to know one another")

    async def all_have_taken(self) -> None:
        """Wait until the metrics of every scheduler count at least one decision with the outcome
        "taken"."""

        async def told() -> bool:
            return all([await self._told(name, "taken") for name in self.running])

        await until(told, "each to have taken a decision")

    async def _told(self, name: str, outcome: str) -> float:
        """Return how many decisions with this outcome the scheduler's metrics count."""
        _, text = await self.running[name].get("/metrics")
        samples = (sample for family in families(text) for sample in family.samples)
        return sum(
            sample.value
            for sample in samples
            if sample.name == "apportion_decisions_total" and sample.labels["outcome"] == outcome
        )


def members_of(service: ServiceProcess) -> tuple[str, ...]:
    """Return the newest list of schedulers that this scheduler has logged."""
    lists = [line["here"] for line in service.log if line.get("event") == "members"]
    return tuple(lists[-1]) if lists else ()


def lists_of(service: ServiceProcess) -> list[list[str]]:
    """Return the member lists that this scheduler logged, except the lists that name only itself.

    On a busy machine there may be several lists, because heartbeats may be late."""
    lists = [line["here"] for line in service.log if line.get("event") == "members"]
    return [held for held in lists if len(held) > 1]


def life_of(name: str, members: Iterable[str]) -> str:
    """Return the entry for the scheduler `name` in a list of schedulers. An entry is `NAME/…`."""
    return next(member for member in members if member.startswith(f"{name}/"))


def uids_of(life: str, members: tuple[str, ...], count: int) -> list[str]:
    """Return `count` pod uids that belong to the scheduler `life` when `members` share the pods."""
    endless = (f"{life.partition('/')[0]}-{number}" for number in range(100_000))
    return list(islice((uid for uid in endless if owner(uid, members) == life), count))


def placed_by(facts: Facts) -> dict[str, str]:
    """Return the name of the scheduler that placed each pod, by uid. Fail if a pod was placed
    twice."""
    placed = [e for _, e in facts.events if isinstance(e.data, PodPlaced)]
    counts = Counter(event.data.pod for event in placed)
    assert set(counts.values()) <= {1}, counts.most_common(3)
    return {event.data.pod: event.source.removeprefix("scheduler/") for event in placed}


def check(facts: Facts, pods: int) -> None:
    """Check that all pods are placed once and that no invariant is violated."""
    state = replayed(*(event.data for _, event in facts.events))
    assert violations(state) == []
    assert len(placed_by(facts)) == pods


async def test_they_share_the_pods(bus: Bus, facts: Facts) -> None:
    """Each pod is placed by the scheduler that owns it, and all pods of a gang by one scheduler.
    Every scheduler places some pods."""
    async with Schedulers(bus) as schedulers:
        await schedulers.start("a", "b", "c")
        members = await schedulers.agreed()
        await facts.write(gang("team/job", 12))
        await facts.write(*(member(f"g{number}", SMALL) for number in range(12)))
        await facts.write(*(pod(f"p{number:03}", SMALL) for number in range(300)))
        await facts.count(PodPlaced, 312)
        check(facts, 312)
        found = placed_by(facts)
        assert len({found[f"g{number}"] for number in range(12)}) == 1
        for uid, name in found.items():
            key, life = "team/job" if uid.startswith("g") else uid, life_of(name, members)
            assert life in {owner(key, held) for held in lists_of(schedulers.running[name])}
        await schedulers.all_have_taken()


async def test_they_keep_a_namespace_within_its_quota_together(bus: Bus, facts: Facts) -> None:
    """Only one of three schedulers places the pods of a namespace with a quota.

    The namespace never exceeds the quota. When some of its pods end, more are placed."""
    hard = {"requests.nvidia.com/gpu": 20, "limits.nvidia.com/gpumem": 70_000}
    await facts.write(QuotaObserved(namespace="team", quota="gpus", hard=hard))
    async with Schedulers(bus) as schedulers:
        await schedulers.start("a", "b", "c")
        before = [lists_of(each) for each in schedulers.running.values()]
        await facts.write(*(pod(f"t{n:02}", SMALL, namespace="team") for n in range(40)))
        await facts.write(*(pod(f"p{n:02}", SMALL) for n in range(60)))
        await facts.count(PodPlaced, 60 + 17)
        await facts.count(PodRefused, 23)
        inside = [uid for uid in placed_by(facts) if uid.startswith("t")]
        await facts.write(*(PodGone(uid=uid) for uid in inside[:7]))
        await facts.count(PodPlaced, 60 + 17 + 7)
        found = placed_by(facts)
        if before == [lists_of(each) for each in schedulers.running.values()]:
            assert len({name for uid, name in found.items() if uid.startswith("t")}) == 1
            assert most_held(facts, "t") == 17


def most_held(facts: Facts, prefix: str) -> int:
    """Return the largest number of pods with this uid prefix that were placed at the same time."""
    held, most = set[str](), 0
    for _, event in facts.events:
        if isinstance(event.data, PodPlaced) and event.data.pod.startswith(prefix):
            held.add(event.data.pod)
        elif isinstance(event.data, PodGone):
            held.discard(event.data.uid)
        most = max(most, len(held))
    return most


async def test_two_of_one_name_are_two(bus: Bus, facts: Facts) -> None:
    """Two schedulers with the same name share the pods as schedulers with different names do."""
    async with Schedulers(bus) as schedulers:
        await schedulers.start("a")
        schedulers.running["the first"] = schedulers.running["a"]
        await schedulers.start("a")
        members = await schedulers.agreed()
        assert len(set(members)) == 2
        await facts.write(*(pod(f"p{number:03}", SMALL) for number in range(40)))
        await facts.count(PodPlaced, 40)
        check(facts, 40)
        await schedulers.all_have_taken()


async def test_the_others_take_over_what_a_killed_one_had(bus: Bus, facts: Facts) -> None:
    """When a scheduler is killed, the others place all its pods. tests.benchmarks.scale measures
    the delay."""
    async with Schedulers(bus) as schedulers:
        await schedulers.start("a", "b", "c")
        members = await schedulers.agreed()
        uids = uids_of(life_of("b", members), members, 60)
        killed = schedulers.running.pop("b")
        writing = asyncio.create_task(facts.write(*(pod(uid, SMALL) for uid in uids)))
        await killed.kill()
        await writing
        await facts.count(PodPlaced, 60)
        check(facts, 60)
        assert {"a", "c"} <= set(placed_by(facts).values())
        assert len(await schedulers.agreed()) == 2


async def test_who_is_stopped_hands_over_at_once(bus: Bus, facts: Facts) -> None:
    """A scheduler stopped by SIGTERM hands over its pods at once, without a timeout."""
    async with Schedulers(bus) as schedulers:
        await schedulers.start("a", "b")
        stopped = schedulers.running.pop("b")
        assert await stopped.stop() == 0
        await schedulers.agreed()
        left = [line for line in schedulers.running["a"].log if line.get("event") == "members"]
        assert [len(line["here"]) for line in left][-2:] == [2, 1]
        await facts.write(*(pod(f"p{number:03}", SMALL) for number in range(40)))
        await facts.count(PodPlaced, 40)
        check(facts, 40)


async def test_joining_and_leaving_make_nobody_wait(
    bus: Bus, facts: Facts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """When schedulers join and leave while pods arrive, no placement is delayed.

    The timeout for silent schedulers is disabled, so the test fails if a pod has to wait for it."""
    build = tmp_path_factory.mktemp("patient")
    (build / "sitecustomize.py").write_text(PATIENT)

    async def submit(first: int, count: int) -> None:
        before = len(placed_by(facts))
        for number in range(count):
            await facts.write(pod(f"p{first + number:03}", SMALL))
            await facts.count(PodPlaced, before + number + 1)

    async with Schedulers(bus, build) as schedulers:
        await schedulers.start("a", "b")
        load = asyncio.create_task(submit(0, 150))
        await schedulers.start("c")
        await load
        members = await schedulers.agreed()
        joined = life_of("c", members)
        counted = {name: first_list(each, joined) for name, each in schedulers.running.items()}
        assert counted["c"] == min(counted.values()), "nobody leaves pods to one not yet there"
        taken = uids_of(joined, members, 5)
        await facts.write(*(pod(uid, SMALL) for uid in taken))
        await facts.count(PodPlaced, 155)
        assert {placed_by(facts)[uid] for uid in taken} == {"c"}
        load = asyncio.create_task(submit(200, 50))
        await schedulers.running.pop("a").stop()
        await load
        check(facts, 205)


def first_list(service: ServiceProcess, member: str) -> str:
    """Return the time of the scheduler's first log line that lists `member` as a scheduler."""
    lists = (line for line in service.log if line.get("event") == "members")
    return next(str(line["time"]) for line in lists if member in line["here"])
