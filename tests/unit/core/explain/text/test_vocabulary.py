"""Tests of the tables of words for outcomes, events and phases: every value has one word."""

from typing import get_args

from apportion.core.answers.plans import Outcome
from apportion.core.explain.text.vocabulary import OUTCOMES, PHASES, STORY
from apportion.core.ledger.state import Phase
from apportion_schemas import CATALOGUE


def test_all_outcomes_have_a_word() -> None:
    """Every possible outcome for a pod in a plan has a word."""
    assert OUTCOMES.keys() == set(get_args(Outcome))


def test_headings_are_of_events_that_are_there() -> None:
    """Every event type about a pod has a heading, and every heading belongs to an event type."""
    types = {each.payload.__name__ for each in CATALOGUE}
    assert STORY.keys() <= types
    of_pods = {name for name in types if name.startswith("Pod") and "Group" not in name}
    assert of_pods <= STORY.keys()


def test_phases_without_a_place_are_one_word() -> None:
    """All phases of a pod without a placement are shown as "pending"."""
    assert set(PHASES.values()) == {"pending"}
    assert "pending" in PHASES
    assert not {each.value for each in Phase if each is not Phase.PENDING} & PHASES.keys()


def test_an_eviction_is_headed_as_it_is_told() -> None:
    """`history` shows an eviction under the heading "Evicted", the word that `why` uses too."""
    assert STORY["PodEvicted"] == "Evicted"
