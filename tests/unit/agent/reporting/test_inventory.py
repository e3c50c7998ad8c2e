"""Tests of which events the agent appends when the ledger's view of a node differs from the node's
inventory."""

import msgspec

from apportion.agent.reporting.agent import event_id, news
from apportion.agent.reporting.view import NodeView
from apportion.core.devices.simulating import simulated_devices
from apportion_schemas import DeviceHealthChanged, Host, NodeReported

WELL = NodeReported(
    node="n1", devices=simulated_devices("n1", "2xT4"), host=Host(cpu_milli=1000, memory_mib=1024)
)


def with_failed(report: NodeReported, *indexes: int) -> NodeReported:
    """Return the report with the devices at these indexes marked unhealthy."""
    devices = tuple(
        msgspec.structs.replace(d, healthy=False, health_reason="hot") if d.index in indexes else d
        for d in report.devices
    )
    return msgspec.structs.replace(report, devices=devices)


def test_nothing_differs_nothing_is_written() -> None:
    """The agent appends nothing while the node's inventory equals the ledger's view of the node."""
    assert news(NodeView(said=WELL), WELL) == []


def test_what_people_are_told_is_refused_is_ended_by_a_whole_report() -> None:
    """After the intake has refused a report, the agent's next report is a full one. This is so even
    if the inventory and the ledger agree again, or differ only in the health of devices."""
    refused = NodeView(said=WELL, refused=True)
    for now in (WELL, with_failed(WELL, 1)):
        assert news(refused, now) == [now]


def test_an_unknown_node_is_reported_whole() -> None:
    """The agent's first event about a node is a report of the whole inventory, including unhealthy
    devices."""
    now = with_failed(WELL, 1)
    assert news(NodeView(), now) == [now]


def test_health_alone_is_a_small_event_per_device() -> None:
    """If only the health of devices changed, the agent appends one small event per device, for
    failures and recoveries alike."""
    failed = with_failed(WELL, 0, 1)
    assert news(NodeView(said=WELL), failed) == [
        DeviceHealthChanged(node="n1", device=d.id, healthy=False, reason="hot")
        for d in failed.devices
    ]
    assert news(NodeView(said=failed), with_failed(WELL, 0)) == [
        DeviceHealthChanged(node="n1", device=WELL.devices[1].id, healthy=True)
    ]


def test_any_other_difference_is_a_whole_report() -> None:
    """The agent sends a full report for every change other than health, such as a removed GPU or a
    new driver."""
    one_less = msgspec.structs.replace(WELL, devices=WELL.devices[:1])
    other_driver = msgspec.structs.replace(with_failed(WELL, 0), driver="560.1")
    assert news(NodeView(said=WELL), one_less) == [one_less]
    assert news(NodeView(said=WELL), other_driver) == [other_driver]


def test_ids_repeat_for_the_same_fact_and_only_for_it() -> None:
    """The id of an agent's event depends on the event's content and on the previous event of the
    same subject. A retry has the same id. If the same failure happens again, its event has a new
    id."""
    failed, well = news(NodeView(said=WELL), with_failed(WELL, 0, 1))
    assert event_id(failed, 7) == event_id(msgspec.structs.replace(failed), 7)
    assert len({event_id(failed, 7), event_id(well, 7), event_id(failed, 9)}) == 3
