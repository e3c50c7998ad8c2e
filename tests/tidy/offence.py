"""What a tidy rule reports: a place and a sentence that names the fix.

Rules are functions from text to offences, so that each can be tested on a planted offence."""

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Offence:
    """One place that breaks a rule. `line` counts from 1; 0 is the whole file."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"
