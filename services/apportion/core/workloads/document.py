"""Read one parsed document into typed structs, with errors that name the field.

Invariant: any value gives a result or a one-line `ManifestError`. Values that are too deep, too
long or too large for an event are refused, as are names that Kubernetes refuses (RFC 1123)."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Final, TypeVar

import msgspec

from apportion_schemas.quantities import NAME_MAX

VALUE_CHARS_MAX = 80
FIELD_CHARS_MAX = 400
_WORD = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_GO_UNITS: Final[Mapping[str, Fraction | int]] = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 1000),
    "s": 1, "m": 60, "h": 3600,
}  # fmt: skip
_GO_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|ms|s|m|h)", re.ASCII)
_GO_DURATION: Final = re.compile(rf"0|(?:{_GO_PART.pattern})+", re.ASCII)
_GO_CHARS_MAX: Final = 64
_GO_S_MAX: Final = (1 << 63) // 10**9


class ManifestError(ValueError):
    """Raised for an unusable manifest: names the field, its value, the problem and the fix.

    `field` is a path from the root of the document, as in
    `spec.containers[0].resources.limits["nvidia.com/gpumem"]`."""

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
        if self.value is None or isinstance(self.value, dict | list | tuple):
            return f"{field} {self.problem}; {self.fix}"
        return f"{field}: {shown(self.value)} {self.problem}; {self.fix}"


@contextmanager
def errors_below(prefix: str) -> Iterator[None]:
    """Put `prefix` before the field of each ManifestError, for a document inside another."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(prefix + error.field, error.value, error.problem, error.fix) from None


def within(field: str, key: str) -> str:
    """Return the path of an entry in a map: `field["key"]`."""
    return f'{field}["{ascii(key[:VALUE_CHARS_MAX])[1:-1]}"]'


def go_seconds(value: object, field: str) -> int:
    """Return the seconds of a duration as Go writes it, such as `1h30m`, rounded up.

    Raises ManifestError for another value, or for more than Go's `time.Duration` holds."""
    seconds = Fraction(_GO_S_MAX + 1)
    if isinstance(value, str) and len(value) <= _GO_CHARS_MAX and _GO_DURATION.fullmatch(value):
        parts = _GO_PART.findall(value)
        seconds = sum((Fraction(part) * _GO_UNITS[unit] for part, unit in parts), Fraction())
    if seconds > _GO_S_MAX:
        raise ManifestError(field, value, "is not a duration", 'write a duration such as "10m"')
    return math.ceil(seconds)


def below(field: str, key: str) -> str:
    """Return the path of a subfield: `field.key`, or `field["key"]` if the key is no plain word."""
    if not _WORD.fullmatch(key):
        return within(field, key)
    return f"{field}.{key}" if field else key


def below_path(at: str, field: str) -> str:
    """Return the path of a field below the path `at`, which may be empty."""
    return f"{at}.{field}" if at else field


def shown(value: object) -> str:
    """Format a value for an error message: shortened, and on one line."""
    match value:
        case None:
            return "it"
        case str():
            cut = value[:VALUE_CHARS_MAX]
            return json.dumps(cut) + ("…" if len(value) > len(cut) else "")
        case bool() | float():
            return str(value).lower()
        case int():
            return str(value) if value.bit_length() <= 256 else "a very large number"  # noqa: PLR2004
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
    return f"a value of type {type(value).__name__}"


DEPTH_MAX = 100
LIST_ITEMS_MAX = 10_000
ROOT = "document"  # the path of the document as a whole
INTEGER_BITS_MAX = 1024
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]")
_WORDS = {
    "str": ("text", "put it in quotes"),
    "int": ("a whole number", "write a whole number without quotes"),
    "float": ("a number", "write a number without quotes"),
    "bool": ("true or false", "write true or false without quotes"),
    "object": ("an object", "write an object with fields"),
    "array": ("a list", "write a list"),
}

_SIGNS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

T = TypeVar("T")


def cleaned(value: object, field: str = "", depth: int = 0) -> Any:
    """Copy the value without null fields, which Kubernetes treats as absent.

    Raises ManifestError if it is nested too deep, or is not valid JSON."""
    if depth > DEPTH_MAX:
        raise ManifestError(field, value, "is nested too deeply", f"use at most {DEPTH_MAX} levels")
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
        fix = "write a smaller one"
        raise ManifestError(field or ROOT, value, "is out of range", fix)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ManifestError(field or ROOT, value, "is not a JSON value", "write text in quotes")


def typed(document: dict[str, Any], kind: type[T]) -> T:
    """Convert the document to a struct of type `kind`; ignore fields that the type lacks.

    Raises ManifestError if a field is missing or of the wrong type or size."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise refusal(document, str(error)) from None


def refusal(document: dict[str, Any], message: str, root: str = "") -> ManifestError:
    """Return a ManifestError for an error message of msgspec.

    An example of such a message is ``Expected `int` - at `$.a[0]` ``."""
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
        noun, fix = _WORDS[wrong_type[1]]
        return ManifestError(field or ROOT, value, f"is not {noun}", fix)
    if beyond := re.match(r"Expected `\w+`( of length)? ([<>]=?) (\S+)", problem):
        length, sign, bound = beyond.groups()
        wrong = f"is too {'short' if '>' in sign else 'long'}" if length else "is out of range"
        fix = f"use {'a length of ' if length else ''}{_SIGNS[sign]} {bound}"
        return ManifestError(field or ROOT, value, wrong, fix)
    return ManifestError(field or ROOT, value, f"is not valid ({problem})", "correct it")


def part(whole: object, *keys: str) -> dict[Any, Any]:
    """Return the object at this path of keys, or an empty object if there is none."""
    for key in keys:
        whole = whole.get(key) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else {}


def section(
    whole: Mapping[str, Any], key: str, field: str, *, fix: str = "write fields below it"
) -> dict[str, Any]:
    """Return the object under a key; empty without one. Raises ManifestError for another value."""
    found = whole.get(key) or {}
    if not isinstance(found, dict):
        raise ManifestError(field, found, "is not an object", fix)
    return found


def entries(whole: object, key: str) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield index and value of the objects in the list under a key; skip other values."""
    listed = whole.get(key) if isinstance(whole, dict) else None
    for place, each in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(each, dict):
            yield place, each


def texts(mapping: dict[str, Any], field: str) -> dict[str, str]:
    """Return the map if all its values are text, as labels and annotations must be.

    Raises ManifestError with the key of a value that is not text, such as an unquoted number."""
    for key, value in mapping.items():
        if not isinstance(value, str):
            raise ManifestError(within(field, key), value, "is not text", "put it in quotes")
    return mapping


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise ManifestError(field or ROOT, value, "is a key but not text", "put it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        problem = "is not valid Unicode (it has half of a surrogate pair)"
        raise ManifestError(field or ROOT, value, problem, "type it again") from None
    return value


def items_of(document: object) -> tuple[list[tuple[str, object]], ManifestError | None]:
    """Return the items of a List with their paths; for any other document, the document itself.

    The second result is the error of an invalid List."""
    if not isinstance(document, dict) or document.get("kind") != "List":
        return [("", document)], None
    items: Any = document.get("items") or []
    if not isinstance(items, list):
        return [], ManifestError("items", items, "is not a list", "write a list of documents")
    if len(items) > LIST_ITEMS_MAX:
        problem, fix = f"has {len(items):,} objects", f"use at most {LIST_ITEMS_MAX:,} objects"
        return [], ManifestError("items", None, problem, fix)
    return [(f"items[{i}].", item) for i, item in enumerate(items)], None


LABEL_MAX = 63
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def dns_label(value: str, field: str) -> str:
    """Return the value if it is a DNS label: a container, namespace, task or queue name.

    Raises ManifestError if it is empty, too long, or has other characters."""
    if len(value) > LABEL_MAX or not _LABEL.fullmatch(value):
        fix = f"use up to {LABEL_MAX} of a-z, 0-9 and '-', without '-' at either end"
        raise ManifestError(field, value, "is not a DNS label", fix)
    return value


def dns_subdomain(value: str, field: str) -> str:
    """Return the value if it is DNS labels joined by dots: a pod or job name.

    Raises ManifestError if it is missing, too long, or has other characters."""
    if not value:
        raise ManifestError(field, None, "is missing", "add it")
    if len(value) > NAME_MAX or not all(map(_LABEL.fullmatch, value.split("."))):
        fix = f"use up to {NAME_MAX} of a-z, 0-9, '-' and '.', without '-' or '.' at either end"
        raise ManifestError(field, value, "is not a DNS name", fix)
    return value


def qualified_name(value: str, field: str) -> str:
    """Return the value if it is a qualified name, such as `example.com/quota`.

    Raises ManifestError if it is not."""
    prefix, slash, name = value.rpartition("/")
    if slash:
        dns_subdomain(prefix, field)
    if len(name) > LABEL_MAX or not _QUALIFIED.fullmatch(name):
        fix = "write a name such as example.com/quota"
        raise ManifestError(field, value, "is not a qualified name", fix)
    return value


def joined_name(*parts: object, field: str, by: str = "-") -> str:
    """Return the parts joined by `by` as one name. Raises ManifestError if it is too long."""
    name = by.join(map(str, parts))
    if len(name) > NAME_MAX:
        fix = f"shorten it to {NAME_MAX} characters"
        raise ManifestError(field, name, f"is too long ({len(name)} characters)", fix)
    return name
