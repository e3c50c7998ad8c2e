"""Find all errors of a configuration document, not only the first.

After each error, the faulty value is removed and the document is read again. Invariant: errors name
positions in the original document."""

import re
from copy import deepcopy
from typing import Any, Final

from apportion.core.configuration.reading import read_configuration
from apportion.core.workloads.document import ManifestError

ERRORS_MAX: Final = 50
_STEP: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[\]]+)')
GONE: Final = object()


def every_error(document: object) -> list[ManifestError]:
    """Return all errors of the document in the order in which they are found.

    To find the next error, the faulty value is removed. Errors that this may cause are omitted."""
    left, found = deepcopy(document), list[ManifestError]()
    places: dict[tuple[object, ...], list[int]] = {}
    for _ in range(ERRORS_MAX):
        try:
            read_configuration(left)
        except ManifestError as error:
            path = [_step(match) for match in _STEP.finditer(error.field)]
            key = _there(error.field, places)
            if not any(each.field.startswith((f"{key}.", f"{key}[")) for each in found):
                found.append(ManifestError(key, error.value, error.problem, error.fix))
            if not _take_out(left, path, places):
                return found
        else:
            return found
    return found


def _step(match: re.Match[str]) -> str | int:
    return int(match[2]) if match[2] is not None else match[1] if match[1] is not None else match[3]


def _there(key: str, places: dict[tuple[object, ...], list[int]]) -> str:
    """Return the path of an error, with list positions as in the original document."""
    path: list[object] = []

    def moved(match: re.Match[str]) -> str:
        step = _step(match)
        before = places.get(tuple(path))
        shown = match[0]
        if isinstance(step, int) and before is not None and step < len(before):
            shown = f"[{before[step]}]"
        path.append(step)
        return shown

    return _STEP.sub(moved, key)


def _take_out(
    document: Any, path: list[str | int], places: dict[tuple[object, ...], list[int]]
) -> bool:
    while path:
        parent = document
        for step in path[:-1]:
            parent = _entry(parent, step)
        if _entry(parent, path[-1]) is not GONE:
            if isinstance(parent, list):
                where = tuple(path[:-1])
                places.setdefault(where, list(range(len(parent)))).pop(int(path[-1]))
            del parent[path[-1]]
            return True
        path = path[:-1]
    return False


def _entry(holder: Any, step: str | int) -> Any:
    if isinstance(holder, dict):
        return holder.get(step, GONE)
    if isinstance(holder, list) and isinstance(step, int) and step < len(holder):
        return holder[step]
    return GONE
