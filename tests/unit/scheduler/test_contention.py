"""Tests of when a scheduler tries its own nodes first: while other schedulers have pending pods,
and for a few decisions after."""

from apportion.scheduler.cycle import CALM_DECISIONS, Contention


def looked(spreading: Contention, *others_wait: bool) -> list[bool]:
    """Return, for each decision, whether the scheduler tries its own nodes first."""
    found = []
    for each in others_wait:
        spreading.look(others_wait=each)
        found.append(spreading.apart)
    return found


def test_alone_it_is_never_apart() -> None:
    """A single scheduler considers all nodes in every decision."""
    assert not any(looked(Contention(), *[False] * 100))


def test_it_is_apart_while_pods_wait_for_others() -> None:
    """From its first decision, a scheduler tries its own nodes first while other schedulers have
    pending pods."""
    assert all(looked(Contention(), *[True] * 3))


def test_it_stays_apart_for_a_few_decisions_more() -> None:
    """A scheduler tries its own nodes first for a few more decisions after the last pending pod of
    another scheduler."""
    spreading = Contention()
    looked(spreading, True)
    assert looked(spreading, *[False] * CALM_DECISIONS) == [True] * (CALM_DECISIONS - 1) + [False]


def test_a_refusal_sets_it_apart() -> None:
    """A scheduler tries its own nodes first after a refused append."""
    spreading = Contention()
    looked(spreading, False)
    spreading.refused()
    assert spreading.apart
    assert looked(spreading, False) == [True]
