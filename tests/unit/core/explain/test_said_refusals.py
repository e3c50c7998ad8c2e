"""Tests that refusals use the units of the request: whole devices, or the resource's name."""

import pytest

from apportion.core.explain.why import why
from apportion_schemas import NodeConstraints
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, pod, shape


def sentence(*events: Payload, wants: Payload) -> str:
    """Fold these events, submit pod `p` as `wants`, and return the sentence that explains its
    refusal."""
    ledger = Ledger(*events).settle()
    ledger.submit(wants).settle()
    return why(ledger.state, ledger.pod("p")).sentence


@pytest.mark.parametrize(("count", "words"), [(1, "1 empty GPU"), (4, "4 empty GPUs on")])
def test_whole_cards_are_counted_as_such(count: int, words: str) -> None:
    """The refusal of a request for whole devices counts whole devices, not slots."""
    held = [pod(f"s{number}", ask(1_000, cores=60)) for number in range(4)]
    said = sentence(rack("n1", 4), *held, wants=pod("p", cards(count)))
    assert words in said
    assert "slot" not in said


def test_the_resource_is_named() -> None:
    """A refusal names the missing extended resource, in the sentence and in the table of causes."""
    nic = NodeConstraints(extended={"example.com/nic": 2})
    ledger = Ledger(observed("n1", extended={"example.com/nic": 1}), rack("n1", 1))
    ledger.submit(pod("p", shape=shape(ask(1), node=nic))).settle()
    told = why(ledger.state, ledger.pod("p"))
    assert told.refused is not None
    [cause] = told.refused.causes
    assert "example.com/nic" in cause.words
    assert cause.words in told.sentence
