"""A pod's annotations, read one at a time: the values that several dialects write alike.

Invariant: what is under a key is understood whole, or refused with the key, the value and the fix.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from apportion.core.workloads.dialects.errors import ManifestError, within
from apportion_schemas import DeviceConstraints
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX

LIST_MAX = 256
INDEX_DIGITS_MAX = 3
TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go's `strconv.ParseBool` takes."""
FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
T = TypeVar("T")


class Notes(NamedTuple):
    """The pod's annotations and the path of that field, for errors."""

    values: Mapping[str, str]
    field: str

    def refusal(self, key: str, problem: str, fix: str) -> ManifestError:
        """Why the annotation under this key cannot be used."""
        return ManifestError(within(self.field, key), self.values[key], problem, fix)


class Selecting(NamedTuple):
    """The annotations by which pods choose among the devices of a vendor: comma lists of model
    names and of device ids, wanted and unwanted.
    """

    use_types: str
    nouse_types: str
    use_ids: str
    nouse_ids: str


def selected(notes: Notes, keys: Selecting) -> DeviceConstraints:
    """What these four annotations say, and nothing else.

    Raises:
        ManifestError: a list is malformed, or all that is wanted is ruled out.
    """
    use_types, nouse_types, use_ids, nouse_ids = (one(notes, (key,), names) or () for key in keys)
    some_left(notes, (keys.nouse_types,), use_types, nouse_types)
    some_left(notes, (keys.nouse_ids,), use_ids, nouse_ids)
    return DeviceConstraints(
        use_types=use_types, nouse_types=nouse_types, use_ids=use_ids, nouse_ids=nouse_ids
    )


def one(notes: Notes, keys: tuple[str, ...], read: Callable[[Notes, str], T]) -> T | None:
    """The value under any of the keys, which are spellings of one thing and must agree.

    A blank value is none: so Helm renders one that nobody set, and so HAMi (`CheckUUID`,
    `CheckType`) and Volcano (`parseGPUUUIDList`) take it.

    Raises:
        ManifestError: two of them differ, or `read` refuses one.
    """
    found = [(key, read(notes, key)) for key in keys if notes.values.get(key, "").strip()]
    for key, value in found[1:]:
        if value != found[0][1]:
            raise notes.refusal(key, f"differs from {found[0][0]}", "keep one of the two")
    return found[0][1] if found else None


def some_left(
    notes: Notes, keys: tuple[str, ...], use: tuple[str, ...], nouse: tuple[str, ...]
) -> None:
    """Check that not all that is wanted is ruled out; `keys` are the spellings of the latter.

    What is in both lists is ruled out and the rest serves, as HAMi and Volcano have it ("the
    denylist takes precedence"); where nothing is left, no device would ever do.

    Raises:
        ManifestError: names what is in both.
    """
    out = {name.lower() for name in nouse}
    if use and all(name.lower() in out for name in use):
        key = next(key for key in keys if notes.values.get(key, "").strip())
        raise notes.refusal(key, f"rules out {use[0]!r}, which is asked for as well", "keep one")


def names(notes: Notes, key: str) -> tuple[str, ...]:
    """A comma list of names, without doubles, in a fixed order.

    Raises:
        ManifestError: it is empty or too long.
    """
    found = {part for raw in notes.values[key].split(",") if (part := raw.strip())}
    if not found:
        raise notes.refusal(key, "names nothing", "write a comma list, or remove it")
    if len(found) > LIST_MAX or any(len(name) > NAME_MAX for name in found):
        raise notes.refusal(key, "is too long", f"name at most {LIST_MAX}")
    return tuple(sorted(found))


def indexes(notes: Notes, key: str) -> tuple[int, ...]:
    """A comma list of numbers of devices on their node.

    Raises:
        ManifestError: one is no number below `COUNT_MAX`.
    """
    words = names(notes, key)
    found = {
        int(word)
        for word in words
        if word.isascii() and word.isdecimal() and len(word) <= INDEX_DIGITS_MAX
    }
    if len(found) != len(words) or max(found) >= COUNT_MAX:
        raise notes.refusal(
            key, "is no list of card numbers", f'write numbers below {COUNT_MAX}, as in "0,2"'
        )
    return tuple(sorted(found))


def flag(notes: Notes, key: str) -> bool:
    """Whether it says "true", in any spelling that Go's `strconv.ParseBool` takes: HAMi reads
    `nvidia.com/numa-bind` with it.

    Raises:
        ManifestError: it is none of them.
    """
    value = notes.values[key]
    if value not in TRUE | FALSE:
        raise notes.refusal(key, "is neither true nor false", 'write "true", or remove it')
    return value in TRUE
