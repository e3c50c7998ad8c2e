"""Tests of how the fold handles nodes and devices: reports, observations, cordons and
contradictions."""

import pytest
from msgspec import structs

from apportion.core.ledger.state import HANDS_OUT
from apportion_schemas import (
    DEVICE_PLUGIN,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    NodeCordoned,
    NodeGone,
    NodeUncordoned,
    PolicyChanged,
    QueueObserved,
)
from tests.support.fleet import ROOMY, gpu, node, npu, observed, rack, registered
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod, share
from tests.support.pods import placed as placement

HOLDS_G0 = (node("n1", gpu("g0"), gpu("g1")), pod("p1"), placement("p1", shares=[share("g0")]))


def test_report_offers_every_device_in_the_order_of_indexes() -> None:
    """The state orders a node's devices by index, whatever their order in the report."""
    ledger = Ledger(node("n1", gpu("b1", memory_mib=7), gpu("a0", cores=50, slots=3)))
    assert [device.device.id for device in ledger.node().devices] == ["a0", "b1"]
    assert (ledger.device("a0").cores_free, ledger.device("a0").slots_free) == (50, 3)
    assert ledger.device("b1").memory_free_mib == 7
    assert ledger.node().reported_revision == 1


def test_report_keeps_what_shares_hold() -> None:
    """If a report changes a device's amounts, the shares on the device still count as in use."""
    ledger = Ledger(*HOLDS_G0, node("n1", gpu("g0", memory_mib=4000, cores=80, slots=2)))
    device = ledger.device("g0")
    assert (device.memory_free_mib, device.cores_free, device.slots_free) == (3000, 70, 1)


def test_report_may_offer_less_than_is_held() -> None:
    """A report may shrink a device below what its pods use. Its free amount is then negative, so
    that no pod fits."""
    ledger = Ledger(*HOLDS_G0, node("n1", gpu("g0", memory_mib=400)))
    assert ledger.device("g0").memory_free_mib == -600
    assert "memory_mib needed 1, available -600" in ledger.play(pod("p2")).contradict(
        placement("p2", shares=[share("g0", memory_mib=1, cores=0)])
    )
    assert ledger.gone("p1").device("g0").memory_free_mib == 400


def test_share_of_nothing_fits_where_nothing_is_free() -> None:
    """A share of zero memory and cores fits even a device with a negative free amount."""
    ledger = Ledger(*HOLDS_G0, node("n1", gpu("g0", memory_mib=400)), pod("p2"))
    ledger.play(placement("p2", shares=[share("g0", memory_mib=0, cores=0)]))
    assert ledger.device("g0").memory_free_mib == -600


def test_device_that_leaves_is_forgotten_once_it_is_idle(golden: Golden) -> None:
    """A device that left its node takes no new pods. The state keeps the device until the last of
    its pods has ended."""
    ledger = Ledger(*HOLDS_G0, node("n1", gpu("g1")))
    assert not ledger.device("g0").present
    said = ledger.play(pod("p2")).contradict(placement("p2", shares=[share("g0")]))
    golden({"a share of g0": said})
    ledger.gone("p1").report(node("n1", gpu("g1")))
    assert list(ledger.node().by_id) == ["g1"]
    assert "g0" not in ledger.state.node_of_device


def test_device_that_returns_is_offered_again() -> None:
    """If a device returns to its node, it takes pods again, and the shares on it still count as in
    use."""
    ledger = Ledger(*HOLDS_G0, node("n1"), node("n1", gpu("g0")))
    assert ledger.device("g0").present
    assert ledger.device("g0").memory_free_mib == 81920 - 1000


def test_device_moves_to_another_node_once_it_left_the_first() -> None:
    """A device that left its node may move to another node; its pods still count on the first
    node."""
    ledger = Ledger(*HOLDS_G0, node("n1", gpu("g1")), node("n2", gpu("g0")))
    assert ledger.state.node_of_device["g0"] == "n2"
    assert ledger.device("g0").idle
    ledger.report(node("n1", gpu("g1")))
    assert ledger.state.node_of_device["g0"] == "n2"
    assert ledger.gone("p1").report(node("n1", gpu("g1"))).device("g0").present


def test_device_of_a_node_that_is_gone_may_move() -> None:
    """A device of a removed node may move to another node. If the first node returns, the device
    stays with the other node."""
    ledger = Ledger(rack("n1", 1), NodeGone(node="n1"), node("n2", gpu("n1-g0")))
    assert ledger.play(observed("n1")).state.node_of_device["n1-g0"] == "n2"
    assert [device.present for device in ledger.node("n1").devices] == [False]
    assert "n2" in ledger.contradict(rack("n1", 1))


@pytest.mark.parametrize(
    ("report", "because"),
    [
        (node("n2", gpu("x"), gpu("x", index=1)), "reports a device id twice"),
        (node("n2", gpu("g0")), "device g0 of node n2 is reported by node n1"),
        (node("n1", npu("g0")), "device g0 is in use as nvidia and is reported as ascend310p"),
    ],
)
def test_report_that_contradicts(report: object, because: str) -> None:
    """If one device in a node's report contradicts the state, the fold refuses the whole report."""
    assert because in Ledger(*HOLDS_G0).contradict(report)  # type: ignore[arg-type]


def test_idle_device_may_become_another_family() -> None:
    """A device that no pod uses may change its family in a report."""
    ledger = Ledger(node("n1", gpu("g0")), node("n1", npu("g0")))
    assert ledger.device("g0").template_cpu_free == 7


def test_health_changes_one_device() -> None:
    """A health event changes one device's health and the reason for it. The next report of the node
    replaces both."""
    sick = DeviceHealthChanged(node="n1", device="g0", healthy=False, reason="XID 79")
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1")), sick)
    assert (ledger.device("g0").healthy, ledger.device("g0").health_reason) == (False, "XID 79")
    assert ledger.device("g1").open
    assert ledger.report(node("n1", gpu("g0"))).device("g0").open


def test_kubernetes_may_mark_devices_unhealthy() -> None:
    """A device is unhealthy if its agent or an annotation of the Kubernetes node says so, in
    whatever order they arrive."""
    ledger = Ledger(node("n1", gpu("g0"), gpu("g1")), observed("n1", unhealthy_indexes=(1,)))
    ledger.play(DeviceHealthChanged(node="n1", device="g0", healthy=False, reason="XID 79"))
    assert not ledger.device("g0").healthy
    assert ledger.device("g1").health_reason.endswith("volcano.sh/gpu-unhealthy-ids names it")
    ledger.play(node("n1", gpu("g0"), gpu("g1")))
    assert (ledger.device("g0").healthy, ledger.device("g1").healthy) == (True, False)
    ledger.play(DeviceHealthChanged(node="n1", device="g1", healthy=False, reason="XID 79"))
    ledger.play(observed("n1"))
    assert ledger.device("g1").health_reason == "XID 79"


@pytest.mark.parametrize(("where", "device"), [("n1", "g9"), ("n9", "g0")])
def test_health_of_an_unknown_device(golden: Golden, where: str, device: str) -> None:
    """The fold refuses a health event of an unknown device or node."""
    changed = DeviceHealthChanged(node=where, device=device, healthy=False)
    said = Ledger(node("n1", gpu("g0"))).contradict(changed)
    golden({f"{device} of {where}": said})


def test_cordon_of_a_device_outlives_its_reports() -> None:
    """A device may be cordoned before its first report. The cordon stays if the device leaves its
    node."""
    cordon = DeviceCordoned(device="g0", by="ann", reason="noisy fan")
    ledger = Ledger(cordon, node("n1", gpu("g0"), gpu("g1")), node("n1", gpu("g0")))
    assert ledger.device("g0").cordon == "noisy fan"
    ledger.play(DeviceUncordoned(device="g0", by="ann"))
    assert ledger.report(node("n1", gpu("g0"))).device("g0").open


def test_cordon_of_a_node() -> None:
    """A node may be cordoned before it first appears in the state."""
    ledger = Ledger(NodeCordoned(node="n1", by="ann", reason="kernel"), rack("n1", 1))
    assert ledger.node().cordon == "kernel"
    assert not ledger.play(NodeUncordoned(node="n1", by="ann")).node().cordon


def test_kubernetes_speaks_for_the_host_where_it_knows_the_node() -> None:
    """Kubernetes' facts about a node's CPU, memory and labels override those of its agent. A node
    that Kubernetes removes is neither present nor ready."""
    ledger = Ledger(rack("n1", 1), observed("n1", cpu_milli=500, labels={"zone": "a"}))
    assert (ledger.node().host.cpu_milli, ledger.node().host.labels) == (500, {"zone": "a"})
    ledger.play(NodeGone(node="n1"))
    assert (ledger.node().present, ledger.node().ready) == (False, False)
    ledger.play(observed("n1", ready=False))
    assert (ledger.node().present, ledger.node().ready) == (True, False)


def test_H4_node_that_takes_no_pods() -> None:
    """A node that is not ready or is cordoned in Kubernetes takes no pods, and the refusal shows
    the reason."""
    node = Ledger(observed("n1", ready=False)).node()
    assert (node.ready, node.drained, node.cordoned) == (False, False, "")
    node = Ledger(observed("n1", unschedulable=True)).node()
    assert (node.ready, node.drained) == (True, True)
    assert "kubectl cordon" in node.cordoned


def test_H1_nodes_are_those_of_kubernetes_once_it_tells_of_one() -> None:
    """Once the watcher has reported any node, a node takes pods only if the watcher has reported
    it."""
    ledger = Ledger(rack("early", 1), observed("n1", version=7), rack("late", 1))
    assert [ledger.node(name).present for name in ("early", "n1", "late")] == [False, True, False]
    ledger.submit(pod("p", ask(1000))).settle()
    assert ledger.where("p") == ""
    ledger.play(observed("late", version=8)).settle()
    assert (ledger.where("p"), ledger.node("early").present) == ("late", False)


def test_without_an_api_server_nodes_are_those_of_agents() -> None:
    """Without a Kubernetes API, a node is present as soon as its agent reports it."""
    ledger = Ledger(rack("n1", 1), observed("n2"))
    assert ledger.node("n1").present


def test_node_that_only_a_cordon_names_is_not_there() -> None:
    """A cordon alone does not make a node present, so that a typo adds no node."""
    ledger = Ledger(NodeCordoned(node="nobody", by="ann", reason="typo"))
    assert not ledger.node("nobody").present
    assert not ledger.node("nobody").ready


def test_policy_and_queue_replace_what_was() -> None:
    """A new policy replaces the previous one, and so does a new version of a queue."""
    spread = PolicyChanged(by="ann", node_policy="spread")
    ledger = Ledger(spread, QueueObserved(queue="q"), QueueObserved(queue="q", weight=4))
    assert (ledger.state.policy, ledger.state.policy_revision) == (spread, 1)
    assert ledger.state.queues["q"].weight == 4


def test_a_registered_device_is_offered_without_an_agent() -> None:
    """A node offers the devices that another system's plugin registered.

    When the plugin leaves, unused devices are removed. A device in use stays in the state, with
    `present` False."""
    cards = (gpu("g0"), gpu("g1"))
    ledger = Ledger(observed("n1"), registered("n1", devices=cards), pod("p1"))
    ledger.play(placement("p1", shares=[share("g0")]))
    assert [each.present for each in ledger.node().devices] == [True, True]
    assert ledger.node().ready
    ledger.play(registered("n1", ""))
    assert [(each.device.id, each.present) for each in ledger.node().devices] == [("g0", False)]


def test_a_node_goes_from_a_plugin_to_the_agent_and_back_with_its_pods() -> None:
    """Pods keep their shares while a node changes to Apportion's agent and back. The agent takes
    precedence, unless a label of the node names the plugin."""
    theirs = registered("n1", devices=(gpu("g0", memory_mib=8000),))
    host = structs.replace(ROOMY, labels={HANDS_OUT: "start"})
    ledger = Ledger(observed("n1"), theirs, pod("p1"), placement("p1", shares=[share("g0")]))
    assert (ledger.node().foreign_plugin, ledger.device("g0").memory_free_mib) == ("hami", 7000)
    ledger.play(node("n1", gpu("g0", memory_mib=9000), host=host))
    assert (ledger.node().foreign_plugin, ledger.device("g0").memory_free_mib) == ("", 8000)
    ledger.play(observed("n1", labels={DEVICE_PLUGIN: "hami"}))
    assert (ledger.node().foreign_plugin, ledger.device("g0").memory_free_mib) == ("hami", 7000)
    ledger.play(observed("n1", labels={DEVICE_PLUGIN: "apportion"}))
    assert (ledger.node().foreign_plugin, ledger.device("g0").memory_free_mib) == ("", 8000)


def test_the_label_for_hamis_plugin_includes_a_vendors_own_plugin() -> None:
    """A node with the label `apportion.dev/device-plugin: hami` offers the devices that only the
    vendor's own plugin registers. With the label `volcano`, it does not."""
    theirs = structs.replace(registered("n1", devices=(gpu("g0"),)), plugin="vendor")
    for label, plugin in (("hami", "vendor"), ("vendor", "vendor"), ("volcano", "")):
        ledger = Ledger(observed("n1", labels={DEVICE_PLUGIN: label}), theirs)
        assert ledger.node().foreign_plugin == plugin
        assert ledger.node().keeps_plugin == bool(plugin)
        assert len(ledger.node().devices) == bool(plugin)


def test_a_registration_leaves_the_agents_other_devices_as_they_are() -> None:
    """A registration of a plugin's GPUs does not change the health of an NPU on the same node,
    because only Apportion's agent reports the NPU."""
    ledger = Ledger(observed("n1"), node("n1", npu("u0", index=1)))
    ledger.play(DeviceHealthChanged(node="n1", device="u0", healthy=False, reason="hot"))
    ledger.play(registered("n1", devices=(gpu("g0"),)))
    assert [each.device.id for each in ledger.node().devices] == ["g0", "u0"]
    assert ledger.device("u0").health_reason == "hot"


def test_a_registered_device_of_another_node_is_refused() -> None:
    """A plugin cannot register a device that another node reports."""
    ledger = Ledger(rack("n1", 1), observed("n2"))
    said = ledger.contradict(registered("n2", devices=(gpu("n1-g0"),)))
    assert "reported by node n1" in said
