"""Tests of what a pod's owner sees when one of the pod's devices fails."""

from apportion.core.explain.health import GONE
from apportion.core.explain.views import pod_answer
from apportion.core.explain.why import why
from apportion_schemas import DeviceHealthChanged
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def failed(device: str, *, healthy: bool = False) -> DeviceHealthChanged:
    return DeviceHealthChanged(
        node="n1", device=device, healthy=healthy, reason="" if healthy else "XID 79"
    )


def test_why_and_the_pod_name_the_failed_device_until_it_recovers() -> None:
    """`why` and the pod's answer name the failed device with its reason until the device
    recovers."""
    ledger = Ledger(rack("n1", 2), pod("a", ask(4000))).settle()
    (share,) = ledger.shares("a")
    other = next(each.device.id for each in ledger.node("n1").devices if each.idle)
    ledger.play(failed(other))
    assert why(ledger.state, ledger.pod("a")).failed_devices == ()
    ledger.play(failed(share.device))
    answer = why(ledger.state, ledger.pod("a"))
    headline, cure = answer.sentence.split(". ")[:2]
    assert share.device in headline
    assert f"drain {share.device}" in cure
    assert answer.placed
    (told,) = pod_answer(ledger.state, ledger.pod("a")).failed_devices
    assert (told.device, told.reason) == (share.device, "XID 79")
    ledger.play(failed(share.device, healthy=True))
    assert "failed" not in why(ledger.state, ledger.pod("a")).sentence


def test_pods_of_another_scheduler_on_unknown_devices_are_no_failure() -> None:
    """If pods of another scheduler use unknown devices of a node, its devices get no new pods, but
    they have not failed."""
    ledger = Ledger(rack("n1", 2), observed(), pod("a", ask(4000))).settle()
    ledger.play(observed(unnamed_families=("nvidia",)))
    assert not any(each.healthy for each in ledger.node("n1").devices)
    assert why(ledger.state, ledger.pod("a")).failed_devices == ()
    (share,) = ledger.shares("a")
    ledger.play(failed(share.device))
    (told,) = why(ledger.state, ledger.pod("a")).failed_devices
    assert (told.device, told.reason) == (share.device, "XID 79")


def test_a_device_that_nobody_reports_any_more_has_failed() -> None:
    """A device that its agent no longer reports counts as failed."""
    ledger = Ledger(rack("n1", 2), pod("a", ask(4000))).settle()
    (share,) = ledger.shares("a")
    report = ledger.node("n1").reported
    assert report
    rest = tuple(device for device in report.devices if device.id != share.device)
    ledger.play(type(report)(node="n1", devices=rest, host=report.host))
    (told,) = why(ledger.state, ledger.pod("a")).failed_devices
    assert (told.device, told.reason) == (share.device, GONE)
    assert "drain" not in why(ledger.state, ledger.pod("a")).sentence, "nothing there to drain"
