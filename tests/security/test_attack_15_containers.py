"""Attack 15: a container writes anything into its HAMi-core region and its folder.

The agent still enforces the ledger's limits, protects the other container and reports usage."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from apportion.agent.backend import Load
from apportion.agent.places import Places
from apportion.agent.shares.regions import Kept, Regions, SharedFile
from apportion.agent.usage.account import Account, restored, saved
from apportion.agent.usage.owners import Owners
from apportion.agent.usage.uses import Counted, Look, read, tell_pids
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import Region
from tests.security.tenants import Container
from tests.security.weakened import guarded_but
from tests.unit.agent.usage.test_uses import CARD, card, claim, share

MIB = 1 << 20
GRANTED = 4_000 * MIB
COUNT = 2_008_896
"""The offset of the number of processes in a usage region; see `core.grants.region`."""
PRIORITY, LAST_KERNEL = 12, 16


def look(regions: Regions) -> Look:
    """Take one usage sample of the two containers, as the agent's `Sampling` does."""
    claims = [claim("evil", share()), claim("good", share())]
    counted = Counted(claims, [Load(CARD, 0, 0)], Owners(Path("/nowhere")).of)
    return counted.look({CARD: card()}, read(regions, 1_000.0))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """Provide a folder for a node's shares, and remove it afterwards."""
    yield tmp_path
    subprocess.run(["/bin/rm", "-rf", str(tmp_path)], check=True)


def plan_of(node: Path, pod: str, priority: int = 1) -> RegionPlan:
    """Return the plan of a pod's region file: its path, and the limits from the ledger."""
    path = str(node / f"{pod}_main" / "share.cache")
    return RegionPlan(path, (CARD,), (GRANTED,), (10,), priority)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_container_writes_harms_no_other(node: Path, seed: int) -> None:
    """While one container makes thirty random attacks, the agent protects the other container."""
    run_deeds(node, seed)


@pytest.mark.parametrize(
    ("guard", "harm"),
    [
        ("clips what a region says", "more memory than the card has"),
        ("removes without recursing", "recursion"),
        ("reads one file of a container", "files that the container made"),
        ("takes limits from the ledger", "not the ledger's"),
    ],
)
def test_the_deeds_harm_an_agent_without_its_guard(node: Path, guard: str, harm: str) -> None:
    """Without one of the agent's guards, the attacking container does harm."""

    def run_all() -> None:
        for seed in range(8):
            (node / str(seed)).mkdir()
            run_deeds(node / str(seed), seed)

    with guarded_but(guard), pytest.raises(Exception, match=harm):
        run_all()


@pytest.mark.parametrize("guard", ["", "takes rank and devices from the ledger"])
def test_no_container_stops_another_by_its_own_region(node: Path, guard: str) -> None:
    """A container that claims top priority in its own region does not stop another container."""
    regions = Regions(Places(node, node, node).state)
    plans = [plan_of(node, pod) for pod in ("evil", "good")]
    with guarded_but(guard):
        for plan in plans:
            regions.ensure(plan, starting=True)
        with SharedFile(Path(plans[0].path)) as file:
            file.write(COUNT + PRIORITY, (-5).to_bytes(4, "little", signed=True))
            file.write(COUNT + LAST_KERNEL, (1_000).to_bytes(8, "little"))
        regions.round([Kept("a", plan) for plan in plans], 1_000.0, 10.0)
        with SharedFile(Path(plans[1].path)) as file:
            assert Region(file).blocked is bool(guard)


def run_deeds(node: Path, seed: int) -> None:
    """Let an attacking container act thirty times at random from `seed`. After each act, run the
    agent once and check for harm."""
    regions, account = Regions(Places(node, node, node).state), Account(0)
    plans = [plan_of(node, pod) for pod in ("evil", "good")]
    for plan in plans:
        regions.ensure(plan, starting=True)
    attacker = Container(node / "evil_main", seed)
    for _ in range(30):
        attacker.act()
        found = regions.round([Kept("a", plan) for plan in plans], 1_000.0, 10.0)
        assert {each.pod for each in found} <= {"evil"}
        read_files = [path for _, path in regions.each()]
        assert len(read_files) == len(plans), f"files that the container made: {read_files[:3]}"
        for plan in plans:
            with SharedFile(Path(plan.path)) as file:
                limits = Region(file).memory[:1], Region(file).cores[:1]
                assert limits == ((GRANTED,), (10,)), "not the ledger's"
        with SharedFile(Path(plans[1].path)) as file:
            assert not Region(file).blocked
        seen = look(regions)
        tell_pids(regions, {("evil", "main"): {1: 4711}})
        account.add(seen, 5.0)
        assert [use.memory_limit for use in seen.uses] == [GRANTED, GRANTED]
        (evil, good) = seen.uses
        most = card().memory_mib * MIB
        assert 0 <= evil.memory_used <= most, "more memory than the card has"
        assert (good.memory_used, good.cores_used) == (0, 0)
        (account,) = restored(saved([account]))
        account.ended_s = 3_600.0
    (record,) = account.records("n1")
    assert [used.pod for used in record.shares] == ["evil", "good"]
    msgspec.json.encode(record)
    for _ in range(3):
        regions.keep({"good"})
    assert [pod for pod, _ in regions.each()] == ["good"]
