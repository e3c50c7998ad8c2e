"""Compare a manifest with the live pod of the same name; container names are not compared."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from apportion.core.answers.plans import ManifestChange
from apportion.core.explain.text.event_text import added_up, ask_words
from apportion.core.explain.text.words import listed
from apportion_schemas import PodSubmitted

_NOT_COMPARED: Final = frozenset(("uid", "namespace", "name"))


def otherwise(was: PodSubmitted, wanted: PodSubmitted) -> tuple[ManifestChange, ...]:
    """Return each field in which the manifest (`wanted`) differs from the live pod (`was`)."""
    found = []
    if was.shape.asks != wanted.shape.asks:
        found.append(ManifestChange("asks", _asks(was), _asks(wanted)))
    before, after = (dict(_leaves(msgspec.to_builtins(each))) for each in (was, wanted))
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path, "nothing"), after.get(path, "nothing")
        if one != other and not path.startswith("shape.asks"):
            found.append(ManifestChange(path.removeprefix("shape."), str(one), str(other)))
    return tuple(found)


def _asks(pod: PodSubmitted) -> str:
    return listed([*map(ask_words, added_up(pod.shape.asks))]) or "no device"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, each in value.items():
            if path or name not in _NOT_COMPARED:
                yield from _leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _leaves(each, f"{path}[{at}]")
    else:
        yield path, value
