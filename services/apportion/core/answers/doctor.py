"""The doctor's results in the API: one row per check."""

from typing import Literal

from apportion.core.answers.reads import Answer, Part

# `warning`: works, but needs attention. `unknown`: hidden by another check that is broken
CheckState = Literal["ok", "warning", "unknown", "broken"]


class CheckAnswer(Answer, frozen=True):
    """The result of one check: its state, the finding and, unless the state is ok, a fix."""

    id: str
    state: CheckState
    words: str
    fix: str = ""
    link: str = ""
    parts: tuple[str | Part, ...] = ()  # of `words`, with names marked


class DoctorAnswer(Answer, frozen=True):
    """The results of all checks of the doctor that could run."""

    revision: int
    checks: tuple[CheckAnswer, ...] = ()
