"""Words by names: every name that is answered has one, and no word is for a name that is not."""

from typing import get_args

from apportion.core.answers.plans import Outcome
from apportion.core.explain.text.vocabulary import OUTCOMES, PHASES, STORY
from apportion.core.ledger.state import Phase
from apportion_schemas import CATALOGUE


def test_all_outcomes_have_a_word() -> None:
    """Of a plan's pods."""
    assert OUTCOMES.keys() == set(get_args(Outcome))


def test_headings_are_of_events_that_are_there() -> None:
    """And every event about a pod has one, wherever it is in a story."""
    types = {each.payload.__name__ for each in CATALOGUE}
    assert STORY.keys() <= types
    of_pods = {name for name in types if name.startswith("Pod") and "Group" not in name}
    assert of_pods <= STORY.keys()


def test_phases_without_a_place_are_one_word() -> None:
    """Whether somebody has looked or not; all others are their own."""
    assert set(PHASES.values()) == {"pending"}
    assert "pending" in PHASES
    assert not {each.value for each in Phase if each is not Phase.PENDING} & PHASES.keys()


def test_an_eviction_is_headed_as_it_is_told() -> None:
    """By the word of `history` and `why`."""
    assert STORY["PodEvicted"] == "Evicted"
