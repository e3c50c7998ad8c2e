"""Tests of what `why` prints about a placed pod."""

from io import StringIO

from apportion.cli.render.output import Screen
from apportion.cli.verbs.see.why import show_why
from apportion.core.explain.why import why
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def test_a_table_of_scores_says_how_many_it_leaves_out() -> None:
    """If the score table of `why` omits nodes, it states how many."""
    ledger = Ledger(*(rack(f"n{at}", 1) for at in range(9))).submit(pod("a", ask(1_000))).settle()
    few = Ledger(rack("n1", 1), rack("n2", 1)).submit(pod("a", ask(1_000))).settle()
    for each, said in ((ledger, True), (few, False)):
        out = Screen(width=120, file=StringIO())
        show_why(out, why(each.state, each.pod("a")))
        assert isinstance(out.file, StringIO)
        text = out.file.getvalue()
        assert ("6 more nodes" in text) == said
        assert "bestfit" in text
