"""Attack 15: a container writes anything into its region and its folder.

A seeded fuzz over the agent's own code, as its rounds call it. Whatever a container does, every
round ends, its record can be encoded, what is granted stays the ledger's, its neighbour is left
alone, and its folder goes with its pod.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apportion.agent.places import Places
from apportion.agent.shares.regions import Kept, Regions, SharedFile
from apportion.agent.usage.account import Account, restored, saved
from apportion.agent.usage.owners import Owners
from apportion.agent.usage.regions import read, tell_pids
from apportion.agent.usage.uses import Counted, Look
from apportion.core.grants import RegionPlan
from apportion.core.grants.region import Region
from tests.security.tenants import Container
from tests.unit.agent.usage.test_uses import CARD, card, claim, share

MIB = 1 << 20
GRANTED = 4_000 * MIB


def look(regions: Regions) -> Look:
    """One look, as `Sampling` has it."""
    claims = [claim("evil", share()), claim("good", share())]
    counted = Counted(claims, [], Owners(Path("/nowhere")).of)
    return counted.look({CARD: card()}, read(regions, 1_000.0))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A node's folder of shares. pytest recurses when it removes a folder; `rm` does not."""
    yield tmp_path
    subprocess.run(["/bin/rm", "-rf", str(tmp_path)], check=True)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_container_writes_harms_no_other(node: Path, seed: int) -> None:
    """Thirty deeds, and after each of them what the agent does every few seconds."""
    regions, account = Regions(Places(node, node, node).state), Account(0)
    plans = [
        RegionPlan(str(node / f"{pod}_main" / "share.cache"), (CARD,), (GRANTED,), (10,))
        for pod in ("evil", "good")
    ]
    for plan in plans:
        regions.ensure(plan, starting=True)
    attacker = Container(node / "evil_main", seed)
    for _ in range(30):
        attacker.act()
        found = regions.round([Kept("a", plan) for plan in plans], 1_000.0, 10.0)
        assert {each.pod for each in found} <= {"evil"}
        for plan in plans:
            with SharedFile(Path(plan.path)) as file:
                assert (Region(file).memory[0], Region(file).cores[0]) == (GRANTED, 10)
        with SharedFile(Path(plans[1].path)) as file:
            assert not Region(file).blocked
        seen = look(regions)
        tell_pids(regions, {("evil", "main"): {1: 4711}})
        account.add(seen, 5.0)
        assert [use.memory_limit for use in seen.uses] == [GRANTED, GRANTED]
        (evil, good) = seen.uses
        assert 0 <= evil.memory_used <= card().memory_mib * MIB
        assert (good.memory_used, good.cores_used) == (0, 0)
        (account,) = restored(saved([account]))
        account.ended_s = 3_600.0
    (record,) = account.records("n1")
    assert [used.pod for used in record.shares] == ["evil", "good"]
    for _ in range(3):
        regions.keep({"good"})
    assert [pod for pod, _ in regions.each()] == ["good"]
