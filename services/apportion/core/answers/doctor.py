"""The doctor's answer: one row per check."""

from typing import Literal

from apportion.core.answers.reads import Answer, Part

# `soon`: works, but needs attention. `unknown`: hidden by another check that is broken
CheckState = Literal["ok", "soon", "unknown", "broken"]


class CheckAnswer(Answer, frozen=True):
    """One check: its state, the finding, the fix unless it is ok, and a link.

    `parts` are the parts of `words`, with node names marked."""

    id: str
    state: CheckState
    words: str
    fix: str = ""
    link: str = ""
    parts: tuple[str | Part, ...] = ()


class DoctorAnswer(Answer, frozen=True):
    """The checks whose facts are known, in the order of the checks' table."""

    revision: int
    checks: tuple[CheckAnswer, ...] = ()
