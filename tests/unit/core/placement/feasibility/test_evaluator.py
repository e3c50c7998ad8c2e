"""Tests of whether a pod fits a node now, or in a hypothetical case such as an empty node."""

import pytest
from msgspec import structs

from apportion.core.ledger.state import HANDS_OUT
from apportion.core.placement.feasibility.evaluator import (
    Occupancy,
    Room,
    Rules,
    empty,
    feasibility,
    now,
    on_offer,
    uncordoned,
    without,
)
from apportion.lab.fitting import EmptyFleet
from apportion_schemas import (
    DEVICE_PLUGIN,
    Ask,
    DeviceConstraints,
    NodeCordoned,
    NodeHeard,
    NodeSilent,
    PodRefused,
    PolicyChanged,
    RefusalCode,
    Shape,
    Taint,
)
from tests.support.fleet import gpu, node, npu, observed, rack, registered
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, placed, pod, shape, share

_C = RefusalCode


def code_of(ledger: Ledger, wanted: Shape, occupancy: Occupancy = now) -> RefusalCode | None:
    """Return the code with which the evaluator refuses the ledger's only node, or None if the pod
    fits. `occupancy` is the case to assume, such as an empty node."""
    found = feasibility(wanted, ledger.node(), occupancy, Room(ledger.state).rules(wanted))
    return None if found is None else found.code


def full() -> Ledger:
    """Return a ledger with one device of 1,000 MiB, of which a pod uses 800."""
    return Ledger(rack("n1", 1, memory_mib=1000), pod("p1")).play(
        placed("p1", shares=[share("n1-g0", 800, cores=0)])
    )


def test_what_lacks_now_fits_once_the_pods_have_ended() -> None:
    """A pod that does not fit a node now may fit after one pod, or all pods, have ended."""
    ledger, wanted = full(), shape(ask(500))
    found = feasibility(wanted, ledger.node())
    assert found is not None
    assert (found.code, found.needed, found.available, found.place) == (
        _C.MEMORY_INSUFFICIENT, 500, 200, 0,
    )  # fmt: skip
    assert code_of(ledger, wanted, without([ledger.pod("p1")])) is None
    assert code_of(ledger, wanted, empty) is None
    assert code_of(ledger, shape(ask(1_500)), empty) is _C.MEMORY_INSUFFICIENT
    assert ledger.node().devices[0].memory_free_mib == 200


def test_an_empty_node_is_ready_heard_and_not_cordoned() -> None:
    """The check of an empty node assumes a connected agent and no cordon: both can change."""
    ledger = full()
    ledger.play(NodeCordoned(node="n1", by="ann", reason="disk"), NodeSilent(node="n1", grace_s=30))
    assert code_of(ledger, shape(ask(500))) is _C.AGENT_SILENT
    assert code_of(ledger, shape(ask(100)), uncordoned(_C.NODE_CORDONED)) is _C.AGENT_SILENT
    assert code_of(ledger, shape(ask(500)), empty) is None


CLOSED = (
    ("node.kubernetes.io/unschedulable", True, True),
    ("node.kubernetes.io/not-ready", False, False),
)


@pytest.mark.parametrize(("key", "ready", "unschedulable"), CLOSED)
def test_taints_of_conditions_end_with_them(key: str, *, ready: bool, unschedulable: bool) -> None:
    """The taint that Kubernetes adds to a cordoned or unready node excludes it only for a time."""
    taint = Taint(key=key, effect="NoSchedule")
    ledger = Ledger(
        observed("n1", taints=(taint,), ready=ready, unschedulable=unschedulable), rack("n1", 1)
    )
    ledger.submit(pod("p", ask(1))).settle()
    wanted = shape(ask(1))
    assert code_of(ledger, wanted) is not None
    assert code_of(ledger, wanted, empty) is None
    assert Room(ledger.state).holds(wanted, ledger.node())
    assert EmptyFleet(ledger.state).lasting(ledger.pod("p")) is None
    if unschedulable:
        assert code_of(ledger, wanted, uncordoned(_C.NODE_UNSCHEDULABLE)) is None
        assert code_of(ledger, wanted, on_offer) is None


def test_a_taint_of_a_person_stays() -> None:
    """An operator's taint keeps a pod off a node even if the check assumes an empty node."""
    taint = Taint(key="team", effect="NoSchedule", value="ml")
    ledger = Ledger(observed("n1", taints=(taint,)), rack("n1", 1))
    assert code_of(ledger, shape(ask(1)), empty) is _C.TAINT_NOT_TOLERATED


def test_a_plugin_of_another_system_can_be_removed() -> None:
    """If another system's device plugin blocks a node, a pod may fit the node later, because the
    plugin can be removed."""
    ledger = Ledger(registered("n1"), rack("n1", 1))
    ledger.submit(pod("p", ask(1))).settle()
    assert ledger.reasons("p") == {_C.DEVICE_PLUGIN_FOREIGN: 1}
    assert Room(ledger.state).holds(shape(ask(1)), ledger.node())
    assert EmptyFleet(ledger.state).lasting(ledger.pod("p")) is None
    assert not empty(ledger.node()).foreign_plugin


def test_a_node_that_is_given_back_to_a_plugin_takes_no_device_pods() -> None:
    """If another system's plugin now allocates a node's devices, the scheduler places no device
    pods there."""
    ours = rack("n1", 1)
    ours = structs.replace(ours, host=structs.replace(ours.host, labels={HANDS_OUT: "start"}))
    ledger = Ledger(observed("n1"), registered("n1"), ours)
    assert code_of(ledger, shape(ask(1))) is None
    ledger.play(NodeSilent(node="n1", grace_s=40))
    assert code_of(ledger, shape(ask(1))) is _C.AGENT_SILENT
    assert code_of(ledger, shape()) is None
    ledger.play(NodeHeard(node="n1"))
    ledger.report(rack("n1", 1))
    assert code_of(ledger, shape(ask(1))) is _C.DEVICE_PLUGIN_FOREIGN


def test_G17_memory_is_not_capped_on_a_node_that_keeps_volcanos_plugin() -> None:
    """On a node that keeps Volcano's plugin, a request for more memory than a GPU has is refused,
    because the kubelet would count the request as written and reject the pod."""
    labels = {DEVICE_PLUGIN: "volcano"}
    largest = gpu("g0", memory_mib=16_384)
    ledger = Ledger(observed("n1", labels=labels), registered("n1", "volcano", devices=(largest,)))
    for memory_mib, code in ((16_384, None), (16_385, _C.DEVICE_PLUGIN_FOREIGN)):
        wanted = ask(memory_mib, cap_memory=True)
        served = shape(wanted, devices=DeviceConstraints(plugin="volcano"))
        assert code_of(ledger, served) is code


def test_a_vendors_own_plugin_needs_no_permission() -> None:
    """Devices of a vendor's own plugin take pods that use the plugin's resource names, because this
    plugin has no scheduler of its own. Other pods are refused."""
    devices = rack("n1", 1).devices
    ledger = Ledger(observed("n1"), registered("n1", "vendor", devices=devices))
    assert code_of(ledger, shape(ask(1), devices=DeviceConstraints(plugin="hami"))) is None
    assert code_of(ledger, shape(ask(1))) is _C.DEVICE_PLUGIN_FOREIGN


def test_a_policy_that_wants_idle_devices_counts_everywhere() -> None:
    """The policy `mutex` requires idle devices in decisions, in refusals and in explanations
    alike."""
    ledger = full()
    wanted = structs.replace(shape(ask(100)), device_policy="mutex")
    assert code_of(ledger, shape(ask(100))) is None
    assert code_of(ledger, wanted) is _C.DEVICE_IN_USE
    missed = Room(ledger.state).miss(wanted, ledger.node())
    assert missed is not None
    assert missed[1].code is _C.DEVICE_IN_USE
    ledger.submit(pod("p", shape=wanted)).settle()
    assert ledger.reasons("p") == {_C.DEVICE_IN_USE: 1}


def test_other_devices_of_the_node_are_too_few_and_not_none() -> None:
    """If a node has two GPUs and a pod requests four, the refusal code is DEVICES_TOO_FEW.

    Devices of another family on the node do not change this."""
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1"), npu("u0"), npu("u1")))
    wanted = shape(cards(4))
    for occupancy in (now, empty):
        found = feasibility(wanted, ledger.node(), occupancy)
        assert found is not None
        assert (found.code, found.needed, found.available) == (_C.DEVICES_TOO_FEW, 4, 2)


def test_amounts_are_of_the_ask_that_lacks_something() -> None:
    """If a pod has several device requests, the refusal shows the needed and available amount of
    the request that does not fit."""
    asks = (
        Ask(container="a", family="ascend310p", count=3, memory_mib=1000),
        Ask(container="b", family="nvidia", count=1, memory_mib=300),
    )
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1")))
    ledger.submit(pod("p", shape=Shape(asks=asks))).settle()
    refused = ledger.pod("p").refusal
    assert isinstance(refused, PodRefused)
    (missed,) = refused.nearest
    assert (missed.code, missed.needed, missed.available) == (_C.NO_SUCH_DEVICE, 3, 0)


def test_a_device_that_never_will_do_is_no_advice() -> None:
    """A refusal normally names the device that lacks least.

    With `large_enough`, it names only a device that could fit the pod once other pods have ended.
    """
    devices = (gpu("big", memory_mib=1000), gpu("small", memory_mib=790, index=1))
    ledger = Ledger(node("n1", *devices), pod("p1"))
    ledger.play(placed("p1", shares=[share("big", 800, cores=0)]))
    of_all = feasibility(shape(ask(800)), ledger.node())
    of_large = feasibility(shape(ask(800)), ledger.node(), large_enough=True)
    assert of_all is not None
    assert of_large is not None
    assert (of_all.place, of_large.place) == (1, 0)


def test_rules_of_the_cluster() -> None:
    """A pod without a policy of its own follows the cluster's policy."""
    ledger = full()
    assert Room(ledger.state).rules(shape(ask(1))) == Rules()
    ledger.play(PolicyChanged(by="ann", node_policy="spread", device_policy="spread"))
    assert not Room(ledger.state).rules(shape(ask(1))).idle_only


def test_an_operator_lets_pods_of_the_plugins_system_in() -> None:
    """A node whose devices HAMi's plugin allocates takes pods with HAMi's resource names, once an
    operator has labelled it. Other pods with devices are refused."""
    devices = rack("n1", 1).devices
    hami = shape(ask(1), devices=DeviceConstraints(plugin="hami"))
    ledger = Ledger(observed("n1"), registered("n1", devices=devices))
    assert code_of(ledger, hami) is _C.DEVICE_PLUGIN_FOREIGN
    ledger.play(observed("n1", labels={DEVICE_PLUGIN: "hami"}))
    assert code_of(ledger, hami) is None
    assert code_of(ledger, shape(ask(1))) is _C.DEVICE_PLUGIN_FOREIGN
    ledger.play(observed("n1", labels={DEVICE_PLUGIN: "volcano"}))
    assert code_of(ledger, hami) is _C.NO_SUCH_DEVICE
