"""Tests that the agent recomputes its plan for a container's shares only when the plan's input has
changed."""

from pathlib import Path

from apportion.agent.reporting.view import Claim, NodeView
from apportion.agent.shares.cards import Daemons, Instances
from apportion.agent.shares.preparing import Hands, Rounds, SharePreparing
from apportion.agent.shares.regions import Kept, Regions
from apportion.agent.simulated import SimulatedBackend
from apportion.agent.standalone import Runs
from apportion.core import grants
from apportion_schemas import Configuration, Share
from apportion_schemas.configuration import NvidiaConfiguration
from tests.unit.agent.usage.test_uses import CARD, card, claim

MIB = 1 << 20


async def answered(_claim: Claim, _trouble: str) -> bool:
    """Fail the test if the agent reports the result of an allocation."""
    raise AssertionError


def test_a_plan_is_made_again_only_for_what_has_changed(tmp_path: Path) -> None:
    """The agent reuses the plan for a container's shares until the pod's shares, the configuration
    or a device changes."""
    view, devices = NodeView(), [{CARD: card()}]
    view.held = {pod: claim(pod, Share("main", CARD, 700, 30)) for pod in ("a", "b")}
    backend = SimulatedBackend(())
    hands = Hands(
        Regions(tmp_path),
        Instances(backend),
        Daemons(tmp_path, backend),
        Runs(tmp_path, tmp_path),
        Rounds(),
    )
    node = grants.Node(shares=str(tmp_path))
    preparing = SharePreparing(
        view, lambda: devices[-1], answered, hands, lambda held: grants.grant(held, node)
    )
    configuration = Configuration()

    def same(before: list[Kept]) -> list[bool]:
        now = preparing.kept(configuration)
        return [one is other for one, other in zip(now, before, strict=True)]

    kept = preparing.kept(configuration)
    assert [each.plan.memory for each in kept] == [(700 * MIB,), (700 * MIB,)]
    assert same(kept) == [True, True]

    view.held["a"] = claim("a", Share("main", CARD, 900, 30))
    assert same(kept) == [False, True]
    kept = preparing.kept(configuration)
    assert [each.plan.memory for each in kept] == [(900 * MIB,), (700 * MIB,)]

    configuration = Configuration(nvidia=NvidiaConfiguration(disable_core_limit=True))
    assert same(kept) == [False, False]
    kept = preparing.kept(configuration)
    devices.append({})
    assert preparing.kept(configuration) == []
    devices.append({CARD: card()})
    del view.held["a"]
    assert [each.plan.memory for each in preparing.kept(configuration)] == [(700 * MIB,)]
