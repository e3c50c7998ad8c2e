"""Tests of every doctor check, each with a healthy and an unhealthy installation."""

import re
from typing import Any

import pytest
from msgspec import structs

from apportion.core.answers.doctor import CheckAnswer
from apportion.core.doctor.checks import CHECKS, examined
from apportion.core.doctor.cluster import came_late, cluster_facts, models_of
from apportion.core.doctor.facts import (
    ArchiveFacts,
    ClusterFacts,
    Cordoned,
    Facts,
    FailedDevices,
    FoldFacts,
    KubeFacts,
    LedgerFacts,
    PriceFacts,
    ReceiptFacts,
    SchedulerFacts,
    SilentAgent,
    Skew,
    StarvingGang,
    Unserved,
    WaitingFacts,
)
from apportion.core.explain.health import FREEZES
from apportion.core.explain.text.words import LISTED
from apportion_schemas import (
    DeviceCordoned,
    DeviceHealthChanged,
    Event,
    NodeCordoned,
    NodeHeard,
    NodeReported,
    NodeSilent,
    PodBound,
    PodGone,
    ReportRefused,
)
from tests.support.fleet import A100_80, T4, gpu, observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

SOUND = LedgerFacts(
    user="operator",
    server="2.14.0",
    oldest="2.12",
    replicas=3,
    last_revision=500,
    first_revision=1,
    skews=(Skew("this machine", 0.4), Skew("agent/n1", -1.0)),
    missing=(),
    sync_always=True,
    store_bytes=10,
    store_max_bytes=100,
    snapshot_revision=400,
    snapshot_age_s=60.0,
)
CALM = ClusterFacts(
    revision=500, nodes=3, drivers={"550.54.15": ("n1", "n2")}, plugins=(("n3", "hami", ""),)
)
KUBE = KubeFacts(url="https://k", version="v1.34.1", webhook="ready")
WELL = Facts(
    ledger=SOUND,
    archives=ArchiveFacts(folder="/a", archives=2, newest_age_s=3_600),
    receipts=ReceiptFacts(folder="/r", last=500, newest_age_s=3_600),
    fold=FoldFacts(revision=500, last_revision=500),
    cluster=CALM,
    schedulers=SchedulerFacts(members=("one/a", "two/b")),
    frozen="",
    waiting=WaitingFacts(waiting=3),
    prices=PriceFacts(file="/p.toml"),
    kube=KUBE,
)


def ledger(**fields: Any) -> Facts:
    """Return the facts of a healthy installation, except for these ledger facts."""
    return structs.replace(WELL, ledger=structs.replace(SOUND, **fields))


def cluster(**fields: Any) -> Facts:
    """Return the facts of a healthy installation, except for these cluster facts."""
    return structs.replace(WELL, cluster=structs.replace(CALM, **fields))


def kube(**fields: Any) -> Facts:
    """Return the facts of a healthy installation, except for these Kubernetes facts."""
    return structs.replace(WELL, kube=structs.replace(KUBE, **fields))


def others(**fields: Any) -> Facts:
    return structs.replace(WELL, **fields)


CASES: list[tuple[str, str, Facts, str]] = [
    ("ledger", "broken", others(ledger=None, ledger_problem="no answer"), "no answer"),
    (
        "device-plugins",
        "warning",
        cluster(plugins=(("n3", "hami", "it has 3 fields"),)),
        "registers: 1 node: n3 (it has 3 fields)",
    ),
    (
        "second-scheduler",
        "broken",
        cluster(overtaken=(("web/a", "n1"), ("web/b", "n2"))),
        "web/a on n1, web/b on n2",
    ),
    ("snapshots", "broken", ledger(snapshots_doubtful=1), "not attested by an intake"),
    ("durability", "broken", ledger(sync_always=False), "a power failure loses"),
    ("durability", "warning", ledger(sync_always=None), "cannot see"),
    ("replicas", "warning", ledger(replicas=1), "the ledger is on only 1 server"),
    ("replicas", "broken", ledger(lagging=("nats-2",)), "nats-2"),
    ("stream", "broken", ledger(drifted=("max_age is 5",)), "max_age is 5"),
    ("stream", "broken", ledger(lost_records=3), "3 events missing"),
    ("disk", "warning", ledger(store_bytes=80), "80%"),
    ("disk", "broken", ledger(store_bytes=95), "95%"),
    ("disk", "broken", ledger(size_bytes=97, max_bytes=100), "97%"),
    ("clocks", "warning", ledger(skews=(Skew("agent/n1", -3.0),)), "agent/n1 is 3 s behind"),
    ("clocks", "broken", ledger(skews=(Skew("this machine", 120.0),)), "this machine is 2 min"),
    ("permissions", "broken", ledger(missing=("apportion.v1.operator.x",)), "operator.x"),
    ("snapshots", "warning", ledger(last_revision=200_000), "199,600 events"),
    ("snapshots", "broken", ledger(first_revision=9, snapshot_revision=0), "beginning was dropped"),
    (
        "archives",
        "warning",
        others(archives=ArchiveFacts(folder="/a", archives=0)),
        "no archive (*.jsonl) in /a",
    ),
    (
        "archives",
        "warning",
        others(archives=ArchiveFacts(folder="/a", archives=1, newest_age_s=9 * 86_400)),
        "9 days old",
    ),
    ("receipts", "warning", others(receipts=ReceiptFacts(folder="/r")), "no receipt in /r"),
    (
        "receipts",
        "warning",
        others(receipts=ReceiptFacts(folder="/r", last=480, newest_age_s=26 * 3_600)),
        "receipts up to revision 480, 1 day old; 20 events since",
    ),
    ("gateway", "broken", others(fold=None, gateway_problem="it is away"), "it is away"),
    (
        "gateway",
        "warning",
        others(fold=None, gateway_problem="who?", not_let_in=True),
        "access is denied",
    ),
    (
        "folds",
        "broken",
        others(fold=FoldFacts(revision=3, last_revision=9, unready="at 3")),
        "at 3",
    ),
    ("folds", "warning", others(fold=FoldFacts(revision=1, last_revision=1_002)), "1,001 events"),
    ("schedulers", "broken", others(schedulers=SchedulerFacts()), "nothing is placed"),
    (
        "schedulers",
        "warning",
        others(schedulers=SchedulerFacts(members=("one/a", "one/b", "two/c"))),
        "several schedulers have the same name, so their decisions look the same: one",
    ),
    (
        "never-fitting",
        "warning",
        others(waiting=WaitingFacts(never=("lab/a", "lab/b"))),
        "2 pods can never fit: lab/a, lab/b",
    ),
    *(
        ("starving-gangs", "warning", others(waiting=WaitingFacts(starving=(gang,))), part)
        for gang, part in (
            (
                StarvingGang("lab/g", "lab/g-1", 7_200, 4, 4, 3),
                "lab/g has been pending for 2 h, because 4 pods",
            ),
            (StarvingGang("lab/g", "lab/g-1", 7_200, 4, 2, 0), "with 2 of 4 pods"),
            (StarvingGang("lab/g", "lab/g-1", 7_200, 0, 2, 0), "without its PodGroup"),
        )
    ),
    *(
        ("placements", "broken", others(frozen=code), words)
        for code, (words, _) in FREEZES.items()
        if code != "ledger-full"
    ),
    (
        "agents",
        "broken",
        cluster(silent=(SilentAgent("n2", "2026-03-01T09:30:00.1Z", 3),)),
        "noticed at 2026-03-01T09:30:00Z; 3 pods",
    ),
    (
        "devices",
        "broken",
        cluster(devices=9, failed=(FailedDevices("n1", 2, 1, ("g",)), FailedDevices("n2", 1, 0))),
        "3 of 9 devices failed, on 2 nodes: n1, n2; 1 pod on them",
    ),
    ("devices", "warning", cluster(devices=8, failed=(FailedDevices("n1", 8, 0),)), "no pods on"),
    ("reports", "warning", cluster(refused=(("n7", "late-ish"),)), "1 node: n7 (late-ish)"),
    ("nodes-without-agent", "warning", cluster(without_agent=("n9",)), "1 node: n9"),
    ("agents-without-node", "warning", cluster(without_node=("n8", "n9")), "2 agents: n8, n9"),
    ("drivers", "warning", cluster(drivers={"440.33.01": ("n1",)}), "440.33.01 on n1"),
    (
        "drivers",
        "warning",
        cluster(drivers={"550.1": ("a",), "535.2": ("b",)}),
        "550.1 (1), 535.2 (1)",
    ),
    (
        "refused-events",
        "warning",
        cluster(refused_events=2, last_refusal="revision 7: twice"),
        "revision 7: twice",
    ),
    ("prices", "broken", others(prices=PriceFacts(file="/p.toml", problem="no")), "/p.toml: no"),
    ("kubernetes", "broken", kube(problem="no route"), "no route"),
    ("kubernetes", "broken", kube(version="v1.19.4"), "v1.19.4"),
    ("kubernetes", "warning", kube(version="of my own"), "of my own"),
    ("rbac", "warning", kube(denied=("create pods/binding",)), "create pods/binding"),
    ("webhook", "broken", kube(webhook="nobody answers"), "nobody answers"),
    (
        "pods-without-scheduler",
        "warning",
        kube(unserved=(Unserved("kai-scheduler", 2, "lab/a"), Unserved("yunikorn", 1, "lab/b"))),
        "kai-scheduler",
    ),
    (
        "pods-without-scheduler",
        "warning",
        kube(unserved=(Unserved("apportion", 1, "lab/a"),)),
        "apportion",
    ),
]


def found(facts: Facts, name: str) -> CheckAnswer:
    return next(check for check in examined(facts) if check.id == name)


def test_all_is_well() -> None:
    """If all facts are healthy, every check runs and passes."""
    checks = examined(WELL)
    assert {check.id for check in checks} == {check.id for check in CHECKS}
    assert {(check.state, check.fix, check.link) for check in checks} == {("ok", "", "")}


@pytest.mark.parametrize(("name", "state", "facts", "part"), CASES)
def test_what_is_wrong_is_said_with_its_fix(name: str, state: str, facts: Facts, part: str) -> None:
    """If a fact is unhealthy, only the check of that fact fails.

    The result names the affected object, a fix and a link."""
    check = found(facts, name)
    assert (check.state, part in check.words) == (state, True), check
    assert check.fix
    assert check.link.endswith(".md")
    assert [each.id for each in examined(facts) if each.state in {"warning", "broken"}] == [name]


def test_what_a_mute_server_hides_is_not_known(golden: Golden) -> None:
    """If the NATS server does not answer, the doctor reports agents and schedulers as unknown,
    because their heartbeats come through that server."""
    mute = others(ledger=None, ledger_problem="no answer within 5 s", schedulers=SchedulerFacts())
    checks = {check.id: check for check in examined(mute)}
    unknown = {name for name, check in checks.items() if check.state == "unknown"}
    assert unknown == {"folds", "placements", "schedulers", "agents"}
    assert "500" in checks["folds"].words
    assert not any(checks[name].fix or checks[name].link for name in unknown)
    golden({name: checks[name].words for name in sorted(unknown)} | {"fix": checks["ledger"].fix})


def test_a_fix_names_the_device_that_it_is_for(golden: Golden) -> None:
    """If a device fails, the suggested command names that device, so that an operator does not
    drain the whole node."""
    failed = (FailedDevices("n1", 2, 0), FailedDevices("n2", 2, 3, ("n2-g0", "n2-g5")))
    fix = found(cluster(devices=9, failed=failed), "devices").fix
    for verb in ("get devices --node n2", "who n2-g0", "drain n2-g0 --reason WHY"):
        assert f"`apportion {verb}`" in fix
    assert {"n1", "n2-g5"} <= set(re.findall(r"[\w-]+", fix))
    nine = tuple(FailedDevices(f"n{number}", 1, 0) for number in range(9))
    many = found(cluster(devices=9, failed=nine), "devices").fix
    assert ("n3" in many, "n8" in many) == (True, False), "it is bounded"
    idle = found(cluster(devices=9, failed=failed[:1]), "devices").fix
    assert "`apportion get devices --node n1`" in idle
    assert "drain" not in idle
    since = "2026-03-01T09:30:00.1Z"
    lost = found(
        cluster(silent=(SilentAgent("s1", since),), simulated=("s1",), simulated_nodes=3), "agents"
    ).fix
    assert "`apportion simulate return s1`" in lost
    silent = (SilentAgent("s1", since), SilentAgent("s2", since, 2))
    four = cluster(nodes=4, silent=silent, simulated=("s1", "s2"), simulated_nodes=3)
    both = found(four, "agents").fix
    assert "`apportion simulate return s1`" in both
    assert "`apportion drain s2 --reason REASON`" in both
    assert "drain" not in lost, "nobody is on it"
    assert "simulate" not in found(cluster(silent=silent[:1]), "agents").fix
    golden({
        "cards of n1 and n2 failed": fix,
        "cards of nine nodes failed": many,
        "cards of n1 failed, none held": idle,
        "s1, simulated, is silent": lost,
        "s1 and s2, simulated, are silent, with pods on s2": both,
    })  # fmt: skip


def test_one_agent_of_many_nodes_that_is_stopped_is_looked_at_first(golden: Golden) -> None:
    """If all nodes of one simulation are silent, the doctor first suggests restarting their agent.

    It names only a few of the nodes."""
    names = tuple(f"s{number}" for number in range(8))
    silent = tuple(
        SilentAgent(name, f"2026-03-01T09:30:0{9 - at}.1Z", at) for at, name in enumerate(names)
    )
    check = found(cluster(silent=silent, simulated=names, simulated_nodes=8, nodes=8), "agents")
    assert "`apportion simulate return s0`" in check.fix
    assert "drain" not in check.fix, "nothing is left to take so many pods"
    others_there = cluster(silent=silent, simulated=names, simulated_nodes=8, nodes=16)
    moved = found(others_there, "agents").fix
    assert "`apportion drain s1 --reason REASON`" in moved
    real = (*silent, SilentAgent("r1", silent[0].time))
    mixed = found(cluster(silent=real, simulated=names, simulated_nodes=8), "agents").fix
    assert not {"s4", "s5", "s6"} & set(re.findall(r"s\d", check.words + check.fix))
    golden({
        "eight of eight, all simulated": check.words,
        "fix": check.fix,
        "fix where eight others are heard": moved,
        "fix where a real one is silent too": mixed,
    })  # fmt: skip


@pytest.mark.parametrize("bytes_seen", [{}, {"size_bytes": 20, "max_bytes": 100}])
def test_a_full_ledger_is_broken_whatever_is_seen_of_its_size(bytes_seen: dict[str, int]) -> None:
    """If the ledger is frozen because it is full, the doctor's checks of the ledger fail, even if
    its reported size is small or unknown."""
    full = structs.replace(ledger(store_max_bytes=0, **bytes_seen), frozen="ledger-full")
    states = {check.id: check.state for check in examined(full)}
    assert (states["placements"], states["disk"]) == ("broken", "broken")


def test_what_the_ledger_takes_is_told_apart_from_what_its_disk_has(golden: Golden) -> None:
    """The doctor reports the size of the ledger and the use of the server's disk as two figures in
    the same unit."""
    kib = 1024
    words = found(
        ledger(size_bytes=216 * kib, store_bytes=420 * kib, store_max_bytes=1 << 33), "disk"
    ).words
    full = found(ledger(size_bytes=97 * kib, max_bytes=100 * kib), "disk").words
    golden({"its server's disk bounds it": words, "its own limit bounds it": full})


def test_every_check_has_a_case() -> None:
    """Every doctor check has a test case in this module."""
    assert {case[0] for case in CASES} | {"cordons", "server"} == {check.id for check in CHECKS}


def test_what_is_cordoned_is_told_and_alarms_nobody(golden: Golden) -> None:
    """The doctor lists cordons with operator, time and reason, as information only."""
    ledger = Ledger(
        *(observed(name, version=1, unschedulable=name == "n3") for name in ("n1", "n2", "n3")),
        rack("n1", 2),
        rack("n2", 1),
        NodeCordoned(node="n1", by="ada", reason="fan"),
        DeviceCordoned(device="n2-g0", by="bob", reason="hot"),
    )
    check = found(others(cluster=cluster_facts(ledger.state)), "cordons")
    assert (check.state, check.fix) == ("ok", "")
    golden({"two cordons of ours and one of Kubernetes": check.words})
    many = tuple(Cordoned(f"n{number}", "fan") for number in range(9))
    lines = found(cluster(cordoned=many), "cordons").words.split(";\n")
    assert len(lines) == LISTED + 1
    assert "5" in lines[-1]


@pytest.mark.parametrize(
    ("cordon", "opens"),
    [
        (DeviceCordoned(device="n1-g0", by="ada", reason="drain: hot"), "uncordon n1-g0`"),
        (NodeCordoned(node="n1", by="ada", reason="fan"), "uncordon n1`"),
        (DeviceCordoned(device="n1-g1", by="ada", reason="another card"), ""),
    ],
    ids=["its card", "its node", "another card"],
)
def test_a_failed_card_that_is_cordoned_takes_no_pods_by_itself(
    golden: Golden, cordon: DeviceCordoned | NodeCordoned, opens: str
) -> None:
    """The doctor says that a failed, cordoned device takes no pods until the device is repaired and
    uncordoned."""
    ledger = Ledger(rack("n1", 2), cordon)
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"))
    fix = found(others(cluster=cluster_facts(ledger.state)), "devices").fix
    assert ("uncordon" in fix, opens in fix) == (bool(opens), True)
    golden({"fix": fix})


def test_nothing_is_said_of_what_nobody_gathered() -> None:
    """The doctor skips a check if the facts that the check needs were not collected."""
    assert examined(Facts()) == ()
    assert {check.id for check in examined(Facts(cluster=CALM))} == {
        "agents", "reports", "devices", "cordons", "nodes-without-agent", "agents-without-node",
        "device-plugins", "second-scheduler", "drivers", "refused-events",
    }  # fmt: skip


def test_what_a_fold_says_of_nodes_and_agents() -> None:
    """The doctor reads from the state the silent agents and the nodes without an agent.

    It also reads which agents report a node that Kubernetes does not have."""
    ledger = Ledger(
        observed("n1", version=1),
        observed("n3", version=2, extended={"nvidia.com/gpu": 4}),
        observed("n4", version=3, extended={"example.com/nic": 4}),
        rack("n1", 2),
        rack("n2", 2),
        NodeSilent(node="n1", grace_s=40),
        NodeSilent(node="n2", grace_s=40),
        NodeReported(node="n4", devices=(), host=rack("n4", 1).host, driver="550.54.15"),
        NodeHeard(node="n9"),
    )
    facts = cluster_facts(ledger.state)
    assert [each.node for each in facts.silent] == ["n1"]
    assert facts.without_agent == ("n3",)
    assert facts.without_node == ("n2",)
    assert facts.drivers == {"550.54.15": ("n4",)}
    assert facts.nodes == 3


def test_a_refused_report_is_told_with_what_to_do_until_one_is_taken(golden: Golden) -> None:
    """If a node's report was refused, the doctor shows the refusal with advice until a report of
    that node is accepted. This holds even for a node that the ledger does not know."""
    refused = ReportRefused(node="n7", cause="device-of-another-node", message="it is on n1")
    ledger = Ledger(rack("n1", 1), refused)
    told = found(others(cluster=cluster_facts(ledger.state)), "reports")
    assert "n7 (device-of-another-node)" in told.words
    golden({"refused": told.words, "fix": told.fix})
    ledger.play(rack("n7", 1))
    assert found(others(cluster=cluster_facts(ledger.state)), "reports").state == "ok"


def test_a_fold_tells_lost_nodes_that_are_simulated_apart() -> None:
    """The doctor counts lost simulated nodes separately from other lost nodes."""
    ledger = Ledger(
        structs.replace(rack("n1", 1), simulated=False),
        structs.replace(rack("s1", 1), simulated=True),
        structs.replace(rack("s2", 1), simulated=True),
        NodeSilent(node="n1", grace_s=40),
        NodeSilent(node="s1", grace_s=40),
    )
    facts = cluster_facts(ledger.state)
    assert [each.node for each in facts.silent] == ["n1", "s1"]
    assert (facts.simulated, facts.simulated_nodes) == (("s1",), 2)


def test_what_a_fold_says_of_devices() -> None:
    """The doctor reads the failed devices of each node from the state. A pod on two failed devices
    counts as one affected pod."""
    ledger = Ledger(rack("n1", 2), pod("a", ask(count=2)), rack("n2", 2)).settle()
    assert cluster_facts(ledger.state).failed == ()
    held = [share.device for share in ledger.shares("a")]
    assert len(set(held)) == 2
    for node, device in ((ledger.where("a"), held[0]), (ledger.where("a"), held[1])):
        ledger.play(DeviceHealthChanged(node=node, device=device, healthy=False, reason="XID 79"))
    other = next(name for name in ("n1", "n2") if name != ledger.where("a"))
    device = ledger.node(other).devices[0].device.id
    ledger.play(DeviceHealthChanged(node=other, device=device, healthy=False, reason="hot"))
    facts = cluster_facts(ledger.state)
    assert facts.devices == 4
    assert set(facts.failed) == {
        FailedDevices(ledger.where("a"), 2, 1, tuple(sorted(held))), FailedDevices(other, 1, 0),
    }  # fmt: skip


def test_models_that_have_left_need_no_price() -> None:
    """The doctor requires no price for a model that has left the fleet."""
    ledger = Ledger(rack("n1", 2), structs.replace(rack("n2", 1), devices=(gpu("g0", model=T4),)))
    assert models_of(ledger.state) == (A100_80, T4)
    ledger.play(rack("n2", 0))
    assert models_of(ledger.state) == (A100_80,)


def test_a_word_that_came_while_the_pod_ended_is_ordinary() -> None:
    """A refused event is harmless if its pod ended while the event was on its way. All other
    refused events are errors."""
    bound = PodBound(pod="p", node="n1", attempt=1)

    def late(basis: int, gone: int, data: PodBound | PodGone = bound) -> bool:
        said = Event(id="e", source="binder", time="", data=data, basis=basis)
        return came_late(said, 9, gone)

    assert late(basis=5, gone=8)
    assert not late(basis=8, gone=8), "its writer knew"
    assert not late(basis=5, gone=0), "the pod is live, or never was"
    assert not late(basis=5, gone=10), "it was live then"
    assert not late(basis=5, gone=8, data=PodGone(uid="p", reason="test"))


def test_late_words_alone_alarm_nobody(golden: Golden) -> None:
    """If all refused events came too late for their pod, the check passes. Otherwise it warns about
    the newest of the other events."""
    ledger = Ledger()
    for name in ("p", "q"):
        ledger.take(PodBound(pod=name, node="n1", attempt=1))
    calm = structs.replace(WELL, cluster=cluster_facts(ledger.state, late={1, 2}))
    check = found(calm, "refused-events")
    assert (check.state, check.fix) == ("ok", "")
    one = structs.replace(WELL, cluster=cluster_facts(ledger.state, late={2}))
    wrong = found(one, "refused-events")
    assert wrong.state == "warning"
    golden({"two late": check.words, "one late, one wrong": wrong.words})
