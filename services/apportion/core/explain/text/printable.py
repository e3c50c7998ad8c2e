"""Escape untrusted text, so that it cannot mislead terminals and readers.

Invariant: the result is printable, except for characters in `keep`."""

import json
import re

_BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")


def escaped(text: str, *, keep: str = "") -> str:
    r"""Return the text with unprintable characters escaped, as in `\n` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def escaped_json(data: bytes) -> bytes:
    """Return the JSON document with DEL and unprintable non-ASCII characters escaped."""
    if data.isascii() and b"\x7f" not in data:
        return data
    text = _BEYOND_ASCII.sub(
        lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1],
        data.decode(),
    )
    return text.replace("\x7f", "\\u007f").encode()
