"""Tests that every pending pod belongs to exactly one scheduler while schedulers join and leave.

Further tests check which nodes the schedulers choose."""

from collections.abc import Sequence
from itertools import chain

import pytest

from apportion.core.placement.queueing.sharding import owner, shard
from apportion_schemas import (
    NodeConstraints,
    NodeExpression,
    PlacementVoided,
    PodPlaced,
    PodRefused,
    PreferredTerm,
    QueueObserved,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.members import Members
from tests.support.pods import ask, cards, gang, member, pod, shape

THREE = ("s0", "s1", "s2")
UIDS = [f"p{number:02}" for number in range(40)]
SMALL = ask(1000, cores=1)


def owned_by(name: str, names: tuple[str, ...] = THREE) -> list[str]:
    """Return the pods that belong to scheduler `name` while the schedulers `names` are running."""
    return [uid for uid in UIDS if owner(uid, names) == name]


def told(events: Sequence[Payload], kind: type[PodPlaced | PodRefused]) -> list[str]:
    """Return the sorted uids of the pods in the events of type `kind`."""
    return sorted(event.pod for event in events if isinstance(event, kind))


def crowd(*names: str) -> Members:
    """Return schedulers of these names that share forty pending pods and a node with room for
    them."""
    return Members(names, rack("n1", 8)).submit(*(pod(uid, SMALL) for uid in UIDS))


def fleet(names: tuple[str, ...], nodes: int) -> Members:
    """Return schedulers of these names that share this many nodes with one device each."""
    return Members(names, *(rack(f"n{number:02}", 1) for number in range(nodes)))


def test_each_member_decides_for_its_own() -> None:
    """Each scheduler decides its own pods, so that every pod is decided exactly once."""
    members = crowd(*THREE)
    for name in THREE:
        assert members.engines[name].pending == len(owned_by(name))
        assert members.engines[name].others_wait
        assert told(members.decided_by(name).events, PodPlaced) == owned_by(name)


def test_what_a_member_leaves_is_decided_by_the_others() -> None:
    """When a scheduler leaves, the other schedulers decide its pods at once. They wait for no
    further event."""
    members = crowd(*THREE)
    assert members.decide_by("s1")
    assert members.decide_by("s2")
    members.be("s1", "s2")
    taken = [told(members.decide_by(name), PodPlaced) for name in ("s1", "s2")]
    assert sorted(chain(*taken)) == owned_by("s0")
    assert taken == [
        [uid for uid in owned_by("s0") if owner(uid, ("s1", "s2")) == name] for name in ("s1", "s2")
    ]


def test_who_joins_takes_its_part_from_the_others() -> None:
    """A new scheduler takes over its part of the pending pods; placed pods stay placed."""
    members = crowd("s0", "s1")
    members.be(*THREE)
    for name in ("s0", "s1"):
        assert told(members.decide_by(name), PodPlaced) == owned_by(name)
    assert members.engines["s0"].others_wait
    assert told(members.decide_by("s2"), PodPlaced) == owned_by("s2")
    assert not any(engine.others_wait for engine in members.engines.values())


def test_a_shard_that_comes_back_is_decided_again() -> None:
    """A scheduler that loses a part of the pods and gets it back decides each of these pods exactly
    once."""
    members = crowd("s0")
    members.be(*THREE).be("s0", "s2").be("s0")
    assert told(members.decide_by("s0"), PodPlaced) == UIDS
    assert members.decide_by("s0") == []


def test_a_refused_decision_goes_to_who_owns_its_pods_now() -> None:
    """If a decision is not appended, each of its pods returns to the scheduler that owns the pod
    now."""
    members = crowd("s0")
    lost = members.decided_by("s0")
    members.be(*THREE)
    members.engines["s0"].retry(lost)
    assert told(members.decide_by("s0"), PodPlaced) == owned_by("s0")


def test_who_fits_nowhere_is_told_by_his_owner_and_once() -> None:
    """If no node fits, each pod's refusal is appended once: by the pod's scheduler, or by the next
    owner if that scheduler left before."""
    members = Members(THREE, rack("n1", 1))
    members.submit(*(pod(uid, cards(4)) for uid in UIDS))
    assert told(members.decide_by("s0"), PodRefused) == owned_by("s0")
    assert told(members.decide_by("s1"), PodRefused) == owned_by("s1")
    members.be("s0", "s1")
    late = [told(members.decide_by(name), PodRefused) for name in ("s0", "s1")]
    assert sorted(chain(*late)) == owned_by("s2")


def test_unschedulable_pods_that_came_over_are_woken_by_what_helps_them() -> None:
    """When new nodes join, a scheduler also retries unschedulable pods taken over from another
    scheduler."""
    members = Members(THREE, rack("n1", 1)).submit(*(pod(uid, cards(4)) for uid in UIDS[:9]))
    for name in THREE:
        members.decide_by(name)
    members.be("s1")
    assert members.decide_by("s1") == []
    members.report(*(rack(f"m{number}", 4) for number in range(9)))
    assert told(members.decide_by("s1"), PodPlaced) == UIDS[:9]


def test_a_gang_is_one_members() -> None:
    """All pods of a gang belong to one scheduler, whatever their names."""
    members = Members(THREE, rack("n1", 8), gang("team/job", 6))
    members.submit(*(member(f"g{number}", SMALL) for number in range(6)))
    placed = {name: told(members.decide_by(name), PodPlaced) for name in THREE}
    assert placed == {
        name: [f"g{number}" for number in range(6)] if name == owner("team/job", THREE) else []
        for name in THREE
    }


def test_pods_within_one_limit_are_one_members() -> None:
    """As soon as a queue has a limit, all its pending pods belong to one scheduler. Without the
    limit, each pod has its own scheduler again."""
    members = Members(THREE, rack("n1", 8))
    members.submit(*(pod(uid, cards(9), queue="ml") for uid in UIDS))
    apart = {name: members.engines[name].pending for name in THREE}
    assert all(apart.values())
    members.play(QueueObserved(queue="ml", capability={"nvidia.com/gpu": 3}))
    owners = {name: 40 if name == owner("queue ml", THREE) else 0 for name in THREE}
    assert {name: members.engines[name].pending for name in THREE} == owners
    members.play(QueueObserved(queue="ml"))
    assert {name: members.engines[name].pending for name in THREE} == apart


def test_queues_and_namespaces_with_limits_have_one_member() -> None:
    """If both queues and namespaces have limits, all their pods belong to one scheduler.

    Otherwise two schedulers would place pods of one namespace and refuse each other's appends."""
    members = Members(THREE, rack("n1", 1))
    members.play(*(QueueObserved(queue=name, capability={"nvidia.com/gpu": 3}) for name in "abcd"))
    for number, queue in enumerate("abcd" * 5):
        members.submit(pod(f"p{number}", cards(9), queue=queue, namespace="team"))
    assert len([name for name in THREE if members.engines[name].pending]) > 1
    members.play(QuotaObserved(namespace="team", quota="q", hard={"requests.nvidia.com/gpu": 4}))
    pending = {name: members.engines[name].pending for name in THREE}
    assert pending == {name: 20 if name == owner("queue root", THREE) else 0 for name in THREE}


def test_a_gang_follows_its_queue_to_another_member() -> None:
    """If a PodGroup moves to a queue with a limit, the queue's scheduler decides for the gang."""
    limits = [QueueObserved(queue=name, capability={"pods": 9}) for name in ("a", "b", "c", "d")]
    members = Members(THREE, rack("n1", 1), *limits, gang("team/job", 2))
    members.submit(member("g0", cards(9)), member("g1", cards(9)))
    for name in ("a", "b", "c", "d"):
        members.play(gang("team/job", 2, queue=name))
        who = owner(f"queue {name}", THREE)
        assert [each for each in THREE if members.engines[each].pending] == [who]


def test_only_its_owner_voids_a_placement() -> None:
    """Only the scheduler that owns a pod voids the pod's placement. If every scheduler did, the
    events that they append would conflict."""
    members = crowd(*THREE)
    for name in THREE:
        members.decide_by(name)
    uid = owned_by("s1")[0]
    members.state.failing[uid] = "told by the test"
    for name in THREE:
        voided = [e for e in members.decided_by(name).events if isinstance(e, PlacementVoided)]
        assert [event.pod for event in voided] == ([uid] if name == "s1" else [])


def test_a_pod_that_is_voided_waits_for_its_owner() -> None:
    """If a placement is voided, the pod's current owner places the pod again, even if another
    scheduler had placed it before."""
    members = crowd("s0")
    members.decide_by("s0")
    members.be(*THREE)
    uid = owned_by("s2")[0]
    members.bound(uid).voided(uid)
    assert [told(members.decide_by(name), PodPlaced) for name in THREE] == [[], [], [uid]]


def test_a_pod_that_another_placed_comes_back_to_its_owner_alone() -> None:
    """If a placement that another process appended is voided, only the pod's current owner places
    the pod again."""
    members = crowd("s0")
    members.play(*members.consider().events)
    members.be(*THREE)
    uid = owned_by("s2")[0]
    members.bound(uid).voided(uid)
    assert [told(members.decide_by(name), PodPlaced) for name in THREE] == [[], [], [uid]]


def test_a_pod_that_another_placed_comes_back_once_where_it_has_a_quota_by_now() -> None:
    """If a pod's namespace gets a quota and the pod's placement is then voided, the scheduler
    places the pod again exactly once."""
    members = Members(("s0",), rack("n1", 8)).submit(pod("p1", SMALL, namespace="team"))
    members.play(*members.consider().events)
    members.play(QuotaObserved(namespace="team", quota="q", hard={"requests.nvidia.com/gpu": 4}))
    members.bound("p1").voided("p1")
    assert told(members.decided_by("s0").events, PodPlaced) == ["p1"]


# -------------------------------------------------------------------- choice of node


def test_members_that_keep_apart_choose_different_nodes() -> None:
    """If schedulers divide the nodes, each first uses its own part of the nodes.

    Their placements therefore do not collide."""
    members = fleet(THREE, 30).submit(*(pod(uid, SMALL) for uid in UIDS))
    chosen = {name: _nodes(members.decided_by(name, apart=True).events) for name in THREE}
    assert all(chosen.values())
    assert (
        not chosen["s0"] & chosen["s1"] | chosen["s0"] & chosen["s2"] | chosen["s1"] & chosen["s2"]
    )
    for name, nodes in chosen.items():
        assert all(shard(name, THREE).owns(node) for node in nodes)


def test_members_that_do_not_choose_as_one_alone() -> None:
    """If schedulers do not divide the nodes, each chooses nodes as a single scheduler would."""
    members = fleet(THREE, 30).submit(*(pod(uid, SMALL) for uid in UIDS[:10]))
    for name in THREE:
        assert _nodes(members.decided_by(name, apart=False).events) == {"n00"}


@pytest.mark.parametrize("names", [("s0",), THREE])
def test_kept_apart_they_fill_the_cluster_all_the_same(names: tuple[str, ...]) -> None:
    """If schedulers divide the nodes, a scheduler whose own nodes are full uses the nodes of other
    schedulers."""
    members = fleet(names, 9).submit(*(pod(uid, ask(20_480)) for uid in UIDS[:36]))
    placed = list(chain(*(members.decide_by(name, apart=True) for name in names)))
    assert told(placed, PodPlaced) == UIDS[:36]


def test_kept_apart_they_leave_few_nodes_begun() -> None:
    """If schedulers divide the nodes, each fills its own nodes one after another.

    Few nodes are therefore partly used."""
    members = fleet(THREE, 30)
    for uid in UIDS:
        members.submit(pod(uid, ask(8_192)))
        for name in THREE:
            members.decide_by(name, apart=True)
    used = {members.where(uid) for uid in UIDS}
    assert len(used) <= len(UIDS) / 10 + len(THREE)


def test_who_prefers_a_node_goes_there_all_the_same() -> None:
    """A pod's preferred node affinity outweighs the division of nodes between schedulers.

    The pod gets its preferred node even if that node is in another scheduler's part of the
    fleet."""
    wish = PreferredTerm(
        weight=100, term=(NodeExpression(key="disk", operator="In", values=("fast",)),)
    )
    wanting = shape(ask(1000), node=NodeConstraints(preferred=(wish,)))
    members = fleet(THREE, 9).report(observed("n04", labels={"disk": "fast"}))
    members.submit(*(pod(uid, shape=wanting) for uid in UIDS[:10]))
    for name in THREE:
        members.decide_by(name, apart=True)
    assert {members.where(uid) for uid in UIDS[:10]} == {"n04"}


def test_the_same_shard_decides_the_same() -> None:
    """A scheduler that just started decides like one that has followed all events."""
    members = crowd(*THREE)
    members.decide_by("s0", apart=True)
    members.gone(*owned_by("s0")[:3])
    again = Members((), *members.events)
    again.be(*THREE)
    for name in THREE[1:]:
        old = members.decided_by(name, apart=True).events
        assert again.decided_by(name, apart=True).events == old


def _nodes(events: Sequence[Payload]) -> set[str]:
    return {event.node for event in events if isinstance(event, PodPlaced)}
