"""Define what a tidy rule reports: a location, and a sentence that names the fix.

Each rule is a function from text to offences, so that a test can apply the rule to text that breaks
it.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Offence:
    """One location that breaks a rule. `line` counts from 1; 0 means the whole file."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"
