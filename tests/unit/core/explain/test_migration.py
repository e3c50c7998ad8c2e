"""Tests of `GET /migration`: nodes by device source, pods by scheduler, and the next step."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.answers.reads import PlacedRow, SourceRow
from apportion.core.explain.migration import QUIET_PODS, migration_answer
from apportion.core.ledger.handlers.turns import AT_ALLOCATE, handing_out
from apportion_schemas import (
    DEVICE_PLUGIN,
    Configuration,
    ConfigurationChanged,
    DeviceConstraints,
    DifferenceFound,
    NodeSilent,
    PodAdopted,
    Taint,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import gpu, observed, rack, registered
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, shape, share

CONFIGURED = ConfigurationChanged(
    by="a", configuration=Configuration(scheduler_names=("apportion",))
)
UNCONFIGURED = ConfigurationChanged(by="a")


def taken(name: str, at: str, *, attempt: int = 0, namespace: str = "research") -> PodAdopted:
    """Return the event that adopts a pod with one GPU. If `attempt` is not 0, Apportion had placed
    the pod earlier."""
    about = structs.replace(pod(name, ask(1000)), namespace=namespace)
    return PodAdopted(
        pod=name, node=at, submitted=about, shares=(share(f"{at}-g0", 1000),), running=True,
        attempt=attempt,
    )  # fmt: skip


def theirs(name: str, plugin: Any = "hami", **fields: Any) -> list[Payload]:
    """Return the events of a node whose GPU another system's plugin registered."""
    labels = {DEVICE_PLUGIN: plugin} if fields.pop("allowed", False) else {}
    devices = () if fields.get("problem") else (gpu(f"{name}-g0"),)
    return [observed(name, labels=labels), registered(name, plugin, devices=devices, **fields)]


def ours(name: str) -> list[Payload]:
    """Return the events of a node whose GPU Apportion's agent allocates."""
    report = rack(name, 1)
    host = handing_out(report.host, AT_ALLOCATE)
    return [observed(name), structs.replace(report, host=host)]


def bare(name: str) -> list[Payload]:
    """Return the events of a node that has GPUs but no agent."""
    return [observed(name, extended={"nvidia.com/gpu": 4})]


MINE = taken("m", "n2", attempt=1)
BOTH = [*theirs("n1"), *ours("n2")]


@pytest.mark.parametrize(
    ("events", "stage", "step", "target"),
    [
        ([], "agents", "done", ""),
        ([*theirs("n1"), taken("a", "n1")], "shadow", "shadow", ""),
        ([*theirs("n1"), taken("a", "n1"), CONFIGURED], "shadow", "label-node", "n1"),
        ([*theirs("n1", problem="bad"), CONFIGURED], "shadow", "repair-plugin", "n1"),
        ([*bare("n1"), CONFIGURED], "agents", "take-over-node", "n1"),
        ([*BOTH, CONFIGURED, taken("a", "n1")], "shadow", "move-namespace", "research"),
        ([*BOTH, CONFIGURED, taken("a", "n1"), MINE], "both", "move-more", "research"),
        ([*BOTH, CONFIGURED, MINE], "scheduler", "label-node", "n1"),
        (
            [*theirs("n1", allowed=True), *ours("n2"), CONFIGURED, MINE],
            "scheduler",
            "stop-old-scheduler",
            "",
        ),
        (
            [*theirs("n1", allowed=True), *ours("n2"), UNCONFIGURED, MINE],
            "scheduler",
            "replace-plugins",
            "n1",
        ),
        ([*ours("n2"), CONFIGURED, MINE], "agents", "stop-old-scheduler", ""),
        ([*ours("n2"), *bare("n3"), MINE], "agents", "take-over-node", "n3"),
        ([*ours("n2"), UNCONFIGURED, MINE], "agents", "done", ""),
    ],
)
def test_each_step_follows_from_the_ledger(
    events: list[Payload], stage: str, step: str, target: str
) -> None:
    """The answer has the stage, the next step and the step's node or namespace."""
    answer = migration_answer(Ledger(*events).state)
    assert (answer.stage, answer.step, answer.target) == (stage, step, target)


LABELLED = theirs("n1", allowed=True)
SILENT = NodeSilent(node="n1", grace_s=30)
OPEN = [*theirs("n1", allowed=True), *theirs("n2")]


@pytest.mark.parametrize(
    ("events", "back", "target"),
    [
        ([], "uninstall", ""),
        ([*theirs("n1"), taken("a", "n1"), CONFIGURED], "uninstall", ""),
        ([*OPEN, UNCONFIGURED], "restore-names", ""),
        ([*OPEN, taken("m", "n1", attempt=1)], "restore-names", ""),
        ([*OPEN, CONFIGURED, taken("m", "n1", attempt=1)], "return-namespace", "research"),
        ([*OPEN, CONFIGURED, pod("pending")], "return-namespace", "default"),
        ([*LABELLED, CONFIGURED, taken("m", "n1", attempt=1)], "return-node", "n1"),
        ([*OPEN, *ours("n3"), CONFIGURED], "return-node", "n1"),
        ([*theirs("n1"), *ours("n2"), CONFIGURED], "return-agent", "n2"),
        ([*theirs("n1"), *ours("n2"), CONFIGURED, MINE], "return-namespace", "research"),
        ([*ours("n2"), CONFIGURED, MINE], "return-agent", "n2"),
        ([*theirs("n1"), CONFIGURED, taken("m", "n1", attempt=1)], "return-namespace", "research"),
        (
            [*ours("n1"), registered("n1", devices=(gpu("n1-g0"),)), CONFIGURED],
            "return-agent",
            "n1",
        ),
        (
            [*ours("n1"), registered("n1", devices=(gpu("n1-g0"),)), CONFIGURED, SILENT],
            "uninstall",
            "",
        ),
    ],
)
def test_each_step_back_follows_from_the_ledger(
    events: list[Payload], back: str, target: str
) -> None:
    """When a cluster leaves Apportion, the old scheduler first gets one node, then the pods of the
    namespaces, and then the other nodes."""
    answer = migration_answer(Ledger(*events).state)
    assert (answer.back, answer.back_target) == (back, target)


def test_a_node_is_given_back_when_its_pods_are_bound() -> None:
    """When an operator has removed a node's label, the taint stays until Apportion has bound all
    pods that it placed on the node."""
    wants = shape(ask(1000), devices=DeviceConstraints(plugin="hami"))
    ledger = Ledger(*OPEN, CONFIGURED, pod("a", shape=wants)).settle()
    answer = migration_answer(ledger.state)
    assert (answer.unbound, answer.unbound_count) == (("default/a",), 1)
    assert (answer.back_pods, answer.back_pods_count, answer.tainted) == (("default/a",), 1, False)
    assert (answer.back, answer.back_target) == ("return-namespace", "default")
    taint = Taint(key="scheduler", value="apportion", effect="NoSchedule")
    answer = migration_answer(ledger.play(observed("n1", taints=(taint,))).state)
    assert (answer.back, answer.back_target, answer.tainted) == ("bind-pods", "n1", True)
    answer = migration_answer(ledger.bound("a").state)
    assert (answer.unbound, answer.back, answer.back_target) == ((), "untaint-node", "n1")
    answer = migration_answer(ledger.play(observed("n1")).state)
    assert answer.back == "return-namespace"


def test_nodes_are_counted_by_what_allocates_their_devices() -> None:
    """Nodes are grouped by the program that allocates their devices, by whether Apportion may place
    pods there, and by the plugin's problem.

    A node whose agent only reports is `shadow`. A node without devices is left out."""
    nodes = [*theirs("n1"), *theirs("n10"), *theirs("n2", "volcano", allowed=True), *ours("n3")]
    nodes += [*theirs("n4", problem="bad"), *bare("n5"), observed("n6"), observed("n7")]
    answer = migration_answer(Ledger(*nodes, rack("n7", 2)).state)
    assert answer.sources == (
        SourceRow("agent", placeable=True, nodes=1, devices=1, first=("n3",)),
        SourceRow("hami", placeable=False, nodes=2, devices=2, first=("n1", "n10")),
        SourceRow("hami", placeable=False, problem="bad", nodes=1, first=("n4",)),
        SourceRow("none", placeable=False, nodes=1, first=("n5",)),
        SourceRow("shadow", placeable=False, nodes=1, devices=2, first=("n7",)),
        SourceRow("volcano", placeable=True, nodes=1, devices=1, first=("n2",)),
    )


def test_pods_are_counted_by_namespace_and_scheduler() -> None:
    """A bound pod with an attempt number counts as placed by Apportion, even if the ledger was
    lost. A pod without devices does not count."""
    ledger = Ledger(*BOTH, MINE, taken("a", "n1"), taken("b", "n1", namespace="web"))
    ledger.play(taken("c", "n1", namespace="web"), pod("d", ask(1000)), pod("e")).settle()
    answer = migration_answer(ledger.state)
    assert answer.namespaces == (
        PlacedRow("web", others=2),
        PlacedRow("research", ours=1, others=1, left=1),
        PlacedRow("default", ours=1, left=2),
    )
    assert (answer.step, answer.target) == ("move-more", "research")
    assert (answer.pods, answer.pods_count) == (("research/a",), 1)


def test_pods_without_a_controller_are_reported() -> None:
    """The answer says if none of the pods that the step moves has a controller."""
    alone, other = taken("a", "n1"), taken("b", "n1")
    owned = structs.replace(other, submitted=structs.replace(other.submitted, owner="Job/b"))
    assert migration_answer(Ledger(*BOTH, MINE, alone).state).pods_alone
    assert not migration_answer(Ledger(*BOTH, MINE, alone, owned).state).pods_alone
    assert not migration_answer(Ledger(*BOTH, MINE).state).pods_alone


def test_a_pod_that_fits_no_node_is_pending() -> None:
    """A pod with devices is counted as pending, and not as placed, until a node takes it."""
    ledger = Ledger(*LABELLED, CONFIGURED, pod("a", ask(1000))).settle()
    answer = migration_answer(ledger.state)
    assert answer.namespaces == (PlacedRow("default", left=1, pending=1),)


def test_a_second_scheduler_comes_first_until_it_is_quiet() -> None:
    """If another scheduler has bound a pod of Apportion, the next step is `conflict`. This ends
    when the configuration changes, or when Apportion has placed enough pods since then."""
    rival = DifferenceFound(kind="overtaken", name="research/a", pod="a", cluster="n1")
    ledger = Ledger(*ours("n1"), *ours("n2"), taken("a", "n1"), MINE, rival)
    answer = migration_answer(ledger.state)
    assert (answer.step, answer.overtaken) == ("conflict", ("research/a",))
    assert answer.overtaken_count == 1
    changed = Ledger(*ledger.events, CONFIGURED)
    assert migration_answer(changed.state).step == "move-more"
    ledger.play(*(pod(f"p{at}", ask(100)) for at in range(QUIET_PODS - 1))).settle()
    assert migration_answer(ledger.state).step == "conflict"
    ledger.play(pod("last", ask(100))).settle()
    assert migration_answer(ledger.state).step == "move-more"
    assert migration_answer(ledger.gone("a").state).overtaken == ()
