"""Tests that features that no pod uses take no part in decisions.

`python -m tests.benchmarks.unused` measures what is left of them."""

import json
import subprocess
import sys
from collections import Counter
from importlib import import_module
from itertools import chain

import pytest

from tests.benchmarks.unused import CORE, FEATURES, calls_in, feature_of, main

DECISIONS = 100
EVENTS = 3  # of a decision: a pod is submitted, is placed, and ends
IN_USE = {
    "placement.affinity.neighbours:has_wishes": 2,
    "placement.affinity.neighbours:Neighbours.note": 1,
    "placement.affinity.neighbours:Neighbours.count": 1,
    "placement.affinity.neighbours:Neighbours.concern": 1,
    "placement.queueing.keys:limits_key": 2,
    "placement.preemption.preempting:Preempting.knows": 1,
}
"""The functions that look whether a feature is in use, and how often a decision calls them. All
others of the features are called only for pods that use them."""


@pytest.fixture(scope="module")
def calls() -> Counter[str]:
    """Provide how often plain decisions call each function of `apportion.core`."""
    command = (sys.executable, "-m", "tests.support.calls", str(DECISIONS))
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return Counter({name.removeprefix(CORE): number for name, number in found.items()})


@pytest.mark.parametrize("feature", FEATURES)
def test_a_decision_calls_no_function_of_an_unused_feature(
    feature: str, calls: Counter[str]
) -> None:
    """A decision calls a feature only to look whether a pod uses it."""
    found = {name: number for name, number in calls.items() if feature_of(name) == feature}
    most = {name: DECISIONS * IN_USE.get(name, 0) for name in found}
    assert found == {name: min(number, most[name]) for name, number in found.items()}


def test_the_count_sees_all_calls_of_a_decision(calls: Counter[str]) -> None:
    """The count includes the functions that are compiled, and the pods are all placed."""
    assert calls["placement.engine:Engine.decide"] == DECISIONS
    assert calls["placement.engine:Engine.observe"] == DECISIONS * EVENTS
    assert calls["ledger.fold:_pod_placed"] == DECISIONS
    assert not IN_USE.keys() - calls.keys()


def test_the_modules_of_all_features_exist() -> None:
    """Each feature is listed with the names that its modules, classes and functions have."""
    for place in chain.from_iterable(FEATURES.values()):
        module, _, name = place.partition(":")
        assert hasattr(import_module(CORE + module), name or "__name__"), place


def test_the_instructions_of_each_call_are_read_from_callgrind() -> None:
    """The benchmark reads callers, callees and instructions, with names that are written once."""
    lines = (
        "fn=(1) decide", "12 900", "cfn=(2) find", "calls=3 7", "13 500", "",
        "fn=(2)", "7 400", "cfi=(9) /other.c", "cfn=(3) look", "calls=1 0", "* 100",
    )  # fmt: skip
    assert list(calls_in(lines)) == [("decide", "find", 500), ("find", "look", 100)]


def test_the_benchmark_names_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without valgrind, the benchmark ends with an error that says how to install it."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["unused"])
    with pytest.raises(SystemExit):
        main()
    assert "apt install valgrind" in capsys.readouterr().err
