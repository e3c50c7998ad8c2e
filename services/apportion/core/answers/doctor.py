"""The doctor's answer: one row per check."""

from typing import Literal

from apportion.core.answers.reads import Answer, Part

# `soon`: works, but needs attention. `unknown`: hidden by another check that is broken
CheckState = Literal["ok", "soon", "unknown", "broken"]


class CheckAnswer(Answer, frozen=True):
    """One check: its state, its finding, a fix unless the state is ok, and a link.

    `parts` are the parts of `words`, with node names marked."""

    id: str
    state: CheckState
    words: str
    fix: str = ""
    link: str = ""
    parts: tuple[str | Part, ...] = ()


class DoctorAnswer(Answer, frozen=True):
    """The checks whose facts could be gathered, in the order of the table of checks."""

    revision: int
    checks: tuple[CheckAnswer, ...] = ()
