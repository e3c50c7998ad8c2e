"""A pod's annotations, read one at a time: the values that several dialects write alike.

Invariant: what is under a key is understood whole, or refused with the key, the value and the fix.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from apportion.core.dialects.errors import ManifestError, within
from apportion_schemas import DeviceConstraints
from apportion_schemas.quantities import COUNT_MAX, NAME_MAX

LIST_MAX = 256
INDEX_DIGITS_MAX = 3
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
        ManifestError: a list is malformed, or wants what it rules out.
    """
    use_types, nouse_types, use_ids, nouse_ids = (one(notes, (key,), names) or () for key in keys)
    disjoint(notes, (keys.nouse_types,), use_types, nouse_types)
    disjoint(notes, (keys.nouse_ids,), use_ids, nouse_ids)
    return DeviceConstraints(
        use_types=use_types, nouse_types=nouse_types, use_ids=use_ids, nouse_ids=nouse_ids
    )


def one(notes: Notes, keys: tuple[str, ...], read: Callable[[Notes, str], T]) -> T | None:
    """The value under any of the keys, which are spellings of one thing and must agree.

    Raises:
        ManifestError: two of them differ, or `read` refuses one.
    """
    found = [(key, read(notes, key)) for key in keys if key in notes.values]
    for key, value in found[1:]:
        if value != found[0][1]:
            raise notes.refusal(key, f"differs from {found[0][0]}", "keep one of the two")
    return found[0][1] if found else None


def disjoint(
    notes: Notes, keys: tuple[str, ...], use: tuple[str, ...], nouse: tuple[str, ...]
) -> None:
    """Check that nothing is both wanted and ruled out; `keys` are the spellings of the latter.

    Raises:
        ManifestError: names what is.
    """
    wanted = {name.lower() for name in use}
    both = next((name for name in nouse if name.lower() in wanted), None)
    if both is not None:
        key = next(key for key in keys if key in notes.values)
        raise notes.refusal(key, f"rules out {both!r}, which is asked for as well", "keep one")


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
    """Whether it says "true".

    Raises:
        ManifestError: it says neither that nor "false".
    """
    value = notes.values[key]
    if value not in {"true", "false"}:
        raise notes.refusal(key, "is neither true nor false", 'write "true", or remove it')
    return value == "true"
