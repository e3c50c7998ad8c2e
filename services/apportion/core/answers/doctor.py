"""The answer of the doctor: one row for each check, as gateway and command line tell it."""

from typing import Literal

from apportion.core.answers.reads import Answer, Part

CheckState = Literal["ok", "soon", "unknown", "broken"]
"""`soon`: nothing fails today, and it should not stay so. `unknown`: another check is broken, and
hides it.
"""


class CheckAnswer(Answer, frozen=True):
    """One check: its state, what was found, what to do unless it is ok, and where to read on.

    `parts` are those of `words`: a node in it is one of its own."""

    id: str
    state: CheckState
    words: str
    fix: str = ""
    link: str = ""
    parts: tuple[str | Part, ...] = ()


class DoctorAnswer(Answer, frozen=True):
    """All checks of which the facts are known, in the order of their table."""

    revision: int
    checks: tuple[CheckAnswer, ...] = ()
