"""What an intake believes of an agent: who, what, and whether it can be so."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.intake.answers import append_id, may_be_answered, node_of_subject
from apportion.core.intake.buckets import Bucket
from apportion.core.intake.judging import Doubt, Known, Refusal, Verdict, judge
from apportion_schemas import (
    AllocationFailed,
    ConfigurationChanged,
    DeviceHealthChanged,
    Event,
    NodeGone,
    PlacementVoided,
    PodBound,
    ReportRefused,
    ShareBreached,
    SharesAllocated,
    UsageRecorded,
)
from apportion_schemas.configuration import Configuration
from apportion_schemas.quantities import Payload
from apportion_schemas.usage import ShareUsed
from tests.support.fleet import gpu, node, rack
from tests.support.ledger_of import TIME, Ledger
from tests.support.pods import ask, placed, pod, share


def said(
    ledger: Ledger, data: Payload, *, by: str = "n1", basis: int = 0, cause: int = 0
) -> Verdict:
    """What becomes of an event that the agent of a node signs."""
    event = Event(id="x", source=f"agent/{by}", time=TIME, data=data, basis=basis, cause=cause)
    return judge(ledger.state, "n1", event)


def cause(verdict: Verdict) -> str:
    """The name of a refusal; empty for anything else."""
    return verdict.cause if isinstance(verdict, Refusal) else ""


@pytest.fixture
def ledger() -> Ledger:
    """Two nodes, and a bound pod on each: `p1` on n1, `p2` on n2."""
    made = Ledger(rack("n1", 2), rack("n2", 2))
    for name, there in (("p1", "n1"), ("p2", "n2")):
        made.submit(pod(name, ask(1000)))
        made.play(placed(name, there, [share(f"{there}-g0")]))
        made.play(PodBound(pod=name, node=there, attempt=1))
    return made


def test_what_honest_agents_say_passes(ledger: Ledger) -> None:
    """Reports, health, answers and use of one's own."""
    device = "n1-g0"
    for data in (
        rack("n1", 3),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"),
        SharesAllocated(pod="p1", node="n1", attempt=1, devices=(device,)),
        AllocationFailed(pod="p1", node="n1", attempt=1, message="no"),
        breach("p1", device),
        UsageRecorded(node="n1", seconds=3600, shares=(used(device, "p1"),)),
    ):
        assert said(ledger, data) is None


def breach(pod: str, device: str, **more: Any) -> ShareBreached:
    """What an agent found of the pod's container."""
    at: dict[str, Any] = {"node": "n1", "attempt": 1} | more
    return ShareBreached(pod=pod, container="main", device=device, code="raised", **at)


def test_only_the_node_of_a_share_reports_its_breach(ledger: Ledger) -> None:
    """Neither another node, nor of a device that the pod does not hold, nor of a pod that left."""
    assert cause(said(ledger, breach("p2", "n2-g0"))) == "pod-of-another-node"
    assert cause(said(ledger, breach("p1", "n1-g1"))) == "unknown-device"
    assert cause(said(ledger, breach("p1", "n1-g0", attempt=2))) == "late"
    assert cause(said(ledger, breach("p9", "n1-g0"))) == "late"


def test_what_stands_there_is_not_said_again(ledger: Ledger) -> None:
    """Unless a card's health was told of since: then the report says that it is well; or people are
    told that one was refused, which one that is taken ends."""
    assert said(ledger, rack("n1", 2)) == Known(1)
    ledger.play(ReportRefused(node="n1", cause="implausible-device", message="a T4 of 16 TiB"))
    assert said(ledger, rack("n1", 2)) is None
    ledger.play(rack("n1", 2))
    assert said(ledger, rack("n1", 2)) == Known(ledger.state.revision)
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="x"))
    assert said(ledger, rack("n1", 2)) is None


def used(device: str, uid: str, **more: int) -> ShareUsed:
    """An hour's use of a share."""
    amounts: Any = {"seconds": 3600, "memory_mib_seconds": 36_000, "memory_mib_peak": 10} | more
    return ShareUsed(
        pod=uid, namespace="default", name=uid, container="main", device=device, memory_mib=1000,
        **amounts,
    )  # fmt: skip


def test_nobody_signs_for_another(ledger: Ledger) -> None:
    """Nor from what lies behind what it had read."""
    assert cause(said(ledger, rack("n1", 2), by="n2")) == "foreign-source"
    assert cause(said(ledger, rack("n1", 2), basis=1, cause=2)) == "future-basis"


def test_a_card_of_another_node_is_not_taken(ledger: Ledger) -> None:
    """The refusal says whose it is; once that node is gone, or reports without it, it may move."""
    stolen = node("n1", gpu("n2-g0"))
    refusal = said(ledger, stolen)
    assert cause(refusal) == "device-of-another-node"
    assert isinstance(refusal, Refusal)
    assert "on node n2" in refusal.why
    ledger.play(NodeGone(node="n2"))
    assert said(ledger, stolen) is None


def test_an_older_configuration_is_no_lie(ledger: Ledger) -> None:
    """What it said was so when it was said; its agent tells anew."""
    scaled = node("n1", gpu("n1-g0", memory_mib=163_840, physical_memory_mib=81_920))
    before = ledger.state.revision
    assert cause(said(ledger, scaled, basis=before)) == "implausible-device"
    ledger.play(ConfigurationChanged(by="test", configuration=Configuration()))
    assert cause(said(ledger, scaled, basis=before)) == "stale"
    assert cause(said(ledger, scaled, basis=ledger.state.revision)) == "implausible-device"


def test_health_is_of_its_own_cards(ledger: Ledger) -> None:
    """Of no other."""
    sick = DeviceHealthChanged(node="n1", device="n2-g0", healthy=False)
    assert cause(said(ledger, sick)) == "unknown-device"


def test_answers_are_for_pods_of_the_node(ledger: Ledger) -> None:
    """Another node's is forged, for no two placements have one attempt; a voided one is late."""
    forged = SharesAllocated(pod="p2", node="n1", attempt=1, devices=())
    assert cause(said(ledger, forged)) == "pod-of-another-node"
    other = SharesAllocated(pod="p1", node="n1", attempt=1, devices=("n2-g0",))
    assert cause(said(ledger, other)) == "unknown-device"
    answer = SharesAllocated(pod="p1", node="n1", attempt=1, devices=())
    assert said(ledger, answer) is None
    revision = ledger.play(answer).state.revision
    assert said(ledger, answer) == Known(revision)
    ledger.play(PlacementVoided(pod="p2", node="n2", attempt=1, reason="test"))
    assert cause(said(ledger, forged)) == "late"
    assert cause(said(ledger, structs.replace(answer, pod="nobody"))) == "late"


def test_use_is_what_a_card_can_do_and_of_whose_it_is(ledger: Ledger) -> None:
    """Nobody is charged in another's name."""
    for use, name in (
        (used("n2-g0", "p1"), "device-of-another-node"),
        (used("not-reported-yet", "p1"), "unknown-device"),
        (used("n1-g0", "p1", memory_mib_peak=1_000_000), "implausible-use"),
        (used("n1-g0", "p1", memory_mib_seconds=1 << 50), "implausible-use"),
        (used("n1-g0", "p1", seconds=1 << 30), "implausible-use"),
        (structs.replace(used("n1-g0", "p2"), namespace="other"), "implausible-use"),
    ):
        record = UsageRecorded(node="n1", seconds=3600, shares=(use,))
        assert cause(said(ledger, record)) == name


def test_use_by_a_pod_that_does_not_hold_the_device_is_doubtful(ledger: Ledger) -> None:
    """It is on another node, has another card, or is not known; `Holdings` reads what it held."""
    for use in (used("n1-g0", "p2"), used("n1-g1", "p1"), used("n1-g0", "p9")):
        record = UsageRecorded(node="n1", seconds=3600, shares=(used("n1-g0", "p1"), use))
        assert said(ledger, record) == Doubt(record, (use,))


def test_an_id_is_the_nodes_own() -> None:
    """Whatever an agent calls its event: a fence, another's, or something endless."""
    for fence in ("p1/1/placed", "intake/n2/x", "x" * 9_000):
        made = append_id("n1", fence)
        assert made.startswith("intake/n1/")
        assert len(made) <= 512
    assert append_id("a", "b/c") != append_id("a/b", "c")
    assert append_id("ü" * 253, "é\n").isascii()
    assert len(append_id("ü" * 253, "x" * 512)) <= 512


@pytest.mark.parametrize(
    ("reply", "may"),
    [
        ("_INBOX_agent.abc.1", True),
        ("_INBOX_agent-n1.abc.1", True),
        ("_INBOX_agent", False),
        ("_INBOX_scheduler.abc.1", False),
        ("_INBOX.abc", False),
        ("$JS.ACK.APPORTION.binder.1.1.1.1.0", False),
        ("apportion.v1.placement.n1", False),
        ("_INBOX_agent.>", False),
        ("", False),
    ],
)
def test_answers_go_to_agents_alone(reply: str, may: bool) -> None:
    """An intake may send what no agent may, so it is not led to."""
    assert may_be_answered(reply) is may


def test_a_node_has_one_subject() -> None:
    """Another spelling of its name is nobody's."""
    assert node_of_subject("apportion.intake.rack%2E1") == "rack.1"
    assert node_of_subject("apportion.intake.%6E1") == ""


def test_a_bucket_gives_what_flowed_in() -> None:
    """At once what it holds, then as fast as it fills."""
    bucket = Bucket(10, 5, now_s=0.0)
    assert [bucket.take(1, 0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(1, 0.1) == pytest.approx(0.1)
    assert not bucket.full(0.5)
    assert bucket.full(10.0)
