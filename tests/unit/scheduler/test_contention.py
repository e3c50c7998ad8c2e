"""A scheduler avoids the nodes of others only while they have work, and briefly after."""

from apportion.scheduler.cycle import CALM_DECISIONS, Contention


def looked(spreading: Contention, *others_wait: bool) -> list[bool]:
    """Whether it is apart in each of these decisions."""
    found = []
    for each in others_wait:
        spreading.look(others_wait=each)
        found.append(spreading.apart)
    return found


def test_alone_it_is_never_apart() -> None:
    """A single scheduler is never apart."""
    assert not any(looked(Contention(), *[False] * 100))


def test_it_is_apart_while_pods_wait_for_others() -> None:
    """A scheduler is apart while pods wait for others, from the first decision."""
    assert all(looked(Contention(), *[True] * 3))


def test_it_stays_apart_for_a_few_decisions_more() -> None:
    """A scheduler stays apart for a few more decisions."""
    spreading = Contention()
    looked(spreading, True)
    assert looked(spreading, *[False] * CALM_DECISIONS) == [True] * (CALM_DECISIONS - 1) + [False]


def test_a_refusal_sets_it_apart() -> None:
    """A refused append sets a scheduler apart."""
    spreading = Contention()
    looked(spreading, False)
    spreading.refused()
    assert spreading.apart
    assert looked(spreading, False) == [True]
