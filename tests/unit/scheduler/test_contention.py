"""Tests of when a scheduler tries its own part of the nodes first, to avoid conflicts with other
schedulers."""

from apportion.scheduler.cycle import CALM_DECISIONS, Contention


def looked(spreading: Contention, *others_wait: bool) -> list[bool]:
    """Make one decision per value of `others_wait`, which is True while other schedulers have
    pending pods. Return for each decision whether the scheduler tried its own part of the nodes
    first."""
    found = []
    for each in others_wait:
        spreading.look(others_wait=each)
        found.append(spreading.apart)
    return found


def test_alone_it_is_never_apart() -> None:
    """If no other scheduler has pending pods, the scheduler considers all nodes alike."""
    assert not any(looked(Contention(), *[False] * 100))


def test_it_is_apart_while_pods_wait_for_others() -> None:
    """While other schedulers have pending pods, a scheduler tries its own nodes first, even for its
    first decision."""
    assert all(looked(Contention(), *[True] * 3))


def test_it_stays_apart_for_a_few_decisions_more() -> None:
    """Once other schedulers have no pending pods, a scheduler still tries its own part of the nodes
    first for a few decisions."""
    spreading = Contention()
    looked(spreading, True)
    assert looked(spreading, *[False] * CALM_DECISIONS) == [True] * (CALM_DECISIONS - 1) + [False]


def test_a_refusal_sets_it_apart() -> None:
    """After the ledger has refused an append, a scheduler tries its own nodes first."""
    spreading = Contention()
    looked(spreading, False)
    spreading.refused()
    assert spreading.apart
    assert looked(spreading, False) == [True]
