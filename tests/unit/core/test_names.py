"""Tests of the natural order of names, and of pages in that order."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.names import natural
from apportion.gateway.api.pages import nodes
from apportion.gateway.api.query import PageQuery
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger


def test_numbers_count() -> None:
    """Numbers inside names are compared by value, so `n2` comes before `n10`."""
    names = ["n10", "n2", "a", "n2-b10", "n2-b9", "10", "9", "n"]
    ordered = ["9", "10", "a", "n", "n2", "n2-b9", "n2-b10", "n10"]
    assert sorted(names, key=natural) == ordered


@given(st.lists(st.text("a01-.²٣", max_size=6), unique=True))
def test_it_is_a_total_order(names: list[str]) -> None:
    """Different names never count as equal in the natural order, not even `a1` and `a01`."""
    assert len({natural(name) for name in names}) == len(names)
    backwards = names[::-1]
    assert sorted(backwards, key=natural) == sorted(names, key=natural)


def test_pages_are_cut_in_that_order() -> None:
    """Pages follow the natural order: node-10 appears exactly once, after node-2."""
    ledger = Ledger(*(rack(f"node-{number}", 1) for number in (1, 10, 11, 2, 3)))
    behind, found = "", []
    while True:
        page = nodes(ledger.state, PageQuery(limit=2, after=behind))
        found += [node.node for node in page.items]
        behind = page.next
        if not behind:
            break
    assert found == ["node-1", "node-2", "node-3", "node-10", "node-11"]
