"""What is wrong with a manifest, said so that its author can mend it without reading our code.

Invariant: the message is one line of bounded length, whatever the value was.
"""

import re

VALUE_CHARS_MAX = 80
FIELD_CHARS_MAX = 400
_WORD = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class ManifestError(ValueError):
    """A manifest that cannot be used: which field, which value, what is wrong, how to mend it.

    `field` is a path from the root of the document, as in
    `spec.containers[0].resources.limits["nvidia.com/gpumem"]`.
    """

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        super().__init__(field, value, problem, fix)
        self.field = field
        self.value = value
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        field = self.field
        if len(field) > FIELD_CHARS_MAX:
            field = "…" + field[-FIELD_CHARS_MAX:]
        return f"{field}: {shown(self.value)} {self.problem}: {self.fix}"


def within(field: str, key: str) -> str:
    """The path of an entry under a key that may be anything."""
    return f'{field}["{ascii(key[:VALUE_CHARS_MAX])[1:-1]}"]'


def below(field: str, key: str) -> str:
    """The path of a field: `.key`, or as `within` where the key is not a plain word."""
    if not _WORD.fullmatch(key):
        return within(field, key)
    return f"{field}.{key}" if field else key


def shown(value: object) -> str:
    """A value as a reader may see it: short, on one line, and never expensive to make."""
    match value:
        case None:
            return "it"
        case str():
            cut = value[:VALUE_CHARS_MAX]
            return ascii(cut) + ("…" if len(value) > len(cut) else "")
        case bool() | float():
            return str(value).lower()
        case int():
            return str(value) if value.bit_length() <= 256 else "a very large number"  # noqa: PLR2004
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
    return f"a {type(value).__name__}"
