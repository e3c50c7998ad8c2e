"""Tests of the suggestions for an unknown name."""

from apportion.core.explain.text.suggestions import did_you_mean
from apportion.core.names import near


def test_of_names_that_look_the_same_all_are_offered_the_likest_first() -> None:
    """All look-alike names are suggested, the closest first. Case and look-alike digits are
    ignored."""
    assert did_you_mean("gpu-l", ["GPU-1", "gpu-1"]) == "did you mean gpu-1, GPU-1?"
    assert near("pool-1", ["pool-l", "pool-1", "other"])[0] == "pool-1"
    assert near("pool-l", ["pool-l", "pool-1", "other"])[0] == "pool-l"
