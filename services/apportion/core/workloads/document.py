"""One parsed document, made safe to read: typed where we look, with errors that name the field.

A document comes from outside as plain Python values. Invariant: whatever it is, reading it ends in
a result or in a `ManifestError`; depth, numbers and text that no event could carry are refused
here, once.
"""

import re
from typing import Any, TypeVar

import msgspec

from apportion.core.workloads.dialects.errors import ManifestError, below, within

DEPTH_MAX = 100
LIST_ITEMS_MAX = 10_000
ROOT = "document"
"""What stands for a path where the document as a whole is meant."""
INTEGER_BITS_MAX = 1024
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]")
_WORDS = {
    "str": "text in quotes",
    "int": "a whole number without quotes",
    "bool": "true or false without quotes",
    "object": "an object with fields below it",
    "array": "a list",
}

T = TypeVar("T")


def cleaned(value: object, field: str = "", depth: int = 0) -> Any:
    """A copy without null fields, which mean to Kubernetes that the field is absent.

    Raises:
        ManifestError: nested too deep, a key that is no text, or a value that JSON has not.
    """
    if depth > DEPTH_MAX:
        raise ManifestError(field, value, "is nested too deep", f"nest at most {DEPTH_MAX} levels")
    if isinstance(value, dict):
        return {
            _text(key, field): cleaned(entry, below(field, str(key)), depth + 1)
            for key, entry in value.items()
            if entry is not None
        }
    if isinstance(value, list):
        return [cleaned(entry, f"{field}[{i}]", depth + 1) for i, entry in enumerate(value)]
    if isinstance(value, str):
        return _text(value, field)
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise ManifestError(
            field or ROOT, value, "is no number that we can hold", "write a smaller one"
        )
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ManifestError(field or ROOT, value, "is not a JSON value", "write text, in quotes")


def typed(document: dict[str, Any], kind: type[T]) -> T:
    """The document as a struct of the fields that we read.

    Raises:
        ManifestError: a field is missing or of the wrong type or size.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise refusal(document, str(error)) from None


def refusal(document: dict[str, Any], message: str, root: str = "") -> ManifestError:
    """A validation error of msgspec, as in ``Expected `int`, got `str` - at `$.a[0]` ``."""
    problem, _, path = message.partition(" - at `$")
    field = root
    value: Any = document
    for step in _STEP.finditer(path):
        name, index = step.groups()
        field += f"[{index}]" if index else f".{name}" if field else name
        try:
            value = value[int(index) if index else name]
        except (LookupError, TypeError):
            value = {}
    if missing := re.search(r"missing required field `(.+)`", problem):
        return ManifestError(f"{field}.{missing[1]}".strip("."), None, "is missing", "add it")
    wrong_type = re.match(r"Expected `(\w+)(?: \| null)?`, got", problem)
    if wrong_type and wrong_type[1] in _WORDS:
        word = _WORDS[wrong_type[1]]
        return ManifestError(field or ROOT, value, f"is not {word}", f"write {word}")
    return ManifestError(field or ROOT, value, f"is out of bounds ({problem})", "stay within them")


def texts(mapping: dict[str, Any], field: str) -> dict[str, str]:
    """Labels or annotations: text to text.

    Raises:
        ManifestError: names the key whose value is a number or a flag for want of quotes.
    """
    for key, value in mapping.items():
        if not isinstance(value, str):
            raise ManifestError(within(field, key), value, "is not text", "write it in quotes")
    return mapping


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise ManifestError(field or ROOT, value, "is a key that is not text", "quote it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ManifestError(
            field or ROOT, value, "is not Unicode text: it has half of a character", "write it anew"
        ) from None
    return value


def items_of(document: object) -> tuple[list[tuple[str, object]], ManifestError | None]:
    """The documents in a document, each with the path to it, and what is wrong with a List."""
    if not isinstance(document, dict) or document.get("kind") != "List":
        return [("", document)], None
    items: Any = document.get("items") or []
    if not isinstance(items, list):
        return [], ManifestError("items", items, "is no list", "write a list of documents")
    if len(items) > LIST_ITEMS_MAX:
        return [], ManifestError("items", items, "is too long", f"at most {LIST_ITEMS_MAX}")
    return [(f"items[{i}].", item) for i, item in enumerate(items)], None
