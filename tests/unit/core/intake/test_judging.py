"""Tests of which events an intake accepts from an agent, by sender, content and plausibility."""

from typing import Any

import pytest
from msgspec import structs

from apportion.core.intake.answers import append_id, may_be_answered, node_of_subject
from apportion.core.intake.judging import Doubt, Known, Refusal, Verdict, judge
from apportion.runtime.service.limits import Bucket
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
    """Return the intake's verdict on an event that arrives from node n1 and names agent `by` as its
    source."""
    event = Event(id="x", source=f"agent/{by}", time=TIME, data=data, basis=basis, cause=cause)
    return judge(ledger.state, "n1", event)


def cause(verdict: Verdict) -> str:
    """Return the cause if the intake refused the event, or else an empty string."""
    return verdict.cause if isinstance(verdict, Refusal) else ""


@pytest.fixture
def ledger() -> Ledger:
    """Return a ledger with two nodes and a bound pod on each: `p1` on n1, `p2` on n2."""
    made = Ledger(rack("n1", 2), rack("n2", 2))
    for name, there in (("p1", "n1"), ("p2", "n2")):
        made.submit(pod(name, ask(1000)))
        made.play(placed(name, there, [share(f"{there}-g0")]))
        made.play(PodBound(pod=name, node=there, attempt=1))
    return made


def test_what_honest_agents_say_passes(ledger: Ledger) -> None:
    """The intake accepts every kind of event that an honest agent sends about its own node."""
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
    """Return an event in which an agent reports that the pod's container exceeds its share."""
    at: dict[str, Any] = {"node": "n1", "attempt": 1} | more
    return ShareBreached(pod=pod, container="main", device=device, code="raised", **at)


def test_only_the_node_of_a_share_reports_its_breach(ledger: Ledger) -> None:
    """The intake accepts a report that a pod exceeds its share only from the share's node.

    The share must belong to a live pod."""
    assert cause(said(ledger, breach("p2", "n2-g0"))) == "pod-of-another-node"
    assert cause(said(ledger, breach("p1", "n1-g1"))) == "unknown-device"
    assert cause(said(ledger, breach("p1", "n1-g0", attempt=2))) == "late"
    assert cause(said(ledger, breach("p9", "n1-g0"))) == "late"


def test_what_stands_there_is_not_said_again(ledger: Ledger) -> None:
    """If an agent repeats its last report, the intake answers with that report's revision.

    The intake appends the report again only if a health change or a refused report came between."""
    assert said(ledger, rack("n1", 2)) == Known(1)
    ledger.play(ReportRefused(node="n1", cause="implausible-device", message="a T4 of 16 TiB"))
    assert said(ledger, rack("n1", 2)) is None
    ledger.play(rack("n1", 2))
    assert said(ledger, rack("n1", 2)) == Known(ledger.state.revision)
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="x"))
    assert said(ledger, rack("n1", 2)) is None


def used(device: str, uid: str, **more: int) -> ShareUsed:
    """Return the usage of a share during one hour, as an agent reports it."""
    amounts: Any = {"seconds": 3600, "memory_mib_seconds": 36_000, "memory_mib_peak": 10} | more
    return ShareUsed(
        pod=uid, namespace="default", name=uid, container="main", device=device, memory_mib=1000,
        **amounts,
    )  # fmt: skip


def test_nobody_signs_for_another(ledger: Ledger) -> None:
    """The intake refuses an event that an agent signs for another node.

    It also refuses an event based on a ledger revision that does not exist yet."""
    assert cause(said(ledger, rack("n1", 2), by="n2")) == "foreign-source"
    assert cause(said(ledger, rack("n1", 2), basis=1, cause=2)) == "future-basis"


def test_a_card_of_another_node_is_not_taken(ledger: Ledger) -> None:
    """The intake refuses a device of another node and names the owner, until the owner leaves or
    reports without that device."""
    stolen = node("n1", gpu("n2-g0"))
    refusal = said(ledger, stolen)
    assert cause(refusal) == "device-of-another-node"
    assert isinstance(refusal, Refusal)
    assert "on node n2" in refusal.why
    ledger.play(NodeGone(node="n2"))
    assert said(ledger, stolen) is None


def test_an_older_configuration_is_no_lie(ledger: Ledger) -> None:
    """If an implausible report was made under an older configuration, it counts as stale.

    The agent then reports again."""
    scaled = node("n1", gpu("n1-g0", memory_mib=163_840, physical_memory_mib=81_920))
    before = ledger.state.revision
    assert cause(said(ledger, scaled, basis=before)) == "implausible-device"
    ledger.play(ConfigurationChanged(by="test", configuration=Configuration()))
    assert cause(said(ledger, scaled, basis=before)) == "stale"
    assert cause(said(ledger, scaled, basis=ledger.state.revision)) == "implausible-device"


def test_health_is_of_its_own_cards(ledger: Ledger) -> None:
    """The intake accepts health events only for the agent's own devices."""
    sick = DeviceHealthChanged(node="n1", device="n2-g0", healthy=False)
    assert cause(said(ledger, sick)) == "unknown-device"


def test_answers_are_for_pods_of_the_node(ledger: Ledger) -> None:
    """The intake refuses an allocation for another node's pod as forged, and an allocation for a
    voided placement as late."""
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
    """The intake refuses a usage record for another node's device, beyond a device's capacity, or
    under a wrong namespace."""
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
    """If a usage record names a device that the pod does not have now, the intake marks it as
    doubtful.

    It does not refuse the record, because the pod may have had the device earlier."""
    for use in (used("n1-g0", "p2"), used("n1-g1", "p1"), used("n1-g0", "p9")):
        record = UsageRecorded(node="n1", seconds=3600, shares=(used("n1-g0", "p1"), use))
        assert said(ledger, record) == Doubt(record, (use,))


def test_an_id_is_the_nodes_own() -> None:
    """Every event id contains the agent's node, so that an agent cannot use up the ids of another
    node."""
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
    """An intake sends replies only to agents' inboxes. A reply to another subject would be
    published with the intake's permissions."""
    assert may_be_answered(reply) is may


def test_a_node_has_one_subject() -> None:
    """Every node name has exactly one escaped form as a subject. A subject in another form belongs
    to no node."""
    assert node_of_subject("apportion.intake.rack%2E1") == "rack.1"
    assert node_of_subject("apportion.intake.%6E1") == ""


def test_a_bucket_gives_what_flowed_in() -> None:
    """A full token bucket can be spent at once. After that, it gives only what is refilled."""
    bucket = Bucket(10, 5, now_s=0.0)
    assert [bucket.take(1, 0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(1, 0.1) == pytest.approx(0.1)
    assert not bucket.full(0.5)
    assert bucket.full(10.0)
