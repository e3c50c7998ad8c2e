"""Hypothesis strategies that draw the history of a small, crowded cluster.

A history is a list of steps: valid events, events that contradict earlier ones, and decisions of a
scheduler. Names are few and amounts are small, so pods compete and nodes report the same device."""

import os
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, get_args

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from msgspec import structs

from apportion.core.ledger.state import Phase, State
from apportion.core.placement.feasibility.nodes import UNSCHEDULABLE
from apportion_schemas import (
    AllocationFailed,
    Ask,
    BindFailed,
    DeviceConstraints,
    DeviceCordoned,
    DeviceHealthChanged,
    DeviceUncordoned,
    DeviceWeights,
    GangPart,
    HostPort,
    LabelExpression,
    MigInstance,
    NodeConstraints,
    NodeCordoned,
    NodeExpression,
    NodeGone,
    NodeHeard,
    NodeSilent,
    NodeUncordoned,
    PlacementVoided,
    PodBound,
    PodChanged,
    PodConstraints,
    PodGone,
    PodGroupObserved,
    PodPlaced,
    PodSelector,
    PodSubmitted,
    PodTerm,
    Policy,
    PolicyChanged,
    PreferredPodTerm,
    PreferredTerm,
    PricedShape,
    PricesLearnt,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
    ResizeAsked,
    Score,
    Shape,
    Share,
    SharesAllocated,
    SpreadConstraint,
    Toleration,
)
from apportion_schemas.quantities import Payload
from tests.properties.core_fleets import NODES, lifted, names, observations, reports
from tests.support.fleet import rack

EFFORT = int(os.environ.get("PROPERTIES_EFFORT", "1"))
"""Multiplies the number of histories, for a thorough run."""
PODS = tuple(f"p{number}" for number in range(12))
GANGS = ("", "", "", "team/x", "team/y")
QUEUES = ("ml", "default", "web")
NAMESPACES = ("team", "team", "web", "free")
QUEUED = ("ml", "ml", "ml", "default", "", "web")
GATES = ((), (), (), (), ("g",))
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"labels": {"app": "x"}},
    {"labels": {"app": "y"}, "cpu_milli": 300},
    {"labels": {"app": "x"}, "cpu_milli": 600},
    {"memory_mib": 400},
    {"cpu_milli": 300},
    {"gates": ("g",)},
    {"labels": {"app": "y"}, "terminating": True},
)
"""Changes of a pod's fields, one for each of `picks`."""
SIZES: tuple[dict[str, Any], ...] = (
    {"memory_mib": 100},
    {"memory_mib": 500, "cores": 10},
    {"memory_mib": 3000},
    {"memory_mib": 20_000},
    {"cores": 0},
    {"cores": 100},
    {"memory_mib": 1000, "container": "c0"},
    {"memory_mib": 300, "container": "c1"},
)
"""Sizes to which a running pod may be resized, one for each of `picks`."""
FAMILIES = ("nvidia", "nvidia", "nvidia", "ascend310p", "ascend910c", "kunlun-vxpu")
picks = st.integers(0, 7)
pods = st.sampled_from(PODS)


T = TypeVar("T")


def trying(examples: int) -> settings:
    """Return Hypothesis settings for this many examples, without a time limit for each example."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    phases = [stage for stage in Stage if stage is not Stage.shrink or EFFORT == 1]
    return settings(
        max_examples=examples * EFFORT, deadline=None, suppress_health_check=quiet, phases=phases
    )


def weighed(*parts: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """Return a strategy that draws from one of `parts`, chosen in proportion to their weights."""
    return st.sampled_from([part for weight, part in parts for _ in range(weight)]).flatmap(
        lambda part: part
    )


class Effect(NamedTuple):
    """A step that becomes an event about a pod or device when the history is played."""

    kind: type[Payload]  # the event's type
    pick: int  # chooses among the pods or devices for which the event is possible
    final: bool = False

    def about(self, state: State) -> Payload | None:
        """Return the event for this step, or None if `state` has no suitable pod or device."""
        if self.kind is DeviceHealthChanged:
            return self._about_device(state)
        phases = _PHASES[self.kind]
        found = [pod for pod in state.pods.values() if pod.phase in phases]
        if not found:
            return None
        pod = found[self.pick % len(found)]
        if self.kind is PodGone:
            return PodGone(uid=pod.uid)
        if self.kind is PodChanged:
            return PodChanged(uid=pod.uid, **CHANGES[self.pick])
        if self.kind is ResizeAsked:
            return ResizeAsked(pod=pod.uid, by="drawn", **SIZES[self.pick])
        placed = pod.placement
        assert placed is not None
        fields: dict[str, Any] = {"pod": pod.uid, "node": placed.node, "attempt": placed.attempt}
        if self.kind is SharesAllocated:
            fields["devices"] = tuple(share.device for share in placed.shares)
        if self.kind is PlacementVoided:
            fields["reason"] = "drawn"
        if self.kind in (BindFailed, AllocationFailed):
            fields["message"] = "drawn"
        if self.kind is BindFailed:
            fields["final"] = self.final
        return self.kind(**fields)

    def _about_device(self, state: State) -> Payload | None:
        found = [(node.name, each) for node in state.nodes.values() for each in node.devices]
        if not found:
            return None
        node, device = found[self.pick % len(found)]
        return DeviceHealthChanged(
            node=node, device=device.device.id, healthy=not device.healthy or self.final
        )


_PHASES: dict[type[Payload], set[Phase]] = {
    DeviceHealthChanged: set(),
    PodGone: set(Phase),
    PodChanged: set(Phase),
    ResizeAsked: {Phase.BOUND, Phase.ALLOCATED},
    PodBound: {Phase.PLACED},
    BindFailed: {Phase.PLACED},
    SharesAllocated: {Phase.PLACED, Phase.BOUND},
    AllocationFailed: {Phase.PLACED, Phase.BOUND},
    PlacementVoided: {Phase.PLACED, Phase.BOUND},
}


class Decide(NamedTuple):
    """A step of a history: a scheduler decides, and the events of the decision are folded."""

    lost: bool = False  # drop the events instead; the scheduler must retry
    rival: bool = False  # another scheduler decides
    events_max: int = 256


Step = Payload | Effect | Decide


def _asks(container: str) -> st.SearchStrategy[Ask]:
    return st.builds(
        Ask,
        container=st.just(container),
        family=st.sampled_from(FAMILIES),
        count=st.sampled_from((1, 1, 1, 2, 3)),
        memory_mib=st.sampled_from((None, None, 0, 300, 500, 1000, 3000, 5000, 20000)),
        memory_percent=st.sampled_from((None, None, None, 1, 50, 100)),
        cores=st.sampled_from((0, 0, 1, 10, 50, 100)),
        cap_memory=st.booleans(),
    ).map(_of_xpu)


def _of_xpu(ask: Ask) -> Ask:
    """Convert a request for Kunlunxin vXPUs to one vXPU with ten times the memory.

    Some vXPUs have that much memory. Return any other request unchanged."""
    if ask.family != "kunlun-vxpu":
        return ask
    memory_mib = 10 * ask.memory_mib if ask.memory_mib is not None else None
    return structs.replace(ask, count=1, memory_mib=memory_mib)


terms = st.lists(
    st.builds(
        NodeExpression,
        key=st.sampled_from(("zone", "rank")),
        operator=st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
        values=st.sampled_from((("1",), ("7",), ("6", "2"))),
    )
    | st.builds(
        NodeExpression,
        key=st.just("metadata.name"),
        operator=st.sampled_from(("In", "NotIn")),
        values=names.map(lambda name: (name,)),
        of_field=st.just(True),
    ),
    max_size=2,
).map(tuple)
constraints = st.just(DeviceConstraints()) | st.builds(
    DeviceConstraints,
    modes=st.sampled_from(((), ("mig",), ("hami-core", "mps"))),
    use_types=st.sampled_from(((), ("A100",), ("t4", "A30"))),
    nouse_types=st.sampled_from(((), (), ("T4",))),
    use_ids=st.sampled_from(((), (), ("a0", "b1"))),
    nouse_ids=st.sampled_from(((), (), ("a0",))),
    indexes=st.sampled_from(((), (), (0, 2))),
    numa_bind=st.sampled_from((False, False, True)),
)
node_constraints = st.just(NodeConstraints()) | st.builds(
    NodeConstraints,
    cpu_milli=st.sampled_from((0, 300, 600)),
    memory_mib=st.sampled_from((0, 400)),
    extended=st.sampled_from(({}, {}, {"nic": 1})),
    selector=st.sampled_from(({}, {}, {"zone": "1"})),
    required=st.lists(terms, max_size=2).map(tuple),
    preferred=st.lists(
        st.builds(PreferredTerm, weight=st.integers(1, 100), term=terms), max_size=2
    ).map(tuple),
    tolerations=st.sampled_from(
        (
            (),
            (Toleration(key="t", operator="Exists"),),
            (Toleration(key=UNSCHEDULABLE.key, operator="Exists"),),
        )
    ),
    ports=st.sampled_from(
        ((), (), (HostPort(port=80),), (HostPort(port=80, ip="a"), HostPort(port=1)))
    ),
)
policies = st.sampled_from(get_args(Policy))
own_policies = st.sampled_from(("", "", "", *get_args(Policy)))
chains = own_policies | st.sampled_from(("numa,spread", "mutex,binpack", "topology-aware"))
selectors = st.builds(
    PodSelector,
    expressions=st.sampled_from(
        (
            (LabelExpression(key="app", operator="In", values=("x",)),),
            (LabelExpression(key="app", operator="Exists"),),
            (LabelExpression(key="app", operator="NotIn", values=("x",)),),
        )
    ),
)
keys = st.sampled_from(("zone", "kubernetes.io/hostname"))
levels = st.sampled_from(("",) * 5 + ("zone", "kubernetes.io/hostname", "rank"))
topologies = st.sampled_from(((), (), ("zone", "kubernetes.io/hostname"), ("rank", "zone")))
gang_parts = weighed(
    (4, st.just(())),
    (
        1,
        st.lists(
            st.builds(
                GangPart,
                tasks=st.sampled_from((("t",), ("u",), ("t", "u"))),
                required_level=levels,
                preferred_level=levels,
                split_by=st.sampled_from(("", "app")),
                size=st.integers(0, 2),
            ),
            max_size=2,
        ).map(lambda parts: tuple(sorted(parts, key=lambda part: -len(part.tasks)))),
    ),
)
near = st.builds(PodTerm, pods=selectors, topology_key=keys)
relations = weighed(
    (3, st.just(PodConstraints())),
    (
        1,
        st.builds(
            PodConstraints,
            affinity=st.lists(near, max_size=1).map(tuple),
            anti_affinity=st.lists(near, max_size=1).map(tuple),
            preferred=st.lists(
                st.builds(PreferredPodTerm, weight=st.sampled_from((-50, 1, 100)), term=near),
                max_size=1,
            ).map(tuple),
            spread=st.lists(
                st.builds(
                    SpreadConstraint,
                    pods=selectors,
                    topology_key=keys,
                    max_skew=st.integers(1, 2),
                    required=st.booleans(),
                    min_domains=st.integers(1, 3),
                    any_node=st.booleans(),
                    untainted=st.booleans(),
                ),
                max_size=1,
            ).map(tuple),
        ),
    ),
)


odd_shapes = st.builds(
    Shape,
    asks=st.sampled_from((1, 0, 2, 3)).flatmap(
        [st.tuples(*(_asks(f"c{at}") for at in range(count))) for count in range(4)].__getitem__
    ),
    devices=constraints,
    node=node_constraints,
    pods=relations,
    node_policy=own_policies,
    device_policy=chains,
    device_weights=st.sampled_from((None, None, DeviceWeights(slots=1, cores=0, memory=3))),
)
"""What a pod may request: nothing, one share, or several containers with many constraints."""


def _usual_shapes() -> list[Shape]:
    """Return pod shapes, most of which fit on some node."""
    usual = [
        (300, None, 0, 1), (500, None, 10, 1), (1000, None, 50, 1), (None, 50, 10, 1),
        (None, None, 100, 1), (None, None, 100, 2), (300, None, 50, 2), (300, None, 100, 1),
        (None, None, 0, 1), (20_000, None, 0, 1),
    ]  # fmt: skip
    asks = [
        Ask(
            container="c0",
            family="nvidia",
            memory_mib=memory_mib,
            memory_percent=percent,
            cores=cores,
            count=count,
        )
        for memory_mib, percent, cores, count in usual
    ]
    asks += [
        Ask(container="c0", family="ascend310p", memory_mib=memory_mib)
        for memory_mib in (3000, 6000, 12_000, None)
    ]
    asks += [
        Ask(container="c0", family="ascend910c", count=count, memory_mib=memory_mib, cores=cores)
        for count, memory_mib, cores in ((2, None, 100), (1, 16_000, 0), (2, 16_000, 0))
    ]
    needs = (NodeConstraints(), NodeConstraints(cpu_milli=300), NodeConstraints(memory_mib=400))
    found = [Shape(asks=(ask,), node=needs[at % 3]) for at, ask in enumerate(asks)]
    found += [Shape(asks=(ask,), devices=DeviceConstraints(modes=("mig",))) for ask in asks[:3]]
    found += [
        Shape(asks=(one, structs.replace(two, container="c1"))) for one, two in pairwise(asks)
    ]
    return [*found, Shape(), Shape(node=needs[1])]


usual_shapes = st.sampled_from(_usual_shapes())
shapes = usual_shapes | usual_shapes | odd_shapes
seldom_odd = weighed((5, usual_shapes), (1, odd_shapes))
gangs = st.sampled_from(GANGS)
priorities = st.sampled_from((0, 0, 5, -7, 9))
apps = st.sampled_from(({}, {"app": "x"}, {"app": "y"}))
tasks = st.sampled_from(("", "t", "t", "u"))


def submissions(
    *,
    queues: tuple[str, ...] = ("",),
    namespaces: tuple[str, ...] = ("default",),
    wanted: st.SearchStrategy[Shape] | None = None,
) -> st.SearchStrategy[PodSubmitted]:
    """Draw a submitted pod, which may belong to a gang.

    Its queue and namespace are drawn from `queues` and `namespaces`."""
    usual = (queues, namespaces) == (("",), ("default",))

    def submitted(uid: str, group: str, namespace: str, **rest: Any) -> PodSubmitted:
        return PodSubmitted(
            uid=uid,
            name=uid,
            dialect="hami",
            group=group,
            namespace=namespaces[0] if group else namespace,
            **rest,
        )

    return st.builds(
        submitted,
        uid=pods,
        group=gangs,
        namespace=st.sampled_from(namespaces),
        shape=(shapes if usual else seldom_odd) if wanted is None else wanted,
        priority=priorities,
        labels=apps,
        task=tasks,
        queue=st.sampled_from(queues),
        gates=st.sampled_from(GATES),
        preempts=st.sampled_from((True, True, True, False)),
    )


def _claimed(node: str) -> st.SearchStrategy[tuple[Share, ...]]:
    return st.lists(
        st.builds(
            Share,
            container=st.just("c0"),
            device=st.sampled_from([f"{node}{index}" for index in range(4)]),
            memory_mib=st.sampled_from((0, 100, 1000, 50_000)),
            cores=st.sampled_from((0, 1, 8, 60)),
            instance=st.none()
            | st.builds(
                MigInstance,
                profile=st.just("drawn"),
                start=st.integers(0, 31),
                size=st.sampled_from((1, 4, 32)),
            ),
            template=st.sampled_from((None, "vir01", "unknown")),
        ),
        max_size=2,
    ).map(tuple)


claimed = {node: _claimed(node) for node in NODES}
attempts = st.sampled_from((1, 1, 1, 2))
forgeries = st.sampled_from(("",) * 9 + ("forged",))


@st.composite
def claims(draw: st.DrawFn) -> PodPlaced:
    """Draw a placement by a faulty scheduler that has checked nothing.

    The fold refuses most of these placements."""
    node, uid = draw(names), draw(pods)
    return PodPlaced(
        pod=uid,
        namespace="default",
        name=uid,
        attempt=draw(attempts),
        node=node,
        shares=draw(claimed[node]),
        score=Score(node=node, total=1.0),
        previous=draw(forgeries),
    )


prices = st.lists(
    st.builds(
        PricedShape,
        ask=st.none() | _asks("any"),
        cpu_milli=st.sampled_from((0, 100)),
        memory_mib=st.just(10),
        pods=st.integers(1, 9),
        size=st.integers(0, 3_000_000),
        value=st.integers(0, 2_000_000),
    ),
    max_size=3,
).map(lambda priced: PricesLearnt(pods=9, shapes=tuple(priced)))
effects = st.builds(
    Effect, kind=st.sampled_from(sorted(_PHASES, key=repr)), pick=picks, final=st.booleans()
)
devices_named = st.builds("{}{}".format, names, st.integers(0, 3))
by: dict[str, Any] = {"by": st.just("x"), "reason": st.just("x")}
operations: st.SearchStrategy[Payload] = weighed(
    (2, st.builds(DeviceCordoned, device=devices_named, **by)),
    (2, st.builds(DeviceUncordoned, device=devices_named, **by)),
    (1, st.builds(NodeCordoned, node=names, **by)),
    (3, st.builds(NodeUncordoned, node=names, **by) | lifted),
    (1, st.builds(DeviceHealthChanged, node=names, device=devices_named, healthy=st.booleans())),
    (2, st.builds(PolicyChanged, node_policy=policies, device_policy=policies, **by)),
    (1, st.builds(NodeGone, node=names)),
    (1, st.builds(NodeSilent, node=names, grace_s=st.just(40))),
    (3, st.builds(NodeHeard, node=names)),
    (1, st.builds(PodGone, uid=pods)),
    (
        3,
        st.builds(
            PodGroupObserved,
            group=st.sampled_from(GANGS[-2:]),
            min_available=st.integers(0, 3),
            min_tasks=st.sampled_from(({}, {}, {"t": 1})),
            required_level=levels,
            preferred_level=levels,
            levels=topologies,
            parts=gang_parts,
        ),
    ),
)
others: tuple[tuple[int, st.SearchStrategy[Payload]], ...] = (
    (3, reports()),
    (3, operations),
    (2, observations),
    (2, claims()),
    (1, prices),
)
payloads: st.SearchStrategy[Payload] = weighed((6, submissions()), *others)
few = st.integers(0, 3)
capabilities = weighed(
    (1, st.just({})),
    (
        3,
        st.fixed_dictionaries(
            {},
            optional={
                "cpu": st.sampled_from((300, 900)),
                "memory": st.sampled_from((400, 1000)),
                "pods": few,
                "nic": few,
                "nvidia.com/gpu": few,
                "nvidia.com/gpumem": st.sampled_from((500, 1500, 5000, 30_000)),
                "volcano.sh/vgpu-cores": st.sampled_from((10, 60, 200)),
                "volcano.sh/gpu-number": few,
                "huawei.com/Ascend310P": few,
            },
        ),
    ),
)
card_quotas = st.sampled_from(({}, {}, {}, {"A100": 2, "T4": 2}, {"A100": 3, "A30": 9}))
deserved = st.sampled_from(
    ({}, {}, {}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 3, "cpu": 2000}, {"nvidia.com/gpu": 9})
)
queues_told = st.builds(
    QueueObserved,
    queue=st.sampled_from(QUEUED).map(lambda name: name or "ml"),
    parent=st.sampled_from(("", "", "", "ml", "web", "root")),
    weight=st.integers(0, 3),
    priority=st.sampled_from((0, 0, 0, 1)),
    capability=capabilities,
    deserved=deserved,
    cards_deserved=st.sampled_from(({}, {}, {}, {"A100": 1})),
    guarantee=st.sampled_from(({}, {}, {}, {"nvidia.com/gpu": 1}, {"cpu": 500})),
    reclaimable=st.sampled_from((True, True, True, False)),
    fifo=st.sampled_from((False,) * 5 + (True,)),
    open=st.sampled_from((True,) * 7 + (False,)),
    cards=card_quotas,
)
queued_gangs = st.builds(
    PodGroupObserved,
    group=st.sampled_from(GANGS[-2:]),
    min_available=st.integers(0, 3),
    queue=st.sampled_from(QUEUES),
)
queued_payloads: st.SearchStrategy[Payload] = weighed(
    (6, submissions(queues=QUEUED)), (3, queues_told), (1, queued_gangs), *others
)
quotas_told: st.SearchStrategy[Payload] = weighed(
    (
        4,
        st.builds(
            QuotaObserved,
            namespace=st.sampled_from(("team", "team", "web")),
            quota=st.sampled_from(("a", "b")),
            hard=st.fixed_dictionaries(
                {},
                optional={
                    "requests.nvidia.com/gpu": few,
                    "limits.nvidia.com/gpumem": st.sampled_from((500, 1500, 5000, 30_000)),
                    "limits.volcano.sh/vgpu-cores": st.sampled_from((10, 60, 200)),
                    "requests.volcano.sh/gpu-number": few,
                    "huawei.com/Ascend310P": few,
                    "requests.nic": few,
                },
            ),
        ),
    ),
    (
        1,
        st.builds(
            QuotaGone, namespace=st.sampled_from(("team", "web")), quota=st.sampled_from(("a", "b"))
        ),
    ),
)
limited_payloads: st.SearchStrategy[Payload] = weighed(
    (6, submissions(queues=("", "", "ml"), namespaces=NAMESPACES)),
    (3, quotas_told),
    (1, queued_gangs),
    *others,
)
decisions = st.builds(
    Decide,
    lost=st.sampled_from((False, False, False, True)),
    rival=st.sampled_from((False, False, False, True)),
    events_max=st.sampled_from((256, 256, 3, 1)),
)
gang_steps = st.builds(
    PodGroupObserved,
    group=st.sampled_from(GANGS[-2:]),
    min_available=st.integers(1, 3),
    required_level=levels,
    parts=gang_parts,
)


def exactly(steps: st.SearchStrategy[T], longest: int) -> st.SearchStrategy[list[T]]:
    """Draw lists of at most `longest` steps, with short and long lists equally likely.

    Hypothesis' own lists are mostly short."""
    return st.sampled_from(range(0, longest + 1, 4)).flatmap(
        lambda length: st.lists(steps, min_size=length, max_size=length)
    )


def queued_histories(*, longest: int = 32) -> st.SearchStrategy[list[Step]]:
    """Draw a history in which pods and gangs are in queues with limits, and one node is large."""
    start = st.tuples(
        st.just([rack("roomy", 8)]),
        st.lists(reports(), max_size=2),
        st.lists(weighed((3, queues_told), (1, queued_gangs)), min_size=1, max_size=3),
        st.lists(submissions(queues=QUEUED), min_size=3, max_size=6),
    ).map(lambda parts: [step for part in parts for step in part])
    steps: st.SearchStrategy[Step] = weighed((4, queued_payloads), (2, effects), (3, decisions))
    return st.builds(lambda begun, on: [*begun, *on], start, exactly(steps, longest))


def limited_histories(*, longest: int = 32) -> st.SearchStrategy[list[Step]]:
    """Draw a history in which some namespaces have device quotas and one node is large."""
    start = st.tuples(
        st.just([rack("roomy", 8)]),
        st.lists(reports(), max_size=2),
        st.lists(quotas_told, min_size=1, max_size=3),
        st.lists(submissions(namespaces=NAMESPACES), min_size=3, max_size=6),
    ).map(lambda parts: [step for part in parts for step in part])
    steps: st.SearchStrategy[Step] = weighed((4, limited_payloads), (2, effects), (3, decisions))
    return st.builds(lambda begun, on: [*begun, *on], start, exactly(steps, longest))


def histories(*, longest: int = 32) -> st.SearchStrategy[list[Step]]:
    """Draw a history that starts with some nodes, gangs and pods."""
    start = st.tuples(
        st.lists(reports(), min_size=2, max_size=4),
        st.lists(gang_steps, max_size=2),
        st.lists(submissions(), min_size=3, max_size=6),
    ).map(lambda parts: [step for part in parts for step in part])
    steps: st.SearchStrategy[Step] = weighed((4, payloads), (2, effects), (3, decisions))
    return st.builds(lambda begun, on: [*begun, *on], start, exactly(steps, longest))
