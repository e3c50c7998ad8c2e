"""Tests of answers about pods, devices, nodes and gangs: their amounts, phases and owners."""

import pytest

from apportion.core.explain.text import words
from apportion.core.explain.views import (
    device_answers,
    gang_answer,
    node_answer,
    placement_answer,
    pod_answer,
    shown_phase,
    summary_answer,
)
from apportion_schemas import (
    DeviceConstraints,
    DeviceCordoned,
    DeviceHealthChanged,
    GangPart,
    MigInstance,
    NodeConstraints,
    NodeCordoned,
    NodeSilent,
    RefusalCode,
    ReportRefused,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import A100_40, V100, gpu, node, npu, observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, instance, member, placed, pod, shape, share


def test_pod_with_a_place_and_without() -> None:
    """The answer for a placed pod shows its shares and ledger revisions. The answer for a refused
    pod shows the reasons."""
    ledger = Ledger(rack("n1", 1), pod("a", ask(4000, cores=20)), pod("b", ask(900_000))).settle()
    there, refused = (pod_answer(ledger.state, ledger.pod(uid)) for uid in "ab")
    assert (there.node, there.shares) == ("n1", ledger.shares("a"))
    assert there.placed_revision == ledger.pod("a").placed_revision
    assert placement_answer(ledger.pod("a")).score == ledger.placement("a").score
    assert (refused.node, refused.reasons) == ("", ledger.reasons("b"))
    assert [shown_phase(ledger.pod(uid)) for uid in "ab"] == ["placed", "refused"]


def test_the_cause_of_a_list_is_that_of_the_nearest_node_that_could_run_the_pod() -> None:
    """In a list, a pending pod shows the cause on the nearest node that could run it, even if
    another cause affects more nodes."""
    fleet = [rack(f"a{number}", 1) for number in range(3)]
    silent = [NodeSilent(node=f"a{number}", grace_s=60) for number in range(3)]
    ledger = Ledger(*fleet, rack("v1", 1, model=V100), *silent)
    v100 = DeviceConstraints(use_types=("V100",))
    ledger.submit(pod("first", shape=shape(cards(), devices=v100))).settle()
    ledger.submit(pod("second", shape=shape(cards(), devices=v100))).settle()
    assert ledger.placement("first").node == "v1"
    answer = pod_answer(ledger.state, ledger.pod("second"))
    assert next(iter(answer.reasons)) is RefusalCode.DEVICE_IN_USE
    assert answer.cause.startswith(words.named(RefusalCode.DEVICE_IN_USE, None))


def test_device_says_who_holds_it() -> None:
    """A device's free amounts plus its pods' shares equal the amounts that the device offers."""
    ledger = Ledger(rack("n1", 2), pod("a", ask(4000, cores=20)), pod("b", ask(5000))).settle()
    answers = {answer.device: answer for answer in device_answers(ledger.node("n1"))}
    [used] = [answer for answer in answers.values() if answer.holders]
    assert {held.pod for held in used.holders} == {"a", "b"}
    held_mib = sum(held.memory_mib for held in used.holders)
    assert used.memory_mib - used.memory_free_mib == held_mib == 9000
    assert used.slots - used.slots_free == 2


@pytest.mark.parametrize(
    ("taken", "more"),
    [
        ((), 7),
        ((instance("7g.40gb", 0, 8),), 0),
        ((instance("3g.20gb", 4, 4),), 4),
        ((instance("1g.5gb", 0, 1), instance("1g.5gb", 6, 1)), 5),
    ],
)
def test_a_mig_card_has_as_many_slots_free_as_its_slices_have_room(
    taken: tuple[MigInstance, ...], more: int
) -> None:
    """The free slots of a MIG device are the number of smallest instances that still fit on it."""
    ledger = Ledger(node("n1", gpu("g0", model=A100_40, mode="mig", cores=100, slots=7)), pod("p1"))
    shares = [share(memory_mib=40960 // 8 * each.size, cores=0, instance=each) for each in taken]
    ledger.play(placed("p1", shares=shares))
    [card] = device_answers(ledger.node("n1"))
    assert (card.slots_free, card.slots) == (more, 7)


def test_node_counts_open_devices() -> None:
    """The answer for a node counts all its devices, and those that are open.

    A device is open if it is neither failed nor cordoned."""
    ledger = Ledger(
        rack("n1", 3),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"),
        DeviceCordoned(device="n1-g1", by="ann", reason="fan"),
    )
    answer = node_answer(ledger.node("n1"))
    assert (answer.devices, answer.devices_open) == (3, 1)
    failed, cordoned, _ = device_answers(ledger.node("n1"))
    assert (failed.healthy, failed.health_reason) == (False, "XID 79")
    assert cordoned.cordon == "fan (ann, 2026-01-01T00:00:00Z)"
    assert [(each.device, each.cause) for each in answer.closed] == [
        ("n1-g0", "has failed (XID 79)"),
        ("n1-g1", "is cordoned: fan (ann, 2026-01-01T00:00:00Z)"),
    ]


@pytest.mark.parametrize(
    "closed",
    [
        NodeSilent(node="n1", grace_s=40),
        NodeCordoned(node="n1", by="ann", reason="move"),
        observed("n1", ready=False),
    ],
    ids=["silent", "cordoned", "not ready"],
)
def test_no_device_of_a_node_is_open_that_takes_nothing_new(closed: Payload) -> None:
    """If a node is silent, cordoned or not ready, none of its devices counts as open (available to
    new pods). This holds for the node's answer and for the summary."""
    ledger = Ledger(rack("n1", 3), closed)
    answer = node_answer(ledger.node("n1"))
    assert (answer.devices, answer.devices_open, answer.closed) == (3, 0, ())
    assert summary_answer(ledger.state).devices_open == 0


def test_node_says_what_is_refused_of_its_agent() -> None:
    """If the intake refused several reports of a node's agent, the answer about the node shows the
    newest refusal and its revision.

    The refused report is no longer shown once the ledger has a later report from the agent."""
    ledger = Ledger(rack("n1", 1))
    for cause in ("too-many", "implausible-device"):
        ledger.play(ReportRefused(node="n1", cause=cause, message="why"))
    answer = node_answer(ledger.node("n1"))
    assert answer.refused
    assert (answer.refused.cause, answer.refused.revision) == ("implausible-device", 3)
    assert answer.ready, "it goes on with what is known of it"
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False))
    assert node_answer(ledger.node("n1")).refused is None


def test_summary_adds_up() -> None:
    """The summary counts every pod in exactly one phase, and counts no device of a cordoned node as
    open."""
    ledger = Ledger(
        rack("n1", 2), rack("n2", 2), NodeCordoned(node="n2", by="ann", reason="move"),
        pod("a", ask(8000)), pod("b", ask(900_000)),
    ).settle()  # fmt: skip
    ledger.submit(pod("c"))
    answer = summary_answer(ledger.state)
    assert answer.phases == {"placed": 1, "refused": 1, "pending": 1}
    assert (answer.nodes, answer.nodes_ready, answer.devices, answer.devices_open) == (2, 2, 4, 2)
    assert answer.memory_mib - answer.memory_free_mib == 8000


def test_a_gang_names_its_topology_domains() -> None:
    """The answer for a gang counts the placed pods in each topology domain, for every level of the
    gang and of its subgroups. Pods on nodes without the level's label count under an empty name."""
    ledger = Ledger()
    for name, of in (("n1", {"rack": "r1"}), ("n2", {"rack": "r1"}), ("n3", {})):
        ledger.report(rack(name, 1), observed(name, labels=of))
    part = GangPart(tasks=("t",), preferred_level="kubernetes.io/hostname")
    ledger.play(gang("team/job", 3, preferred_level="rack", parts=(part,)))
    pods = (member(uid, cards(), task="t") for uid in ("a", "b", "c"))
    answer = gang_answer(ledger.state, "team/job", ledger.state.groups["team/job"])
    assert answer.domains == {}
    ledger.submit(*pods).settle()
    answer = gang_answer(ledger.state, "team/job", ledger.state.groups["team/job"])
    assert answer.domains == {
        "rack": {"": 1, "r1": 2},
        "kubernetes.io/hostname": {"n1": 1, "n2": 1, "n3": 1},
    }


def test_gang_counts_phases() -> None:
    """The answer for a gang counts the gang's pods by phase."""
    ledger = Ledger(rack("n1", 4), gang("team/job", 2))
    ledger.submit(member("m0", cards(1)), member("m1", cards(1))).settle()
    answer = gang_answer(ledger.state, "team/job", ledger.state.groups["team/job"])
    assert (answer.declared, answer.min_available, answer.phases) == (True, 2, {"placed": 2})
    assert answer.unready == {}


def test_whoever_is_on_a_node_that_is_not_heard_says_so() -> None:
    """The answers for pods and gangs on a lost node mention the loss, because these pods may no
    longer run."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), gang("team/job", 2))
    ledger.submit(member("m0", cards(1)), member("m1", cards(1))).settle()
    lost = ledger.where("m0")
    ledger.play(NodeSilent(node=lost, grace_s=40))
    there, other = (pod_answer(ledger.state, ledger.pod(uid)) for uid in ("m0", "m1"))
    assert there.unready.startswith(f"the agent of {lost} has stopped reporting (detected at ")
    assert other.unready == ""
    answer = gang_answer(ledger.state, "team/job", ledger.state.groups["team/job"])
    assert (answer.phases, answer.unready) == ({"placed": 2}, {lost: 1})


def test_a_pod_says_what_it_asks_of_its_node() -> None:
    """The answer for a pod shows how much CPU and memory it requests, and its deadline."""
    wants = shape(ask(4000), node=NodeConstraints(cpu_milli=1500, memory_mib=2048))
    ledger = Ledger(rack("n1", 1), pod("a", shape=wants, deadline_s=600))
    answer = pod_answer(ledger.state, ledger.pod("a"))
    assert (answer.cpu_milli, answer.memory_mib, answer.deadline_s) == (1500, 2048, 600)


def test_npu_has_its_own_cores() -> None:
    """The answer for an NPU counts AI cores, not percent."""
    ledger = Ledger(node("n1", npu("npu0")))
    [answer] = device_answers(ledger.node("n1"))
    assert (answer.cores, answer.mode, answer.family) == (8, "vnpu", "ascend310p")
