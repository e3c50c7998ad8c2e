"""Tests of sharding, which assigns every pod to one of several schedulers.

When a scheduler joins or leaves, as few parts of the key space as possible change owners."""

from collections import Counter
from itertools import permutations

from apportion.core.placement.queueing.sharding import PARTS, WHOLE, key_of, owner, part_of, shard
from apportion_schemas import PodConstraints, PodSelector, PodTerm
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, member, pod, shape

KEYS = [f"pod-{number:05}" for number in range(3_000)]
FOUR = ("s0/a1", "s1/b2", "s2/c3", "s3/d4")


def owners(members: tuple[str, ...]) -> dict[str, str]:
    return {key: owner(key, members) for key in KEYS}


def test_every_part_has_one_owner() -> None:
    """Every part of the key space has exactly one owner among the schedulers."""
    shards = [shard(name, FOUR).parts for name in FOUR]
    assert sum(map(len, shards)) == PARTS
    assert frozenset().union(*shards) == WHOLE.parts


def test_members_agree_on_the_owner() -> None:
    """All schedulers compute the same owner of a key, whatever the order of their member list."""
    found = owners(FOUR)
    for order in permutations(FOUR):
        shards = {name: shard(name, order) for name in order}
        for key in KEYS[:200]:
            holders = [name for name in order if shards[name].owns(key)]
            assert holders == [found[key]] == [owner(key, order)]


def test_a_member_that_joins_takes_only_what_becomes_its_own() -> None:
    """When a scheduler joins, only the parts of the key space that it now owns move."""
    before, after = owners(FOUR[:3]), owners(FOUR)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved
    assert {after[key] for key in moved} == {FOUR[3]}


def test_a_member_that_leaves_leaves_the_others_what_they_had() -> None:
    """When a scheduler leaves, the other schedulers keep their parts of the key space.

    The parts of the one that left spread over all remaining schedulers."""
    before, after = owners(FOUR), owners(FOUR[1:])
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == FOUR[0]}
    assert {after[key] for key in moved} == set(FOUR[1:])


def test_shards_are_about_equal() -> None:
    """Each of four schedulers owns a quarter of the keys, within a tolerance of a fifth."""
    counts = Counter(owners(FOUR).values())
    assert all(abs(count - len(KEYS) / 4) < len(KEYS) / 20 for count in counts.values())


def test_alone_is_everything() -> None:
    """A single scheduler owns everything, whether or not the member list contains it."""
    assert shard("s0", ()) is WHOLE
    assert shard("s0", ("s0",)) is WHOLE
    assert shard("s0", ("s1",)) == shard("s0", ("s0", "s1"))


def test_a_gang_has_one_owner() -> None:
    """A gang has one owner, so that one scheduler decides the gang as a whole."""
    ledger = Ledger(*(member(f"g{number}", ask(1000)) for number in range(20)))
    assert {key_of(each) for each in ledger.state.pods.values()} == {"team/job"}


def test_pods_that_mind_others_have_one_owner_for_each_namespace() -> None:
    """All pods with affinity or anti-affinity in a namespace belong to one scheduler. Another
    scheduler would not see placements that are not appended yet."""
    term = PodTerm(pods=PodSelector(), topology_key="zone")
    minding = shape(ask(1000), pods=PodConstraints(anti_affinity=(term,)))
    ledger = Ledger(
        pod("a", shape=minding), pod("b", shape=minding), pod("c", shape=minding, namespace="other")
    )
    assert [key_of(ledger.state.pods[uid]) for uid in "abc"] == ["default", "default", "other"]


def test_parts_do_not_change() -> None:
    """A key belongs to the same part in every build, so that schedulers of different builds
    agree."""
    assert [part_of(key) for key in ("a", "team/job", "node-1")] == [539, 522, 222]
    assert owner("team/job", FOUR) == "s0/a1"
