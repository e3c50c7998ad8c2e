"""Tests of affinity, anti-affinity and topology spread. The engine's answers are compared with a
simple scan of all pods."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger.state import NodeState, PodState, State
from apportion.core.workloads.pods.affinity import meet
from apportion_schemas import (
    Disk,
    HostPort,
    LabelExpression,
    NamespaceGone,
    NamespaceObserved,
    Neighbour,
    NodeConstraints,
    PodChanged,
    PodConstraints,
    PodPlaced,
    PodSelector,
    PodSubmitted,
    PodTerm,
    PreferredPodTerm,
    RefusalCode,
    SpreadConstraint,
)
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import gang, pod, shape

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
C = RefusalCode


def app(*names: str) -> PodSelector:
    """Return a selector of pods whose label `app` is one of these names."""
    return PodSelector(expressions=(LabelExpression(key="app", operator="In", values=names),))


def near(key: str, *names: str) -> PodTerm:
    """Return an affinity term that selects pods of these applications within the same domain of
    `key`."""
    return PodTerm(pods=app(*names), topology_key=key)


def minding(
    uid: str, label: str = "", namespace: str = "default", group: str = "", **wishes: Any
) -> PodSubmitted:
    """Return a pod with these affinity, anti-affinity and spread constraints.

    `label` is the value of the pod's label `app`."""
    constraints = PodConstraints(**wishes)
    labels = {"app": label} if label else {}
    return pod(uid, shape=shape(pods=constraints), labels=labels, namespace=namespace, group=group)


def fleet(**zones: str) -> Ledger:
    """Return a ledger with nodes that each have room for three pods.

    Each keyword is a node's name, and its value the node's zone. An empty value means no zone
    label."""
    ledger = Ledger()
    for name, zone in zones.items():
        labels = {HOST: name} | ({ZONE: zone} if zone else {})
        ledger.play(rack(name, 1), observed(name, labels=labels, pods=3))
    return ledger


def test_anti_affinity_keeps_pods_apart() -> None:
    """If pods have anti-affinity to each other, each node takes one of them. Another pod is refused
    until one of them ends."""
    ledger = fleet(a="x", b="x")
    apart: dict[str, Any] = {"anti_affinity": (near(HOST, "db"),)}
    ledger.submit(*(minding(f"p{n}", "db", **apart) for n in range(3))).settle()
    assert sorted([ledger.where("p0"), ledger.where("p1")]) == ["a", "b"]
    assert ledger.reasons("p2") == {C.POD_ANTI_AFFINITY: 2}
    ledger.gone("p0").settle()
    assert ledger.where("p2") == "a"


def test_anti_affinity_holds_against_those_who_do_not_mind() -> None:
    """A placed pod's anti-affinity keeps the pods that it selects off the node.

    Those pods need no anti-affinity of their own."""
    ledger = fleet(a="x")
    ledger.submit(minding("guard", anti_affinity=(near(HOST, "web"),))).settle()
    ledger.submit(minding("w1", "web"), minding("w2", "web"), minding("other", "db")).settle()
    assert ledger.where("other") == "a"
    assert ledger.reasons("w1") == ledger.reasons("w2") == {C.POD_ANTI_AFFINITY: 1}
    ledger.gone("guard").settle()
    assert (ledger.where("w1"), ledger.where("w2")) == ("a", "a")


def test_a_line_that_waited_does_not_wait_for_its_head() -> None:
    """A pending pod is placed before a pod that was submitted later, even if the later pod has
    anti-affinity to it and then no longer fits."""
    ledger = fleet(a="x").play(observed("a", pods=1))
    ledger.submit(minding("x", "db")).settle()
    ledger.submit(minding("w", "web"), minding("d", "db")).settle()
    assert (ledger.where("w"), ledger.where("d")) == ("", "")
    ledger.play(observed("a", pods=2))
    ledger.submit(minding("guard", anti_affinity=(near(HOST, "web"),)))
    ledger.settle()
    assert [uid for uid in ("w", "d", "guard") if ledger.where(uid)] == ["w"]


def test_affinity_follows_and_the_first_goes_ahead() -> None:
    """A pod with affinity waits until a pod that the affinity selects is placed. If the affinity
    selects the pod's own labels, the first such pod need not wait."""
    ledger = fleet(a="x", b="y", c="y", bare="")
    ledger.submit(minding("lost", affinity=(near(ZONE, "db"),))).settle()
    assert ledger.reasons("lost") == {C.POD_AFFINITY_MISMATCH: 4}
    ledger.submit(minding("first", "db", affinity=(near(ZONE, "db"),))).settle()
    assert ledger.where("first") != "bare", "the node must have the label"
    zone = {"a": "x", "b": "y", "c": "y"}
    assert zone[ledger.where("lost")] == zone[ledger.where("first")]


def others(**fields: Any) -> tuple[Neighbour, ...]:
    return (Neighbour(namespace="default", **fields),)


def at_a(**fields: Any) -> Any:
    """Return the event in which the watcher reports node `a` in zone `x`."""
    return observed("a", labels={HOST: "a", ZONE: "x"}, pods=3, **fields)


def test_H2_pods_of_other_schedulers_count_as_ours_do() -> None:
    """A pod's affinity and anti-affinity also apply to pods of other schedulers. The scheduler
    notices when those pods come and go."""
    ledger = fleet(a="x").submit(minding("p", affinity=(near(HOST, "db"),))).settle()
    assert ledger.where("p") == ""
    ledger.play(at_a(others=others(labels={"app": "db"}))).settle()
    assert ledger.where("p") == "a"
    ledger.submit(minding("q", anti_affinity=(near(HOST, "db"),))).settle()
    assert ledger.reasons("q") == {C.POD_ANTI_AFFINITY: 1}
    ledger.play(at_a()).settle()
    assert ledger.where("q") == "a"


def test_H2_pods_of_other_schedulers_keep_ours_away() -> None:
    """The anti-affinity of another scheduler's pod keeps the pods that it selects off the node."""
    guard = others(anti_affinity=(near(HOST, "web"),))
    ledger = fleet(a="x").play(at_a(others=guard)).submit(minding("p", "web")).settle()
    assert ledger.reasons("p") == {C.POD_ANTI_AFFINITY: 1}
    ledger.play(at_a()).settle()
    assert ledger.where("p") == "a"


def test_host_ports_of_other_schedulers_pods_are_taken() -> None:
    """A host port counts as in use if a pod of another scheduler uses it."""
    asked = shape(node=NodeConstraints(ports=(HostPort(port=80),)))
    ledger = fleet(a="x").play(at_a(others=others(ports=(HostPort(port=80),))))
    ledger.submit(pod("p", shape=asked)).settle()
    assert ledger.reasons("p") == {C.HOST_PORT_TAKEN: 1}
    ledger.play(at_a(others=others(ports=(HostPort(port=80, protocol="UDP"),)))).settle()
    assert ledger.where("p") == "a"


def test_F16_disks_of_other_schedulers_pods_are_taken() -> None:
    """A disk counts as in use if a pod of another scheduler mounts it. When that pod ends, the
    scheduler retries pods that need the disk."""
    disk = Disk(name="iscsi/iqn.d")
    ledger = fleet(a="x").play(at_a(others=others(disks=(disk,))))
    ledger.submit(pod("p", shape=shape(node=NodeConstraints(disks=(disk,))))).settle()
    assert ledger.reasons("p") == {C.DISK_IN_USE: 1}
    ledger.play(at_a()).settle()
    assert ledger.where("p") == "a"


def test_namespaces_count() -> None:
    """An affinity term selects pods only in the namespaces that it names."""
    term = PodTerm(
        pods=PodSelector(expressions=app("db").expressions, namespaces=("team",)), topology_key=HOST
    )
    ledger = fleet(a="x")
    ledger.submit(minding("p", "db"), minding("q", anti_affinity=(term,))).settle()
    assert ledger.where("q") == "a"
    ledger.submit(minding("r", "db", namespace="team")).settle()
    assert ledger.reasons("r") == {C.POD_ANTI_AFFINITY: 1}


def spread(key: str = ZONE, **fields: Any) -> SpreadConstraint:
    """Return a spread constraint for application `web` with a skew of at most one."""
    return SpreadConstraint(pods=app("web"), topology_key=key, **fields)


def test_spread_over_zones() -> None:
    """With a spread constraint, the pod counts of any two zones differ by at most one.

    Nodes without a zone take none of the pods."""
    ledger = fleet(a="x", b="x", c="x", d="y", bare="")
    ledger.submit(*(minding(f"p{n}", "web", spread=(spread(),)) for n in range(8))).settle()
    where = [ledger.where(f"p{n}") for n in range(8)]
    assert where.count("d") == 3
    assert where.count("bare") == 0
    assert sum(name in {"a", "b", "c"} for name in where) == 4
    assert ledger.reasons("p7") == {C.TOPOLOGY_SPREAD_EXCEEDED: 3, C.PODS_EXHAUSTED: 2}


def test_spread_counts_what_the_selector_allows() -> None:
    """A spread constraint counts only zones with a node that matches the pod's node selector."""
    ledger = fleet(a="x", d="y")
    ledger.play(observed("a", labels={HOST: "a", ZONE: "x", "gpu": "on"}))
    wishes = PodConstraints(spread=(spread(),))
    gpu_only = NodeConstraints(selector={"gpu": "on"})
    pods = [
        pod(f"p{n}", shape=shape(pods=wishes, node=gpu_only), labels={"app": "web"}) for n in (0, 1)
    ]
    ledger.submit(*pods).settle()
    assert (ledger.where("p0"), ledger.where("p1")) == ("a", "a")


def test_spread_with_fewer_domains_than_wanted() -> None:
    """If the cluster has fewer zones than `minDomains`, a spread constraint assumes an empty zone.

    The scheduler then refuses pods that would exceed the maximum skew in the existing zones."""
    ledger = fleet(a="x", b="x")
    few: dict[str, Any] = {"spread": (spread(min_domains=2),)}
    ledger.submit(minding("p0", "web", **few), minding("p1", "web", **few)).settle()
    assert ledger.reasons("p1") == {C.TOPOLOGY_SPREAD_EXCEEDED: 2}
    ledger.play(rack("c", 1), observed("c", labels={ZONE: "y"})).settle()
    assert ledger.where("p1") == "c"


def test_preferences_are_points() -> None:
    """Preferred affinity draws a pod to a node, preferred anti-affinity keeps it away, and a soft
    spread constraint prefers the emptiest domain."""
    ledger = fleet(a="x", b="y", c="z")
    ledger.submit(minding("db", "db"), minding("web", "web", affinity=())).settle()
    home, other = ledger.where("db"), ledger.where("web")
    like = PreferredPodTerm(weight=100, term=near(HOST, "db"))
    dislike = PreferredPodTerm(weight=-100, term=near(HOST, "db"))
    ledger.submit(minding("p", preferred=(like,))).settle()
    assert ledger.where("p") == home
    ledger.submit(minding("q", preferred=(dislike,))).settle()
    assert ledger.where("q") != home
    ledger.submit(minding("r", "web", spread=(spread(HOST, required=False),))).settle()
    assert ledger.where("r") != other


def test_a_gang_whose_pods_want_one_another() -> None:
    """A gang's pods may have affinity to each other, in any order: workers that are submitted
    before their server are placed with it."""
    ledger = fleet(a="x", b="y").play(gang(min_available=3))
    workers = [
        minding(f"w{n}", "worker", group="team/job", affinity=(near(ZONE, "server"),))
        for n in range(2)
    ]
    ledger.submit(*workers, minding("s", "server", group="team/job")).settle()
    assert len({ledger.where(uid) for uid in ("w0", "w1", "s")} - {""}) == 1
    apart = [
        minding(f"v{n}", "lone", group="team/other", anti_affinity=(near(HOST, "lone"),))
        for n in range(3)
    ]
    ledger.play(gang("team/other", min_available=3)).submit(*apart).settle()
    assert [ledger.where(f"v{n}") for n in range(3)] == ["", "", ""]
    assert ledger.reasons("v0")[C.POD_ANTI_AFFINITY] == 1


def test_a_gang_too_large_for_every_zone_is_told_why() -> None:
    """If a gang's pods need separate nodes of one zone and no zone has enough, the gang is refused.
    The refusal counts the nodes that the gang's first pods would take."""
    ledger = fleet(a="x", b="x", c="y", d="y").play(gang(min_available=3))
    together, apart = near(ZONE, "rank"), near(HOST, "rank")
    ranks = [
        minding(f"r{n}", "rank", group="team/job", affinity=(together,), anti_affinity=(apart,))
        for n in range(3)
    ]
    ledger.submit(*ranks).settle()
    assert [ledger.where(rank.uid) for rank in ranks] == ["", "", ""]
    assert ledger.reasons("r0") == {C.POD_ANTI_AFFINITY: 2}
    shortage = ledger.refusal("r0").gang
    assert shortage is not None
    assert (shortage.needed, shortage.fitting) == (3, 2)


# -------------------------------------------------------------- compared with a full scan


def domain(node: NodeState, key: str) -> str | None:
    return node.host.labels.get(key)


def placed(state: State) -> Iterator[tuple[PodSubmitted, NodeState]]:
    """Yield every placed pod with its node. Pods of other schedulers are included."""
    for each in state.pods.values():
        if each.placement is not None:
            yield each.submitted, state.nodes[each.placement.node]
    for node in state.nodes.values():
        for other in node.observed.others if node.observed else ():
            minds = shape(pods=PodConstraints(anti_affinity=other.anti_affinity))
            about = pod("other", shape=minds, labels=other.labels, namespace=other.namespace)
            yield from [(about, node)] * other.count


def means(state: State, selector: PodSelector, asked: PodSubmitted) -> bool:
    """Return True if the selector selects the pod, by namespace and by label."""
    there = not (selector.namespaces or selector.by_label)
    there = there or asked.namespace in selector.namespaces
    if selector.by_label and asked.namespace in state.namespaces:
        there = there or meet(state.namespaces[asked.namespace].labels, selector.by_label)
    return there and meet(asked.labels, selector.expressions)


def near_any(state: State, term: PodTerm, node: NodeState) -> bool:
    """Return True if the term selects a placed pod in the same topology domain (such as the zone)
    as the node."""
    key = term.topology_key
    here = domain(node, key)
    return here is not None and any(
        means(state, term.pods, other) and domain(at, key) == here for other, at in placed(state)
    )


def apart(state: State, asked: PodSubmitted, node: NodeState) -> bool:
    """Return True if the pod may be on the node: neither its own anti-affinity nor that of a placed
    pod forbids it."""
    for other, at in placed(state):
        for term in other.shape.pods.anti_affinity:
            here = domain(node, term.topology_key)
            same = here is not None and domain(at, term.topology_key) == here
            if same and means(state, term.pods, asked):
                return False
    return not any(near_any(state, term, node) for term in asked.shape.pods.anti_affinity)


def together(state: State, asked: PodSubmitted, node: NodeState) -> bool:
    """Return True if the node meets the pod's affinity.

    A term that selects no placed pod is also met if it selects the pod itself."""
    for term in asked.shape.pods.affinity:
        if domain(node, term.topology_key) is None:
            return False
        first = not any(near_any(state, term, each) for each in state.nodes.values())
        if not near_any(state, term, node) and not (first and means(state, term.pods, asked)):
            return False
    return True


def even(state: State, asked: PodSubmitted, node: NodeState) -> bool:
    """Return True if the pod on this node would keep every spread constraint within its maximum
    skew.

    Only nodes that have all of the constraints' topology labels count."""
    wishes = asked.shape.pods.spread
    keys = [each.topology_key for each in wishes]
    counted = [n for n in state.nodes.values() if all(domain(n, key) is not None for key in keys)]
    for each in wishes:
        if node not in counted:
            return False
        sums = {domain(n, each.topology_key): 0 for n in counted}
        for other, at in placed(state):
            if at in counted and means(state, each.pods, other):
                sums[domain(at, each.topology_key)] += 1
        mine = sums[domain(node, each.topology_key)] + means(state, each.pods, asked)
        if mine - min(sums.values()) > each.max_skew:
            return False
    return True


def allowed(state: State, asked: PodSubmitted, node: NodeState) -> bool:
    """Return True if Kubernetes' rules of affinity, anti-affinity and spread allow the pod on the
    node."""
    room = len(node.pods) < node.host.pods
    return room and all(rule(state, asked, node) for rule in (apart, together, even))


TEAMS = (LabelExpression(key="team", operator="In", values=("one",)),)
TERMS = st.builds(
    PodTerm,
    topology_key=st.sampled_from((HOST, ZONE)),
    pods=st.builds(
        structs.replace,
        st.sampled_from((app("a"), app("b"))),
        by_label=st.sampled_from(((), (), TEAMS)),
    ),
)
SPACES = st.sampled_from(("default", "default", "team"))
WISHES = st.builds(
    PodConstraints,
    affinity=st.lists(TERMS, max_size=1).map(tuple),
    anti_affinity=st.lists(TERMS, max_size=2).map(tuple),
    spread=st.lists(
        st.builds(
            SpreadConstraint,
            pods=st.sampled_from((app("a"), app("b"), app("a", "b"))),
            topology_key=st.sampled_from((HOST, ZONE)),
            max_skew=st.integers(1, 2),
        ),
        max_size=1,
    ).map(tuple),
)
NAMED = st.one_of(
    st.builds(NamespaceGone, namespace=SPACES),
    st.builds(
        NamespaceObserved,
        namespace=SPACES,
        labels=st.sampled_from(({"team": "one"}, {"team": "two"})),
        version=st.integers(1, 3),
    ),
)
LABELS = st.sampled_from(({"app": "a"}, {"app": "b"}, {}))
SOME = st.one_of(st.just(PodConstraints()), WISHES)
OTHERS = st.lists(
    st.builds(
        Neighbour,
        namespace=SPACES,
        labels=LABELS,
        count=st.integers(1, 2),
        anti_affinity=st.lists(TERMS, max_size=1).map(tuple),
    ),
    max_size=2,
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(st.sampled_from(("x", "y", "")), min_size=1, max_size=5))
def test_every_answer_is_that_of_a_walk(data: st.DataObject, zones: list[str]) -> None:
    """After random changes, the engine's placements agree with a simple scan of all pods."""
    ledger = fleet(**{f"n{at}": zone for at, zone in enumerate(zones)})
    live: list[str] = []
    for number in range(data.draw(st.integers(1, 10))):
        what = data.draw(st.sampled_from(("gone", "changed", "others", "space", *["new"] * 4)))
        if what == "others":
            known = ledger.node(data.draw(st.sampled_from(sorted(ledger.state.nodes)))).observed
            assert known is not None
            ledger.play(structs.replace(known, others=data.draw(OTHERS)))
        elif what == "space":
            ledger.play(data.draw(NAMED))
        elif what == "gone" and live:
            ledger.gone(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif what == "changed" and live:
            ledger.play(PodChanged(uid=data.draw(st.sampled_from(live)), labels=data.draw(LABELS)))
        else:
            live.append(f"p{number}")
            wanted = shape(pods=data.draw(SOME))
            about = {"labels": data.draw(LABELS), "namespace": data.draw(SPACES)}
            ledger.submit(pod(live[-1], shape=wanted, **about))
        before: dict[str, PodState] = {u: p for u, p in ledger.state.pods.items() if p.placement}
        while decided := ledger.engine.decide(events_max=1).events:
            (event,) = decided
            if isinstance(event, PodPlaced):
                asked = ledger.state.pods[event.pod].submitted
                assert allowed(ledger.state, asked, ledger.state.nodes[event.node])
            ledger.play(event)
        assert before.items() <= {u: p for u, p in ledger.state.pods.items() if p.placement}.items()
        for waiting in ledger.state.pods.values():
            if waiting.placement is None:
                nodes = ledger.state.nodes.values()
                assert not any(allowed(ledger.state, waiting.submitted, n) for n in nodes)
        assert not ledger.consider().placed, "an engine that is new to the state agrees"
