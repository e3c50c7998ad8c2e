"""Tests of replays with other queues, quotas, topologies or another configuration, and of the
figures of each team (a queue or a namespace)."""

from collections.abc import Iterable
from decimal import Decimal

import pytest
from msgspec import structs

from apportion.core.answers.replays import ReplayAnswer, TeamFigures
from apportion.core.ledger.state import State
from apportion.core.reports.prices import PriceError, Prices
from apportion.core.workloads.kinds.topologies import TIER
from apportion.lab.capacity import copies
from apportion.lab.changes import Changes
from apportion.lab.gates import EXAMPLE, GATES_MAX, MEASURES, GateInvalid, bounds_of, judged
from apportion.lab.recording import Limits, Recording
from apportion.lab.replaying import Otherwise, Replay, replay
from apportion.lab.setups import Effect, Setup, SetupInvalid, read_setup
from apportion.lab.team_meter import TeamKey, compared
from apportion.runtime.files.fleets import numbered_nodes
from apportion.runtime.files.manifests import Document, Problem, read_manifest_text
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    NodeObserved,
    PolicyChanged,
    QueueObserved,
    QuotaObserved,
)
from apportion_schemas.configuration import PolicyConfiguration, QueuesConfiguration
from tests.support.fleet import rack
from tests.support.pods import cards, gang, member, pod
from tests.support.virtual_ledger import BEGIN_S, VirtualLedger

HOUR = 3600.0
QUEUES = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: ml}
spec: {deserved: {nvidia.com/gpu: 1}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: web}
spec: {deserved: {nvidia.com/gpu: 1}}
"""
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: team-a}
spec: {hard: {requests.nvidia.com/gpu: 1}}
"""


def documents(*texts: str) -> Iterable[Document | Problem]:
    return [each for text in texts for each in read_manifest_text(text, "setup.yaml")]


def setup_of(*texts: str) -> Setup:
    return read_setup(documents(*texts), Configuration(), replaces=False).setup


def two_teams() -> VirtualLedger:
    """Return the history of a node with two GPUs. Queue `web` submits four pods of an hour each.

    Half an hour later, queue `ml` submits one. It runs before the last pod of `web`, because `ml`
    uses less."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 2))
    for number in range(4):
        each = pod(f"web-{number}", cards(), queue="web", namespace="team-a")
        ledger.submit(structs.replace(each, owner="Job/web"), runs_s=HOUR)
    ledger.settle()
    ledger.until(HOUR / 2)
    ledger.submit(pod("ml-0", cards(), queue="ml", namespace="team-b"), runs_s=HOUR)
    ledger.settle()
    ledger.until(5 * HOUR)
    return ledger


def team(answer: ReplayAnswer, kind: str, name: str) -> tuple[TeamFigures, TeamFigures]:
    [found] = [each for each in answer.teams if (each.kind, each.name) == (kind, name)]
    return found.happened, found.replayed


def test_teams_without_a_change_have_the_recorded_figures() -> None:
    """If a replay changes nothing, each queue and namespace has its recorded figures."""
    answer = replay(two_teams().recorded(end_s=5 * HOUR), Otherwise())
    assert [(each.kind, each.name) for each in answer.teams] == [
        ("queue", "ml"), ("queue", "web"), ("namespace", "team-a"), ("namespace", "team-b"),
    ]  # fmt: skip
    for each in answer.teams:
        assert each.happened == each.replayed, each
    web, _ = team(answer, "queue", "web")
    assert (web.arrived, web.placed, web.unplaced, web.evicted) == (4, 4, 0, 0)
    assert (web.wait_mean_s, web.wait_max_s) == (0.75 * HOUR, 2 * HOUR)
    assert web.gpu_hours_waited == pytest.approx(3)
    assert web.gpu_hours_used == pytest.approx(4)
    assert web.gpus == pytest.approx(4 / 5)
    assert team(answer, "namespace", "team-a")[0] == structs.replace(web, gpus_entitled=None)
    ml, _ = team(answer, "queue", "ml")
    assert (ml.arrived, ml.wait_p95_s) == (1, HOUR / 2)
    totals = answer.happened
    assert ml.gpu_hours_waited + web.gpu_hours_waited == pytest.approx(totals.gpu_hours_waited)
    assert ml.gpu_hours_used + web.gpu_hours_used == pytest.approx(totals.gpu_hours_used)


def test_queues_that_deserve_gpus_take_them_back() -> None:
    """If a manifest says that queue `ml` deserves a GPU, `ml` takes that GPU back from queue `web`.

    The GPU-hours of the evicted pod count for `web`."""
    recorded = two_teams().recorded(end_s=6 * HOUR)
    answer = replay(recorded, Otherwise(setup=setup_of(QUEUES)))
    before, after = team(answer, "queue", "ml")
    assert (before.wait_max_s, after.wait_max_s) == (HOUR / 2, 0)
    web = team(answer, "queue", "web")
    assert [each.evicted for each in web] == [0, 1]
    assert [each.gpu_hours_evicted for each in web] == [0, pytest.approx(0.5)]
    assert web[1].gpu_hours_used == pytest.approx(4)
    [change] = answer.changes
    assert ("queue ml" in change, "queue web" in change) == (True, True)


def test_entitlements_are_means_over_the_span() -> None:
    """A queue's entitlement is a mean over the time span, with 0 while its pods request no GPUs."""
    recorded = two_teams().recorded(end_s=6 * HOUR)
    answer = replay(recorded, Otherwise(setup=setup_of(QUEUES)))
    _, ml = team(answer, "queue", "ml")
    _, web = team(answer, "queue", "web")
    # ml requests one GPU from 0:30 to 1:30. web may use both before, and from then on what it asks.
    assert ml.gpus_entitled == pytest.approx(1 / 6, rel=0.05)
    assert web.gpus_entitled == pytest.approx(4 / 6, rel=0.05)


def test_a_queue_includes_the_queues_below_it() -> None:
    """The figures of a queue include its own pods and the pods of all queues below it."""
    tree = QUEUES.replace("spec: {", "spec: {parent: lab, ") + (
        "---\napiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: lab}\n"
    )
    answer = replay(two_teams().recorded(end_s=6 * HOUR), Otherwise(setup=setup_of(tree)))
    _, lab = team(answer, "queue", "lab")
    _, ml = team(answer, "queue", "ml")
    _, web = team(answer, "queue", "web")
    assert lab.arrived == ml.arrived + web.arrived
    assert lab.gpu_hours_used == pytest.approx(ml.gpu_hours_used + web.gpu_hours_used)


def test_a_recorded_event_does_not_undo_the_setup() -> None:
    """If a setup replaces a queue, a quota or the configuration, the replay ignores recorded
    changes of that object. Recorded changes of other objects take effect."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 2))
    ledger.until(60)
    ledger.write(
        QueueObserved(queue="ml", weight=5), QueueObserved(queue="other", weight=3),
        QuotaObserved(namespace="team-a", quota="gpus", hard={"requests.nvidia.com/gpu": 9}),
        ConfigurationChanged(by="ann"), PolicyChanged(by="ann", node_policy="spread"),
    )  # fmt: skip
    configuration = Configuration(
        policy=PolicyConfiguration(nodes="binpack"),
        queues=QueuesConfiguration(usage_half_life="7d"),
    )
    setup = read_setup(documents(QUEUES, QUOTA), configuration, replaces=True).setup
    one = Replay(ledger.recorded(end_s=HOUR), Otherwise(setup=setup))
    one.run()
    state = one._course.state
    assert {name: queue.weight for name, queue in state.queues.items()} == {
        "ml": 1, "web": 1, "other": 3,
    }  # fmt: skip
    assert state.quotas["team-a"]["gpus"].hard == {"requests.nvidia.com/gpu": 1}
    assert state.configuration == configuration
    assert state.past_use is not None
    assert (state.policy.node_policy, state.policy.device_policy) == ("binpack", "price")
    both = Otherwise(setup=setup, changes=Changes(policy="spread"))
    other = Replay(ledger.recorded(end_s=HOUR), both)
    other.run()
    assert other._course.state.policy.node_policy == "spread", "--policy is last"


def test_a_quota_of_the_setup_limits_a_namespace() -> None:
    """If the setup limits a namespace to one GPU, the namespace's pods run one by one."""
    answer = replay(two_teams().recorded(end_s=6 * HOUR), Otherwise(setup=setup_of(QUOTA)))
    before, after = team(answer, "namespace", "team-a")
    assert (before.wait_max_s, after.wait_max_s) == (2 * HOUR, 3 * HOUR)
    assert team(answer, "namespace", "team-b")[1].wait_max_s == 0


def test_past_use_counts_from_the_start_of_the_replay() -> None:
    """If the configuration sets a half-life of past use, a queue that has used all GPUs then gets
    fewer of them than a queue that was idle."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 4), QueueObserved(queue="ml"), QueueObserved(queue="web"))
    ledger.submit(pod("before", cards(4), queue="web"), runs_s=8 * HOUR)
    ledger.settle()
    ledger.until(8 * HOUR)
    for number in range(4):
        for queue in ("web", "ml"):
            ledger.submit(pod(f"{queue}-{number}", cards(), queue=queue), runs_s=HOUR)
    ledger.settle()
    ledger.until(12 * HOUR)
    recorded = ledger.recorded(end_s=12 * HOUR)
    past = QueuesConfiguration(usage_half_life="8h", usage_weight=2)

    def waits(setup: Setup) -> list[float]:
        answer = replay(recorded, Otherwise(setup=setup))
        return [team(answer, "queue", name)[1].gpu_hours_waited for name in ("ml", "web")]

    assert waits(Setup()) == [2, 2]
    assert waits(Setup(configuration=Configuration(queues=past))) == [1, 3]


HYPER_NODE = """
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {{name: {name}}}
spec:
  tier: 1
  members:
{members}
"""


def hyper_node(name: str, *nodes: str) -> str:
    member = "  - {{type: Node, selector: {{exactMatch: {{name: {}}}}}}}"
    return HYPER_NODE.format(name=name, members="\n".join(map(member.format, nodes)))


def test_hyper_nodes_replace_the_recorded_ones() -> None:
    """If a replay has other HyperNodes, a gang is placed within one of them. If none has room for
    the gang, the gang waits."""
    ledger = VirtualLedger()
    for number in range(4):
        name = f"n{number}"
        ledger.write(rack(name, 1))
        labels = {f"{TIER}1": f"old-{number // 2}", "zone": "z"}
        ledger.write(NodeObserved(node=name, ready=True, cpu_milli=64_000, memory_mib=512_000,
                                  pods=110, labels=labels))  # fmt: skip
    ledger.write(gang(required_level=f"{TIER}1", preferred_level=f"{TIER}1", levels=(f"{TIER}1",)))
    for uid in ("a", "b"):
        ledger.submit(member(uid, cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(2 * HOUR)
    recorded = ledger.recorded(end_s=2 * HOUR)

    def nodes(*texts: str) -> set[str]:
        one = Replay(recorded, Otherwise(setup=setup_of(*texts)), kept=True)
        one.run()
        zones = {node.host.labels["zone"] for node in one._course.state.nodes.values()}
        assert zones == {"z"}, "other labels stay"
        return {each.node for each in one.placed}

    assert {place[1] for place in ledger.placed.values()} in ({"n0", "n1"}, {"n2", "n3"})
    assert nodes(hyper_node("a", "n0", "n3"), hyper_node("b", "n1")) == {"n0", "n3"}
    assert nodes(hyper_node("a", "n0"), hyper_node("b", "n1")) == set()


def test_hyper_nodes_include_added_nodes() -> None:
    """An added node belongs to a HyperNode only if the HyperNode names the node."""
    ledger = VirtualLedger()
    ledger.write(rack("n0", 1), NodeObserved(
        node="n0", ready=True, cpu_milli=64_000, memory_mib=512_000, pods=110,
        labels={f"{TIER}1": "old"},
    ))  # fmt: skip
    ledger.write(gang(required_level=f"{TIER}1", preferred_level=f"{TIER}1", levels=(f"{TIER}1",)))
    for uid in ("a", "b"):
        ledger.submit(member(uid, cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(2 * HOUR)
    recorded = ledger.recorded(end_s=2 * HOUR)
    assert recorded.in_kubernetes
    assert not two_teams().recorded(end_s=HOUR).in_kubernetes
    more = copies(numbered_nodes("x", 1, ["1xA100-80GB"])[0], 1)
    for names, nodes in ((("n0", "added-1"), {"n0", "added-1"}), (("n0",), set())):
        setup = setup_of(hyper_node("a", *names))
        for other in (
            Otherwise(setup=setup, changes=Changes(add=("1x1xA100-80GB",))),
            Otherwise(setup=setup, more=more),
        ):
            one = Replay(recorded, other, kept=True)
            one.run()
            assert {each.node for each in one.placed} == nodes


TOPOLOGY = """
apiVersion: kai.scheduler/v1alpha1
kind: Topology
metadata: {name: network}
spec: {levels: [{nodeLabel: block}, {nodeLabel: rack}]}
"""


def test_a_topology_replaces_the_levels_of_its_gangs() -> None:
    """Only a PodGroup that names a Topology of the setup gets the levels of that Topology."""
    effect = Effect(setup_of(TOPOLOGY))
    group = gang(topology="network", required_level="rack", levels=("zone", "rack"))
    assert effect.altered(group) == structs.replace(group, levels=("block", "rack"))
    other = structs.replace(group, topology="other")
    assert effect.altered(other) is other
    tiers = gang(preferred_level=f"{TIER}1", levels=(f"{TIER}1",))
    assert effect.altered(tiers) is tiers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (QUEUES.replace("deserved: {nvidia.com/gpu: 1}", "weight: 0", 1),
         r"line 5: spec.weight: 0 is not a valid weight"),
        (QUEUES + "---" + QUEUES, r"metadata.name: .*ml.* is described twice"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: a}\n", "no queue, ResourceQuota, "),
        ("a: [", "setup.yaml, document 1, line"),
        (QUOTA + "---" + QUEUES.replace("v1beta1", "v1beta2", 1),
         r"apiVersion: .*volcano.sh/v1beta2.* is no known version of Queue; use .*v1beta1"),
        (QUEUES + "---" + QUOTA.replace("v1", "v2"), "version of ResourceQuota; use v1,"),
        (QUEUES + "---\napiVersion: kai.scheduler/v1\nkind: Topology\nmetadata: {name: a}\n",
         "is no known version of Topology; use kai.scheduler/v1alpha1"),
        (hyper_node("a", "n0").replace("v1alpha1", "v2"), "is no known version of HyperNode"),
        (QUOTA.replace("gpu: 1", "gpumem: 4Gi"), "is in bytes, but the unit is 1 MiB; write 4096"),
    ],
)  # fmt: skip
def test_invalid_manifests_are_refused(text: str, problem: str) -> None:
    """If a manifest of a setup is invalid, the error says where and why."""
    with pytest.raises(SetupInvalid, match=problem):
        setup_of(text)


def test_other_documents_are_skipped_with_a_warning() -> None:
    """Documents of kinds that a setup cannot contain are skipped and named in a warning."""
    service = "kind: Service\napiVersion: v1\nmetadata: {name: a}\n"
    files = read_setup(documents(QUEUES, service), Configuration(), replaces=False)
    assert [each.queue for each in files.setup.limits if isinstance(each, QueueObserved)] == [
        "ml", "web",
    ]  # fmt: skip
    assert "Service a" in files.skipped
    assert not setup_of()


def test_probable_mistakes_are_noted() -> None:
    """Like `apportion check`, a setup reports misspelt resources of queues and quotas by line."""
    text = (QUEUES + "---" + QUOTA).replace("nvidia.com/gpu:", "nvidia.com/gpuu:")
    text = text.replace(
        "requests.nvidia.com/gpuu: 1", "requests.nvidia.com/gpu: 1, nvidia.com/gpx: 1"
    )
    files = read_setup(documents(text), Configuration(), replaces=False)
    assert [(each.source, each.line, each.note.field) for each in files.notes] == [
        ("setup.yaml", 5, 'spec.deserved["nvidia.com/gpuu"]'),
        ("setup.yaml", 10, 'spec.deserved["nvidia.com/gpuu"]'),
        ("setup.yaml", 15, 'spec.hard["nvidia.com/gpx"]'),
    ]  # fmt: skip
    assert not read_setup(documents(QUEUES, QUOTA, TOPOLOGY), Configuration(), replaces=False).notes


def test_use_has_a_cost_with_prices() -> None:
    """Given prices, each queue and namespace has the recorded and the replayed cost of its GPUs."""
    prices = Prices("EUR", {"NVIDIA A100-SXM4-80GB": Decimal("2.50")})
    ledger = two_teams()
    limits = Limits(after=0, upto=ledger.state.revision, begin_s=BEGIN_S, end_s=BEGIN_S + 5 * HOUR)
    recording = Recording(State(), limits, prices=prices)
    for record in ledger.records:
        recording.take(record)
    recorded = recording.finish()
    answer = replay(recorded, Otherwise(setup=setup_of(QUOTA)), prices=prices)
    assert answer.currency == "EUR"
    assert [(each.name, each.happened.cost, each.replayed.cost) for each in answer.teams] == [
        ("ml", 2.5, 2.5), ("web", 10, 10), ("team-a", 10, 10), ("team-b", 2.5, 2.5),
    ]  # fmt: skip
    none = replay(recorded, Otherwise())
    assert (none.currency, none.teams[0].replayed.cost) == ("", None)
    with pytest.raises(PriceError, match="no price for 'NVIDIA A100-SXM4-80GB'"):
        replay(recorded, Otherwise(), prices=Prices("EUR", {"T4": Decimal(1)}))


def verdicts(*gates: str) -> dict[str, tuple[float, float, str]]:
    answer = replay(
        two_teams().recorded(end_s=6 * HOUR), Otherwise(setup=setup_of(QUEUES)),
        bounds=bounds_of(gates),
    )  # fmt: skip
    return {each.text: (each.happened, each.measured, each.verdict) for each in answer.gates}


def test_a_gate_compares_the_replay_with_its_bound() -> None:
    """A gate sets an upper bound for a figure of the replay. It is kept if the figure is at most
    the bound, and exceeded otherwise."""
    assert verdicts(
        "ml:wait-p95<=0s", "queue/web:wait-max<=59m", "queue/web:wait-max<=2h",
        "namespace/team-a:evictions<=0", "namespace/team-a:gpu-hours-evicted<=0.5",
    ) == {
        "ml:wait-p95<=0s": (HOUR / 2, 0, "kept"),
        "queue/web:wait-max<=59m": (2 * HOUR, 1.5 * HOUR, "exceeded"),
        "queue/web:wait-max<=2h": (2 * HOUR, 1.5 * HOUR, "kept"),
        "namespace/team-a:evictions<=0": (0, 1, "exceeded"),
        "namespace/team-a:gpu-hours-evicted<=0.5": (0, 0.5, "kept"),
    }  # fmt: skip


def test_a_gate_of_a_team_without_pods_is_not_kept() -> None:
    """A gate for a queue without pods has the verdict `no-pods`. A queue with pods that started
    before the time span and still run does not count as one without pods."""
    ledger = two_teams()
    ledger.submit(pod("serve", cards(), queue="web"), runs_s=None)
    ledger.settle()
    after = ledger.state.revision
    ledger.until(6 * HOUR)
    answer = replay(
        ledger.recorded(after=after, begin_s=5 * HOUR, end_s=6 * HOUR),
        Otherwise(setup=setup_of(QUEUES.replace("name: ml", "name: idle"))),
        bounds=bounds_of(["queue/idle:wait-p95<=1m", "queue/web:wait-p95<=1m"]),
    )
    assert [gate.verdict for gate in answer.gates] == ["no-pods", "kept"]


def test_an_unknown_team_is_refused_before_the_replay() -> None:
    """If a gate names an unknown queue, the replay fails before it has replayed any event."""
    told: list[tuple[int, int]] = []
    with pytest.raises(GateInvalid, match="no queue 'mll'"):
        replay(
            two_teams().recorded(end_s=HOUR), Otherwise(),
            bounds=bounds_of(["queue/mll:wait-p95<=1m"]),
            tell=lambda done, of: told.append((done, of)),
        )  # fmt: skip
    assert not told


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        ("ml", f"'ml' is not a gate; write TEAM:MEASURE<=BOUND, as in {EXAMPLE}"),
        ("ml:wait-p95<30m", "is not a gate"),
        ("pod/ml:wait-p95<=30m", "is not a gate"),
        ("ml:wait-p59<=30m", "unknown measure 'wait-p59'; did you mean wait-p95"),
        ("ml:wait-p95<=30", "'30' of wait-p95 is not valid; write a number followed by s, m, h"),
        ("ml:evictions<=1d", "'1d' of evictions is not valid; write a number"),
        ("queue/team-a:evictions<=1", "no queue 'team-a' in this time; the queues are ml, web"),
        ("mll:evictions<=1", "no queue or namespace 'mll' in this time; did you mean ml"),
    ],
)
def test_an_invalid_gate_is_refused(gate: str, problem: str) -> None:
    """If a gate is malformed or names an unknown queue or namespace, the error has a fix."""
    with pytest.raises(GateInvalid) as error:
        verdicts(gate)
    assert problem in str(error.value)


def test_a_name_of_a_queue_and_a_namespace_is_ambiguous() -> None:
    """If a queue and a namespace have the same name, a gate must say which of the two it means."""
    none = TeamFigures(0, 0, 0, 0, *(0.0,) * 7)
    both = {TeamKey("queue", "ml"): none, TeamKey("namespace", "ml"): none}
    teams = compared(both, {})
    with pytest.raises(GateInvalid, match="write queue/ml or namespace/ml"):
        judged(bounds_of(["ml:evictions<=1"]), teams)
    [gate] = judged(bounds_of(["namespace/ml:evictions<=1"]), teams)
    assert (gate.kind, gate.name, gate.verdict) == ("namespace", "ml", "no-pods")


def test_only_waits_are_rounded() -> None:
    """A gate (an upper bound on a figure) treats a wait of less than 50 ms as zero. It does not
    round other figures."""
    none = TeamFigures(1, 1, 0, 0, *(0.0,) * 7)
    short = structs.replace(none, wait_max_s=0.049, gpu_hours_waited=0.049)
    teams = compared({}, {TeamKey("queue", "ml"): short})
    gates = judged(bounds_of(["ml:wait-max<=0s", "ml:gpu-hours-pending<=0.04"]), teams)
    assert [gate.verdict for gate in gates] == ["kept", "exceeded"]


def test_gates_have_limits_and_known_fields() -> None:
    """The number of gates is limited. Each measure is a figure of queues and namespaces."""
    assert len(bounds_of([EXAMPLE] * GATES_MAX)) == GATES_MAX
    with pytest.raises(GateInvalid, match="at most 100"):
        bounds_of([EXAMPLE] * (GATES_MAX + 1))
    assert {each.field for each in MEASURES.values()} <= {*TeamFigures.__struct_fields__}
