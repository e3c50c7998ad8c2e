"""Escape text from outside, so that terminals and readers cannot be misled by it.

Names and reasons come from pods, files and other machines: a line break could forge a line, escape
and C1 codes move the cursor, bidirectional marks reorder text. Invariant: the result is printable,
except for characters in `keep`, and shows which characters there were."""

import json
import re

_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")


def escaped(text: str, *, keep: str = "") -> str:
    r"""Return the text with unprintable characters escaped, as in `\n`, `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def escaped_json(data: bytes) -> bytes:
    r"""Return the same JSON document, with unprintable non-ASCII characters as `\u` escapes.

    JSON itself requires that for the rest, except for DEL."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return _BEYOND_ASCII.sub(_escape, data.decode()).encode()


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"
