"""What is offered for a name that nothing has."""

from apportion.core.explain.text.suggestions import did_you_mean
from apportion.core.similarity import near


def test_of_names_that_look_the_same_all_are_offered_the_likest_first() -> None:
    """Letters that look like digits are taken for these, and case for none."""
    assert did_you_mean("gpu-l", ["GPU-1", "gpu-1"]) == "did you mean gpu-1, GPU-1?"
    assert near("pool-1", ["pool-l", "pool-1", "other"])[0] == "pool-1"
    assert near("pool-l", ["pool-l", "pool-1", "other"])[0] == "pool-l"
