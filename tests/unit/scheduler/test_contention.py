"""A scheduler tries its own nodes first while pods are pending for others, and briefly after."""

from apportion.scheduler.cycle import CALM_DECISIONS, Contention


def looked(spreading: Contention, *others_wait: bool) -> list[bool]:
    """Whether the scheduler tries its own nodes first in each of these decisions."""
    found = []
    for each in others_wait:
        spreading.look(others_wait=each)
        found.append(spreading.apart)
    return found


def test_alone_it_is_never_apart() -> None:
    """A single scheduler considers all nodes in every decision."""
    assert not any(looked(Contention(), *[False] * 100))


def test_it_is_apart_while_pods_wait_for_others() -> None:
    """A scheduler tries its own nodes first while pods are pending for others, from the first
    decision."""
    assert all(looked(Contention(), *[True] * 3))


def test_it_stays_apart_for_a_few_decisions_more() -> None:
    """A scheduler keeps trying its own nodes first for a few more decisions."""
    spreading = Contention()
    looked(spreading, True)
    assert looked(spreading, *[False] * CALM_DECISIONS) == [True] * (CALM_DECISIONS - 1) + [False]


def test_a_refusal_sets_it_apart() -> None:
    """After a refused append a scheduler tries its own nodes first."""
    spreading = Contention()
    looked(spreading, False)
    spreading.refused()
    assert spreading.apart
    assert looked(spreading, False) == [True]
