"""What a tidy rule says: a place and a sentence that names the fix.

Rules are functions from text to offences, so that each can be shown to fail on a planted one."""

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Offence:
    """One place where the repository breaks its own rule; `line` counts from 1, 0 is the file."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"
