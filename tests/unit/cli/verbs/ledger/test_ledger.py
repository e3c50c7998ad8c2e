"""Tests of what `apportion ledger check` prints about an intact ledger."""

import pytest

from apportion.cli.verbs.ledger.ledger import Checked, words_of
from apportion.core.doctor.checks import size


@pytest.mark.parametrize(("most", "words"), [(-1, "no size limit"), (1 << 30, "at most 1.0 GiB")])
def test_what_the_ledger_takes_is_in_the_unit_of_the_doctor(most: int, words: str) -> None:
    """`ledger check` prints the ledger's size in the same unit as `doctor`."""
    said = words_of(Checked(ok=True, last_revision=700, bytes=221_500, max_bytes=most, replicas=1))
    assert f"{size(221_500)} ({words}), 1 replica" in said
    assert size(221_500) == "216.3 KiB"
