"""A scheduler keeps apart while others have work, and not a decision longer than it must."""

from apportion.scheduler.cycle import CALM_DECISIONS, Contention


def looked(spreading: Contention, *others_wait: bool) -> list[bool]:
    """Whether it is apart in each of these decisions."""
    found = []
    for each in others_wait:
        spreading.look(others_wait=each)
        found.append(spreading.apart)
    return found


def test_alone_it_is_never_apart() -> None:
    """It packs as well as it can from the first decision on."""
    assert not any(looked(Contention(), *[False] * 100))


def test_it_is_apart_while_pods_wait_for_others() -> None:
    """From the first decision on: it need not be refused to learn of them."""
    assert all(looked(Contention(), *[True] * 3))


def test_it_stays_apart_for_a_few_decisions_more() -> None:
    """Between two looks others may have had work."""
    spreading = Contention()
    looked(spreading, True)
    assert looked(spreading, *[False] * CALM_DECISIONS) == [True] * (CALM_DECISIONS - 1) + [False]


def test_a_refusal_sets_it_apart() -> None:
    """Somebody placed whom it did not know of."""
    spreading = Contention()
    looked(spreading, False)
    spreading.refused()
    assert spreading.apart
    assert looked(spreading, False) == [True]
