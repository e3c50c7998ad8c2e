"""Text from outside as what it is, and nothing that a terminal, or who reads along, would obey.

Names and reasons come from pods, files and other machines. A line break in one begins a line that
nobody wrote, an escape or C1 code moves the cursor, a bidirectional mark turns the rest around.
Invariant: what is returned is printable but for the characters that the caller keeps, and says
which characters there were."""

import json
import re

_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")


def escaped(text: str, *, keep: str = "") -> str:
    r"""The text with each unprintable character as its escape, as in `\n`, `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def escaped_json(data: bytes) -> bytes:
    r"""The same JSON document, with what is unprintable beyond ASCII as `\u` escapes.

    JSON itself asks that of the rest, but for DEL.
    """
    if data.isascii() and b"\x7f" not in data:
        return data
    return _BEYOND_ASCII.sub(_escape, data.decode()).encode()


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"
