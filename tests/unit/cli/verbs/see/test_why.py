"""What `why` and `delete` offer in place of a pod that is not there."""

from io import StringIO

import pytest
from rich.console import Console

from apportion.cli.client.lookup import pods_meant
from apportion.cli.verbs.see.why import show_why
from apportion.core.explain.answers import PodAnswer
from apportion.core.explain.why import why
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod


def answer(name: str, owner: str = "", group: str = "") -> PodAnswer:
    """What the gateway says of a pod of the namespace serving."""
    return PodAnswer(
        namespace="serving", name=name, uid=name, phase="placed", owner=owner, group=group
    )


def test_a_table_of_scores_says_how_many_it_leaves_out() -> None:
    """A few rows of nine nodes that fit are no whole answer; two rows of two are."""
    ledger = Ledger(*(rack(f"n{at}", 1) for at in range(9))).submit(pod("a", ask(1_000))).settle()
    few = Ledger(rack("n1", 1), rack("n2", 1)).submit(pod("a", ask(1_000))).settle()
    for each, said in ((ledger, True), (few, False)):
        out = Console(width=120, file=StringIO())
        show_why(out, why(each.state, each.pod("a")))
        assert isinstance(out.file, StringIO)
        text = out.file.getvalue()
        assert ("and 6 more nodes that fit" in text) == said
        assert "it went by bestfit" in text


PODS = (
    answer("web-0", "Deployment/web"),
    answer("web-1", "Deployment/web"),
    answer("gang-worker-0", "Job/train", "serving/gang"),
    answer("both", "Deployment/both"),
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("web", "; it is a Deployment, and its pods are serving/web-0, serving/web-1"),
        ("gang", "; it is a gang, and its pods are serving/gang-worker-0"),
        ("train", "; it is a Job, and its pods are serving/gang-worker-0"),
        ("both", "; did you mean serving/both?"),
        ("web-2", "; did you mean serving/web-1, serving/web-0?"),
        ("nothing-like-it", ""),
    ],
)
def test_the_name_of_what_made_pods_is_told_with_its_pods(name: str, said: str) -> None:
    """A pod of the name comes before what made it; a like name is offered where there is none."""
    assert pods_meant(name, PODS) == said
