"""Tests of how the watcher adopts pods that run without a placement in the ledger."""

import json
from typing import Any

import pytest

from apportion.core.configuration import read_configuration
from apportion.core.ledger.handlers.unattributed_devices import EVIDENCE
from apportion.core.ledger.state import Phase
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, shares_text
from apportion_schemas import (
    BindFailed,
    Configuration,
    ConfigurationChanged,
    DifferenceFound,
    NodeConstraints,
    NodeObserved,
    PodAdopted,
    PodEvicted,
    PodGone,
    Share,
)
from tests.support.fleet import A100_40, gpu, node, rack
from tests.support.kube_objects import kube_node, kube_pod, managed_fields
from tests.support.kube_objects import share as asks_share
from tests.support.pods import ask, placed, pod, shape
from tests.support.pods import share as of
from tests.unit.watcher.kubernetes.followed_cluster import Cluster

CARD = node("n1", gpu("g0"), gpu("g1"))
HAMI = {"hami.io/vgpu-devices-allocated": "g1,NVIDIA,3000,30:;"}
VOLCANO_SHARE = {"volcano.sh/gpu-index": "1", "volcano.sh/predicate-time": "1"}


def said(*shares: Share, attempt: int = 1) -> dict[str, str]:
    """Return the annotations that our binder would write for these shares."""
    text = shares_text(shares)
    return {SHARES: text, ATTEMPT: str(attempt)}


def held(cluster: Cluster) -> PodAdopted:
    """Return the adoption of the only pod that can be adopted. Fail the test if the adoption has a
    problem."""
    ((data, problem, _),) = cluster.adoptions()
    assert not problem
    return data


def unnamed(cluster: Cluster) -> tuple[str, ...]:
    """Return the device families that node n1 does not offer, because a pod there uses unknown
    devices."""
    (fact,) = cluster.facts.nodes(["n1"])
    assert isinstance(fact.data, NodeObserved)
    return fact.data.unnamed_families


def test_a_pod_that_we_bound_says_itself_what_it_holds() -> None:
    """If the ledger was lost, a pod that we bound is adopted with the shares in its own
    annotations."""
    cluster = Cluster()
    notes = said(of("g1", 4000, 0), attempt=3)
    cluster.pod("p", annotations=notes, on="n1", phase="Running", labels={"app": "a"})
    data = held(cluster)
    assert (data.node, data.attempt, data.running) == ("n1", 3, True)
    assert (data.shares, data.evidence) == ((of("g1", 4000, 0),), SHARES)
    assert data.submitted.labels == {"app": "a"}
    cluster.ledger.play(data)
    cluster.pod("p", version=2, annotations=notes, on="n1", labels={"app": "a"})
    assert cluster.pod_facts() == []
    assert cluster.adoptions() == []


def test_a_pod_of_ours_without_a_device_is_adopted_too() -> None:
    """The watcher adopts a pod that we bound even if it has no devices."""
    cluster = Cluster()
    cluster.pod("p", annotations=said(), limits={"cpu": "1"}, on="n1")
    assert held(cluster).submitted.shape.node.cpu_milli == 1000


@pytest.mark.parametrize("made", [True, False])
def test_a_pod_of_ours_without_a_device_is_evicted_whoever_bound_it(made: bool) -> None:
    """The watcher adopts a pod with our scheduler's name and no devices, whatever program bound it.
    The pod's CPU counts once, and the pod can be evicted."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1", allocatable={"cpu": "2"}))
    cluster.pod("p", limits={"cpu": "2"}, on="n1", made=made, priority=5)
    data = held(cluster)
    assert (data.shares, data.attempt, data.running) == ((), 0, True)
    assert data.submitted.priority == 5
    cluster.ledger.play(data)
    cluster.write(list(cluster.facts.nodes(["n1"])))
    assert (cluster.ledger.node().host.cpu_milli, cluster.ledger.node().cpu_used_milli) == (
        2000,
        2000,
    )
    needs = NodeConstraints(cpu_milli=2000)
    cluster.ledger.submit(pod("high", shape=shape(node=needs), priority=9)).settle()
    (evicted,) = (each for each in cluster.ledger.events if isinstance(each, PodEvicted))
    assert (evicted.pod, evicted.beneficiary) == ("p", "high")


def test_a_pod_of_ours_without_a_device_that_cannot_be_read_is_not_held() -> None:
    """If a pod without devices has an invalid manifest, the watcher does not adopt it. The pod is
    therefore never evicted."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    unreadable = {"volcano.sh/preemptable": "perhaps"}
    cluster.pod("p", limits={"cpu": "1"}, on="n1", annotations=unreadable)
    cluster.pod("q", limits={"cpu": "1"}, on="n1", schedulerName="default-scheduler")
    assert cluster.adoptions() == []


@pytest.mark.parametrize(
    ("notes", "limits", "share"),
    [
        (HAMI, asks_share(3000, 30), of("g1", 3000, 30)),
        ({"volcano.sh/vgpu-ids-new": "g1,NVIDIA,3000,30:"},
         {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}, of("g1", 3000, 30)),
        (VOLCANO_SHARE, {"volcano.sh/gpu-memory": "3000"}, of("g1", 3000, 0)),
    ],
)  # fmt: skip
def test_a_pod_of_another_scheduler_holds_what_that_one_wrote(
    notes: dict[str, str], limits: dict[str, str], share: Share
) -> None:
    """The watcher adopts another scheduler's pod with the shares that its annotations state."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    cluster.see("nodes", kube_node("n1"))
    limits = limits | {"cpu": "2"}
    cluster.pod("p", annotations=notes, limits=limits, on="n1", schedulerName="hami-scheduler")
    data = held(cluster)
    assert data.shares == (share,)
    cluster.ledger.play(data)
    assert unnamed(cluster) == ()
    assert cluster.ledger.node().cpu_used_milli == 2000


def test_an_init_container_that_hami_put_onto_the_same_card_holds_nothing_more() -> None:
    """If an init container uses less of a GPU than the pod's containers, the watcher adopts no
    additional share for it."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    notes = {"hami.io/vgpu-devices-allocated": "g1,NVIDIA,50000,0:;g1,NVIDIA,60000,0:;"}
    init = {"name": "i", "image": "app", "resources": {"limits": asks_share(50_000)}}
    cluster.pod(
        "p", annotations=notes, limits=asks_share(60_000), on="n1",
        schedulerName="hami-scheduler", initContainers=[init],
    )  # fmt: skip
    data = held(cluster)
    assert data.shares == (of("g1", 60_000, 0),)
    cluster.ledger.play(data)
    assert cluster.ledger.device("g1").slots_free == 9


def test_an_init_container_that_hami_put_onto_the_same_card_may_hold_more() -> None:
    """If an init container uses more of a GPU than the pod's containers, the watcher adopts the
    larger amount, not the sum."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    notes = {"hami.io/vgpu-devices-allocated": "g1,NVIDIA,60000,0:;g1,NVIDIA,50000,0:;"}
    init = {"name": "i", "image": "app", "resources": {"limits": asks_share(60_000)}}
    cluster.pod(
        "p", annotations=notes, limits=asks_share(50_000), on="n1",
        schedulerName="hami-scheduler", initContainers=[init],
    )  # fmt: skip
    data = held(cluster)
    assert data.shares == (of("g1", 60_000, 0),)
    cluster.ledger.play(data)
    assert cluster.ledger.device("g1").slots_free == 9


@pytest.mark.parametrize("without", [{"cores": "50"}, {"memory-percentage": "50"}])
def test_a_container_that_volcano_gives_no_gpu_holds_none(without: dict[str, str]) -> None:
    """Volcano gives no GPU, and writes no segment, for a container with only cores or a percentage
    of memory. The watcher adopts the other container with the GPU that Volcano wrote."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    cluster.see("nodes", kube_node("n1"))
    amounts = {"first": without, "main": {"number": "1", "memory": "12000"}}
    containers = [
        {
            "name": name,
            "resources": {"limits": {f"volcano.sh/vgpu-{k}": n for k, n in each.items()}},
        }
        for name, each in amounts.items()
    ]
    notes = {"volcano.sh/vgpu-ids-new": "g1,NVIDIA,12000,0:"}
    cluster.pod("p", annotations=notes, containers=containers, on="n1", schedulerName="volcano")
    assert held(cluster).shares == (of("g1", 12_000, 0),)


def test_an_instance_that_volcano_names_by_its_group_is_held_once_its_card_is_known() -> None:
    """If Volcano's annotation names a MIG instance by group, the watcher adopts the pod once the
    node has reported the GPU. Until then, the node offers no GPUs."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    notes = {"volcano.sh/vgpu-ids-new": "g0[group1-6],NVIDIA,3000,0:"}
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}
    cluster.pod("p", annotations=notes, limits=limits, on="n1", schedulerName="volcano")
    assert unnamed(cluster) == ("nvidia",)
    card = gpu("g0", model=A100_40, memory_mib=40_960, mode="mig", slots=7)
    cluster.ledger.report(node("n1", card))
    cluster.ledger.play(held(cluster))
    assert unnamed(cluster) == ()
    assert cluster.ledger.device("g0").slices == 0b1000000


@pytest.mark.parametrize(
    ("notes", "limits", "scheduler", "families"),
    [
        ({}, {"nvidia.com/gpu": "1"}, "default-scheduler", ("nvidia",)),
        ({}, {"huawei.com/Ascend310P": "1"}, "default-scheduler", ("ascend310p",)),
        (said(of("g0")), asks_share(), "default-scheduler", ("nvidia",)),
        ({"volcano.sh/vgpu-mode": "odd"}, asks_share(), "other", ("nvidia",)),
        ({SHARES: "[{]"}, asks_share(), "apportion", ("nvidia",)),
        ({}, {"nvidia.com/gpu": "0", "cpu": "1"}, "default-scheduler", ()),
        ({}, {"cpu": "1"}, "default-scheduler", ()),
    ],
)
def test_devices_that_nobody_names_close_their_family_until_they_are_told_of(
    notes: dict[str, str], limits: dict[str, str], scheduler: str, families: tuple[str, ...]
) -> None:
    """If a pod uses unknown devices, the watcher does not adopt the pod. Its node then offers no
    devices of the requested kind."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    cluster.pod("p", annotations=notes, limits=limits, on="n1", schedulerName=scheduler)
    assert cluster.adoptions() == []
    assert unnamed(cluster) == families


def charged(cluster: Cluster) -> dict[str, int]:
    """Adopt the only adoptable pod. Return the MiB that are allocated on each GPU of node n1."""
    cluster.ledger.play(held(cluster))
    return {
        each.device.id: each.device.memory_mib - each.memory_free_mib
        for each in cluster.ledger.node().devices
    }


@pytest.mark.parametrize(
    ("limits", "closed"),
    [
        ({"nvidia.com/gpu": "1"}, ["g0"]),
        ({"nvidia.com/gpu": "2"}, ["g0", "g1"]),
        ({"nvidia.com/gpu": "64"}, ["g0", "g1", "g2"]),
        ({"nvidia.com/gpu": "2", "volcano.sh/vgpu-number": "1"}, ["g0", "g1"]),  # unreadable
        ({"tencent.com/vcuda-core": "200"}, ["g0", "g1"]),
    ],
)
def test_a_pod_that_names_nothing_closes_as_many_cards_as_it_asked_for(
    limits: dict[str, str], closed: list[str]
) -> None:
    """If a pod's annotations name no device, the watcher adopts the pod with as many whole GPUs as
    it requested."""
    cluster = Cluster()
    cluster.ledger.report(node("n1", gpu("g0"), gpu("g1"), gpu("g2")))
    cluster.see("nodes", kube_node("n1"))
    cluster.pod("p", limits=limits, on="n1", schedulerName="default-scheduler")
    assert [name for name, mib in charged(cluster).items() if mib == 81920] == closed
    assert unnamed(cluster) == ()
    cluster.pod("p", version=2, limits=limits, on="n1", phase="Failed")
    cluster.write(cluster.pod_facts())
    assert {each.memory_free_mib for each in cluster.ledger.node().devices} == {81920}


def test_cards_with_the_most_room_are_taken_first() -> None:
    """If a pod's annotations name no device, the watcher adopts the pod with the GPUs that have the
    most free memory."""
    cluster = Cluster()
    cluster.ledger.play(
        node("n1", gpu("g0"), gpu("g1")), pod("q"), placed("q", shares=[of("g0", 4000, 10)])
    )
    cluster.pod("p", limits={"nvidia.com/gpu": "2"}, on="n1", schedulerName="default-scheduler")
    data = held(cluster)
    assert data.shares == (of("g1", 81920, 100), of("g0", 77920, 90))
    assert (data.running, data.attempt) == (True, 0)


def test_a_card_that_is_cut_is_taken_where_nobody_has_of_it() -> None:
    """If a pod's annotations name no device, the watcher adopts the pod with a free GPU. If that
    GPU is in MIG mode, the pod gets its largest instance."""
    cluster = Cluster()
    card = gpu("g0", model=A100_40, memory_mib=40_960, mode="mig", slots=7)
    cluster.ledger.report(node("n1", card))
    cluster.pod("p", limits={"nvidia.com/gpu": "1"}, on="n1", schedulerName="default-scheduler")
    charged(cluster)
    assert cluster.ledger.device("g0").slices == 0b11111111


def test_a_card_with_configured_groups_is_taken_with_all_instances_of_a_group() -> None:
    """If a GPU may be split only into configured MIG groups, a pod whose annotations name no device
    is adopted with all instances of a group, as it may use any of them."""
    allowed = {"group": "g", "geometries": [{"name": "1g.5gb", "memory": 5120, "count": 7}]}
    known = [{"models": ["A100-SXM4-40GB"], "allowedGeometries": [allowed]}]
    configuration = read_configuration({"nvidia": {"knownMigGeometries": known}})
    cluster = Cluster()
    cluster.ledger.play(ConfigurationChanged(by="ada", configuration=configuration))
    card = gpu("g0", model=A100_40, memory_mib=40_960, mode="mig", slots=7)
    cluster.ledger.report(node("n1", card))
    cluster.pod("p", limits={"nvidia.com/gpu": "1"}, on="n1", schedulerName="default-scheduler")
    charged(cluster)
    assert len(cluster.ledger.shares("p")) == 7
    assert cluster.ledger.device("g0").slices == 0b1111111


CUT = node("n1", *(gpu(n, model=A100_40, memory_mib=40_960, mode="mig", slots=7) for n in "ab"))
UNTOLD = "a,NVIDIA,5120,14:;"
ALLOCATED = "hami.io/vgpu-devices-allocated"
CUTS = "hami.io/vgpu-mig-allocations"


def cut_of(start: int, card: str = "a", at: int = 0) -> dict[str, Any]:
    """Return a 5 GB MIG instance at slice `start`, in the format of HAMi's annotations."""
    placement = {"start": start, "size": 1}
    return {
        "containerIndex": 0, "deviceIndex": at, "gpuUUID": card, "profile": "1g.5gb",
        "placement": placement,
    }  # fmt: skip


def hami_pod(cluster: Cluster, name: str, text: str, *cuts: dict[str, Any], **fields: Any) -> None:
    """Let the watcher see a pod that HAMi bound to node n1, with these annotations."""
    notes = {ALLOCATED: text}
    if cuts:
        notes[CUTS] = json.dumps(cuts)
    fields = {"on": "n1", "phase": "Running", "schedulerName": "hami-scheduler"} | fields
    cluster.pod(name, annotations=notes, limits=asks_share(5000), **fields)


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        (UNTOLD, ()),
        ("a[0-0],NVIDIA,5120,14:;", ()),  # HAMi up to 2.9: an index into its own templates
        (UNTOLD, (cut_of(6), cut_of(5))),  # two for one device
        (UNTOLD, (cut_of(6, card="b"),)),  # on another GPU than the segment
    ],
)
def test_G7_a_pod_on_a_cut_card_whose_instances_are_not_told_closes_the_node(
    text: str, cuts: tuple[dict[str, Any], ...]
) -> None:
    """If a pod's MIG instances are unknown, its node offers no GPUs until the pod ends."""
    cluster = Cluster()
    cluster.ledger.report(CUT)
    cluster.see("nodes", kube_node("n1"))
    hami_pod(cluster, "told", UNTOLD, cut_of(6))
    cluster.ledger.play(held(cluster))
    assert cluster.ledger.device("a").slices == 0b1000000
    hami_pod(cluster, "untold", text, *cuts)
    assert cluster.adoptions() == []
    assert unnamed(cluster) == ("nvidia",)
    cluster.write(list(cluster.facts.nodes(["n1"])))
    cluster.ledger.submit(pod("ours", ask(5000))).settle()
    assert cluster.ledger.pod("ours").placement is None
    hami_pod(cluster, "untold", text, *cuts, version=2, phase="Succeeded")
    cluster.write(list(cluster.facts.nodes(["n1"])))
    cluster.ledger.settle()
    assert cluster.ledger.pod("ours").placement is not None


def test_G7_two_untold_pods_on_a_cut_card_end_one_after_the_other() -> None:
    """If the MIG instances of two pods are unknown, their node offers no GPUs until both have
    ended."""
    cluster = Cluster()
    cluster.ledger.report(CUT)
    cluster.see("nodes", kube_node("n1"))
    for name in ("one", "two"):
        hami_pod(cluster, name, UNTOLD)
    assert cluster.adoptions() == []
    assert unnamed(cluster) == ("nvidia",)
    hami_pod(cluster, "one", UNTOLD, version=2, phase="Succeeded")
    assert unnamed(cluster) == ("nvidia",)
    hami_pod(cluster, "two", UNTOLD, version=2, phase="Failed")
    assert unnamed(cluster) == ()


def test_G7_a_pod_that_was_adopted_before_its_card_was_known_to_be_cut() -> None:
    """If a pod was adopted before its GPU was reported in MIG mode, no other pod gets this GPU
    until the adopted pod ends."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    hami_pod(cluster, "early", UNTOLD)
    cluster.ledger.play(held(cluster))
    cluster.ledger.report(CUT)
    cluster.ledger.submit(pod("ours", ask(4800))).settle()
    placement = cluster.ledger.pod("ours").placement
    assert placement is not None
    assert {share.device for share in placement.shares} == {"b"}
    assert not cluster.ledger.device("a").healthy
    cluster.ledger.submit(*(pod(f"more{n}", ask(4800)) for n in range(7))).settle()
    waiting = [p for p in cluster.ledger.state.pods.values() if p.placement is None]
    assert len(waiting) == 1
    hami_pod(cluster, "early", UNTOLD, version=2, phase="Succeeded")
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle()
    assert cluster.ledger.device("a").healthy
    assert all(p.placement is not None for p in cluster.ledger.state.pods.values())


def test_a_pod_that_names_nothing_closes_a_node_of_which_no_cut_card_is_whole() -> None:
    """If a pod's annotations name no device, the watcher adopts the pod with a free MIG GPU. If no
    GPU is free, the node offers no GPUs."""
    cluster = Cluster()
    cluster.ledger.report(CUT)
    cluster.see("nodes", kube_node("n1"))
    hami_pod(cluster, "told", UNTOLD, cut_of(6))
    cluster.ledger.play(held(cluster))
    nameless: dict[str, Any] = {
        "limits": {"nvidia.com/gpu": "1"},
        "on": "n1",
        "schedulerName": "other",
    }
    cluster.pod("first", **nameless)
    cluster.ledger.play(held(cluster))
    assert cluster.ledger.device("b").slices == 0b11111111
    cluster.pod("second", **nameless)
    assert cluster.adoptions() == []
    assert unnamed(cluster) == ("nvidia",)


def test_gpu_manager_alone_names_the_card_and_no_node() -> None:
    """GPU Manager's annotations name a GPU for each container but no node. The watcher adopts such
    a pod with these GPUs."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    limits = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "1"}
    notes = {"tencent.com/predicate-gpu-idx-0": "1", "tencent.com/gpu-assigned": "true"}
    cluster.pod("p", annotations=notes, limits=limits, on="n1", schedulerName="default-scheduler")
    assert held(cluster).shares == (of("g1", 256, 10),)


@pytest.mark.parametrize("notes", [HAMI, said(of("g1", 4000, 0), attempt=3)])
@pytest.mark.parametrize("scheduler", ["apportion", "hami-scheduler"])
def test_what_an_author_wrote_on_a_pod_that_he_put_onto_a_node_is_not_believed(
    notes: dict[str, str], scheduler: str
) -> None:
    """If a pod was created with its node already set, the watcher does not trust the pod's
    annotations. It adopts the pod with one GPU, as if there were no annotations."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    cluster.pod("p", made=True, annotations=notes, on="n1", schedulerName=scheduler)
    data = held(cluster)
    assert data.evidence.startswith(f"{EVIDENCE}: {next(iter(notes))} ")
    assert data.attempt == 0
    assert [each.device for each in data.shares] == ["g0"]


@pytest.mark.parametrize(
    ("manager", "also", "believed"),
    [
        ("scheduler", {}, True),
        ("vc-scheduler", {}, True),
        ("kubectl-edit", {}, False),
        ("scheduler", {"f:spec": {"f:containers": {}}}, False),  # the author, under that name
    ],
)
def test_what_others_wrote_is_believed_of_schedulers_alone(
    manager: str, also: dict[str, Any], *, believed: bool
) -> None:
    """The watcher trusts a pod's annotations only if its managed fields show that a known scheduler
    wrote them."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    cluster.see("nodes", kube_node("n1"))
    document = kube_pod("p", asks_share(3000, 30), schedulerName="hami-scheduler")
    notes: dict[str, Any] = {f"f:{key}": {} for key in HAMI}
    fields = {"f:metadata": {"f:annotations": notes}} | also
    entry = {"manager": manager, "operation": "Update", "fieldsV1": fields}
    metadata = {"annotations": HAMI, "managedFields": [*managed_fields(document), entry]}
    document["metadata"] |= metadata
    document["spec"]["nodeName"] = "n1"
    cluster.see("pods", document, 1, "p")
    assert (held(cluster).shares == (of("g1", 3000, 30),)) is believed


def test_a_pod_of_which_nobody_says_who_made_it_is_not_believed() -> None:
    """If a pod has no managed fields, the watcher does not trust its annotations."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    document = kube_pod("p", asks_share(), annotations=HAMI, schedulerName="hami-scheduler")
    document["spec"]["nodeName"] = "n1"
    cluster.see("pods", document, 1, "p")
    assert held(cluster).evidence.startswith(EVIDENCE)


def test_a_number_is_known_once_the_node_has_reported() -> None:
    """If annotations name a GPU by index, the watcher adopts the pod once the node has reported its
    GPUs. Until then the node offers none."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    limits = {"volcano.sh/gpu-memory": "3000"}
    cluster.pod("p", annotations=VOLCANO_SHARE, limits=limits, on="n1", schedulerName="volcano")
    assert cluster.adoptions() == []
    assert unnamed(cluster) == ("nvidia",)
    cluster.ledger.report(CARD)
    cluster.view.mark_claims("n1")
    assert [share.device for share in held(cluster).shares] == ["g1"]


def test_what_does_not_fit_is_told_and_not_held() -> None:
    """If a pod's shares do not fit into the ledger's state, the watcher reports a problem and does
    not adopt the pod. Its node then offers no devices of the requested kind."""
    cluster = Cluster()
    cluster.see("nodes", kube_node("n1"))
    whole = placed("q", shares=[of("g1", 81920, 100)])
    cluster.ledger.play(CARD, pod("q"), whole)
    cluster.pod("p", annotations=HAMI, on="n1", schedulerName="hami-scheduler")
    ((data, problem, _),) = cluster.adoptions()
    assert (data.pod, "memory_mib needed 3000, available 0" in problem) == ("p", True)
    assert unnamed(cluster) == ("nvidia",)


def test_a_pod_bound_by_an_attempt_that_was_given_up_is_let_go_and_held_anew() -> None:
    """If a binding attempt was recorded as failed but did bind the pod, the watcher ends the pod in
    the ledger. It then adopts the pod with the shares in the pod's annotations."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    cluster.pod("p")
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle()
    cluster.ledger.play(
        BindFailed(pod="p", node="n1", attempt=1, message="no answer", final=True)
    ).settle()
    assert cluster.ledger.placement("p").attempt == 2
    notes = said(of("g1", 5000, 0))
    cluster.pod("p", version=5, annotations=notes, on="n1")
    (gone,) = cluster.pod_facts()
    assert isinstance(gone.data, PodGone)
    assert "attempt 1" in gone.data.reason
    cluster.write([gone])
    (unread,) = cluster.view.unread(["p"])
    assert unread.uid == "p"
    cluster.pod("p", version=5, annotations=notes, on="n1")
    data = held(cluster)
    cluster.ledger.play(data)
    assert cluster.ledger.pod("p").phase is Phase.BOUND
    assert cluster.ledger.device("g1").memory_free_mib == 81920 - 5000


def test_an_adopted_pod_ends_under_the_fence_of_its_subject() -> None:
    """When the watcher ends an adopted pod, it fences the event with the last revision of the pod's
    subject. The event's id contains that revision."""
    cluster = Cluster()
    cluster.pod("p", annotations=said(of("g1")), on="n1")
    cluster.ledger.play(held(cluster))
    cluster.revisions.adopted.add("p")
    cluster.pod("p", version=2, annotations=said(of("g1")), on="n1", phase="Succeeded")
    (gone,) = cluster.pod_facts()
    assert (gone.expect, gone.event_id) == (0, "p/gone")
    cluster.revisions.note("apportion.v1.workload.p", 7)
    cluster.pod("p", version=3, annotations=said(of("g1")), on="n1", phase="Succeeded")
    (gone,) = cluster.pod_facts()
    assert (gone.expect, gone.event_id) == (7, "p/gone/7")


def test_H7_an_annotation_of_ours_that_was_deleted_is_told() -> None:
    """If our binder's annotation on a pod was deleted, the watcher reports that."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    cluster.pod("p")
    cluster.write(cluster.pod_facts())
    cluster.ledger.settle()
    notes = said(cluster.ledger.shares("p")[0], attempt=1)
    cluster.pod("p", version=2, annotations=notes, on="n1")
    cluster.ledger.bound("p")
    assert list(cluster.facts.annotations()) == []
    cluster.pod("p", version=3, annotations={ATTEMPT: "1"}, on="n1")
    (fact,) = cluster.facts.annotations()
    assert isinstance(fact.data, DifferenceFound)
    assert (fact.data.kind, fact.data.cluster) == ("annotation", "")
    cluster.pod("p", version=4, annotations=notes, on="n1")
    assert list(cluster.facts.annotations()) == []


def test_an_annotation_that_differs_is_told_once() -> None:
    """If our annotation on a pod differs from the ledger, the watcher reports that once."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    notes = said(of("g1"))
    cluster.pod("p", annotations=notes, on="n1")
    cluster.ledger.play(held(cluster))
    assert list(cluster.facts.annotations()) == []
    cluster.pod("p", version=2, annotations=notes | {SHARES: "[]"}, on="n1")
    (fact,) = cluster.facts.annotations()
    assert isinstance(fact.data, DifferenceFound)
    assert (fact.data.kind, fact.data.name, fact.data.cluster) == ("annotation", "default/p", "[]")
    cluster.write([fact])
    assert list(cluster.facts.annotations()) == []


def test_a_manifest_that_makes_no_sense_still_holds_what_it_holds() -> None:
    """Even if a pod's manifest is invalid, the watcher adopts the pod with the shares in its
    annotations."""
    cluster = Cluster()
    cluster.ledger.report(CARD)
    limits: dict[str, Any] = asks_share(3000, 30) | {"volcano.sh/vgpu-number": "1"}
    cluster.pod("p", annotations=HAMI, limits=limits, on="n1", schedulerName="hami-scheduler")
    data = held(cluster)
    assert [(ask.container, ask.memory_mib) for ask in data.submitted.shape.asks] == [
        ("main", 3000)
    ]
    cluster.ledger.play(data)


def test_a_pod_of_ours_that_another_scheduler_bound_is_reported() -> None:
    """If a pod of ours gets a node without a binding attempt of ours, another scheduler has bound
    the pod. The watcher reports this once, after it has adopted the pod."""
    cluster = Cluster()
    cluster.ledger.report(rack("n1", 1))
    cluster.pod("a")
    cluster.write(cluster.pod_facts())
    cluster.pod("a", version=2, on="n1")
    assert list(cluster.facts.overtaken()) == []
    cluster.write(cluster.pod_facts())
    cluster.pod("a", version=3, on="n1")  # read again, now that the ledger lacks it
    ((data, _, _),) = cluster.adoptions()
    cluster.write([cluster.facts.adoption(data)])
    (fact,) = cluster.facts.overtaken()
    assert isinstance(fact.data, DifferenceFound)
    assert (fact.data.kind, fact.data.name, fact.data.cluster) == ("overtaken", "default/a", "n1")
    assert list(cluster.facts.overtaken()) == [fact]  # the append was refused
    cluster.write([fact])
    assert list(cluster.facts.overtaken()) == []
    assert not cluster.view.overtaken


def test_a_pod_that_ends_before_its_adoption_is_no_longer_considered() -> None:
    """The watcher remembers a pod of ours that another scheduler has bound until it adopts the pod.
    It forgets the pod if the pod ends before that."""
    cluster = Cluster()
    cluster.pod("a")
    cluster.pod("a", version=2, on="n1")
    assert list(cluster.view.overtaken) == ["a"]
    cluster.pod("a", version=3, on="n1", phase="Succeeded")
    assert not cluster.view.overtaken


@pytest.mark.parametrize("limits", [asks_share(), {"nvidia.com/gpu": "x"}])
def test_a_pod_that_a_scheduler_with_our_extender_bound_is_not_reported(
    limits: dict[str, str],
) -> None:
    """If a kube-scheduler with our extender binds a pod itself, the watcher does not report that
    another scheduler bound the pod. This holds even if the pod's request is invalid."""
    cluster = Cluster()
    cluster.reader.configure(Configuration(extended_scheduler_names=("default-scheduler",)))
    cluster.pod("a", limits=limits, schedulerName="default-scheduler")
    assert "a" in cluster.view.pods
    cluster.pod("a", version=2, on="n1", limits=limits, schedulerName="default-scheduler")
    assert not cluster.view.overtaken


@pytest.mark.parametrize("case", ["bound by us", "bound before the watcher", "of another"])
def test_other_bindings_are_not_reported(case: str) -> None:
    """The watcher does not report that another scheduler bound a pod in three cases: we bound the
    pod, the pod was bound before the watcher saw it, or the pod names another scheduler."""
    cluster = Cluster()
    fields: dict[str, Any] = {"schedulerName": "hami-scheduler"} if case == "of another" else {}
    if case != "bound before the watcher":
        cluster.pod("a", **fields)
    notes = {ATTEMPT: "1"} if case == "bound by us" else {}
    cluster.pod("a", version=2, on="n1", annotations=notes, **fields)
    assert not cluster.view.overtaken
