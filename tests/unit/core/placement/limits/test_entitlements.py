"""Tests of how the amounts of a parent queue are divided between its children."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.placement.limits.entitlements import UNLIMITED, Claim, Memory, Part, divide
from apportion.core.workloads.dialects.amounts import AMOUNT_MAX


def divided(total: int, *claims: Claim) -> list[int]:
    return [each.entitled for each in divide(Part(total), claims)]


def test_a_parent_that_is_asked_for_less_scales_nothing_down() -> None:
    """If children ask for less than their parent deserves, the deserved amounts of the children are
    not scaled down any further."""
    parts = divide(Part(9, 9, 10), [Claim(6, deserved=7), Claim(3, deserved=3)])
    assert parts == [Part(6, 6, 7), Part(3, 3, 3)]


def test_each_queue_gets_what_it_deserves_and_asks_for() -> None:
    """If two queues deserve 28 and 12 of 40 devices and each asks for all of them, they get 28 and
    12."""
    assert divided(40, Claim(40, deserved=28), Claim(40, deserved=12)) == [28, 12]


def test_what_one_queue_does_not_ask_for_is_lent() -> None:
    """If a queue asks for less than it deserves, its sibling is entitled to the rest."""
    assert divided(40, Claim(5, deserved=28), Claim(40, deserved=12)) == [5, 35]


def test_a_guarantee_is_never_lent() -> None:
    """The unused part of a queue's guarantee is not given to other queues."""
    assert divided(40, Claim(5, guarantee=10), Claim(40)) == [5, 30]


def test_the_surplus_goes_by_priority_and_then_by_weight() -> None:
    """Queues of higher priority get the surplus first. Queues of equal priority divide it by
    weight."""
    assert divided(40, Claim(20, priority=1), Claim(40), Claim(40, weight=3)) == [20, 5, 15]
    assert divided(40, Claim(40), Claim(2, weight=3), Claim(40, weight=3)) == [10, 2, 28]


def test_a_queue_of_weight_0_gets_no_surplus() -> None:
    """A queue of weight 0 gets only what it deserves."""
    assert divided(40, Claim(40, deserved=4, weight=0), Claim(10)) == [4, 10]


def test_a_limit_bounds_all_parts() -> None:
    """A queue is entitled to no more than its limit, whatever it deserves."""
    assert divided(40, Claim(40, deserved=28, limit=6), Claim(40)) == [6, 34]


def test_if_all_deserve_more_than_there_is_all_are_scaled_down() -> None:
    """If queues deserve more than there is, their deserved amounts are scaled down. Of 40 devices,
    queues that deserve 280 and 120 get 28 and 12.

    Guarantees are served first."""
    assert divided(40, Claim(99, deserved=280), Claim(99, deserved=120)) == [28, 12]
    assert divided(40, Claim(99, guarantee=10), Claim(99, deserved=90)) == [10, 30]
    assert divided(40, Claim(99, guarantee=60), Claim(99, guarantee=20)) == [30, 10]


def test_a_queue_may_deserve_all_there_is() -> None:
    """A queue that deserves an unlimited amount counts as a queue that deserves the total. Its
    siblings therefore get a part, too."""
    assert divided(40, Claim(99, deserved=AMOUNT_MAX), Claim(99, deserved=40)) == [20, 20]
    assert divided(40, Claim(10, deserved=AMOUNT_MAX), Claim(99, deserved=20)) == [10, 30]


CLAIMS = st.builds(
    Claim,
    asked=st.integers(0, 60),
    guarantee=st.integers(0, 20),
    deserved=st.integers(0, 40),
    limit=st.one_of(st.just(UNLIMITED), st.integers(0, 40)),
    weight=st.integers(0, 3),
    priority=st.integers(0, 1),
)


@given(st.integers(0, 100), st.lists(CLAIMS, max_size=6))
def test_parts_never_exceed_the_total_or_a_claim(total: int, claims: list[Claim]) -> None:
    """The parts add up to at most the total. No part exceeds what its queue asks for, or the
    queue's limit.

    If a queue with a weight gets less, only unused guarantees of the total are left over."""
    parts = divided(total, *claims)
    assert sum(parts) <= total
    hungry = False
    for part, claim in zip(parts, claims, strict=True):
        assert 0 <= part <= min(claim.asked, claim.limit)
        hungry |= bool(claim.weight) and part < min(claim.asked, claim.limit)
    idle = sum(max(each.guarantee - part, 0) for part, each in zip(parts, claims, strict=True))
    assert not hungry or sum(parts) >= total - idle


HOUR = 3_600_000
BY_USE = Memory(weight_milli=1000, horizon_ms=100 * HOUR)


def remembered(total: int, *claims: Claim, memory: Memory = BY_USE) -> list[int]:
    return [each.entitled for each in divide(Part(total), claims, memory)]


def test_past_use_lowers_a_queue_s_part_of_the_surplus() -> None:
    """Of two equal queues, the one that used half of the total before gets only 1/3 of the surplus.
    The weights are 1/2 + (1/2 - 1/2) and 1/2 + (1/2 - 0)."""
    assert remembered(12, Claim(99, past=6 * 100 * HOUR), Claim(99)) == [4, 8]
    twice = Memory(2000, 100 * HOUR)  # 1/2 + 2 x (1/2 - 1/4) against 1/2 + 2 x (1/2 - 0)
    assert remembered(10, Claim(99, past=250 * HOUR), Claim(99), memory=twice) == [4, 6]


def test_queues_with_equal_past_use_divide_by_weight() -> None:
    """If queues used devices in proportion to their weights, past use does not matter."""
    used = Claim(99, past=200 * HOUR), Claim(99, weight=3, past=600 * HOUR)
    assert remembered(8, *used) == remembered(8, Claim(99), Claim(99, weight=3)) == [2, 6]


def test_a_queue_that_used_everything_gets_what_the_others_leave() -> None:
    """If past use makes a queue's weight 0, the queue gets only what other queues leave."""
    always = Claim(9_000, past=1_000_000 * HOUR)
    assert remembered(10_000, always, Claim(99_000)) == [1, 9_999]
    assert remembered(10_000, always, Claim(3_000)) == [7_000, 3_000]
    assert remembered(9_000, always) == [9_000]


def test_a_queue_that_has_enough_does_not_count() -> None:
    """A queue that has all it asks for does not change how the other queues divide the rest."""
    heavy, light = Claim(99_000, past=600_000 * HOUR), Claim(99_000)
    assert remembered(12_000, heavy, light) == [4_000, 8_000]
    # of 12 units, the third gets its one; 11 are left, with the same weights
    assert remembered(12_000, heavy, light, Claim(1_000)) == [3_667, 7_333, 1_000]


def test_past_use_changes_no_part_that_a_queue_deserves() -> None:
    """A queue gets what it deserves, whatever it used before."""
    claims = Claim(99_000, deserved=8_000, past=1_000_000 * HOUR), Claim(99_000)
    assert divide(Part(10_000), claims, BY_USE) == [Part(8_001, 8_000, 8_000), Part(1_999)]


@given(
    st.integers(0, 10_000),
    st.lists(
        st.builds(
            Claim,
            asked=st.integers(0, 5_000),
            guarantee=st.integers(0, 500),
            deserved=st.integers(0, 3_000),
            limit=st.integers(0, 6_000),
            weight=st.integers(0, 100),
            priority=st.integers(0, 1),
            past=st.integers(0, 10**15),
        ),
        max_size=6,
    ),
    st.integers(1, 10_000),
)
def test_parts_never_exceed_the_whole(total: int, claims: list[Claim], weight: int) -> None:
    """Past use does not change the sum of all parts, which is at most the total. No queue gets more
    than it asks for, or less than it both asks for and deserves."""
    found = divide(Part(total), claims, Memory(weight, 10 * HOUR))
    plain = divide(Part(total), claims)
    assert sum(each.entitled for each in found) == sum(each.entitled for each in plain) <= total
    for part, before, claim in zip(found, plain, claims, strict=True):
        assert (part.owned, part.deserved) == (before.owned, before.deserved)
        assert part.owned <= part.entitled <= max(min(claim.asked, claim.limit), part.owned)
