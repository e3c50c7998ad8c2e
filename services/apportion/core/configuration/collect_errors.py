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

    To find the next error, the faulty value is removed. Errors that the removal may cause are
    omitted."""
    return remove_errors(document)[1]


def remove_errors(document: Any) -> tuple[Any, list[ManifestError], list[ManifestError]]:
    """Return the document without its faulty values, all errors, and the parts left out.

    The errors are those of `every_error`. If a required value is missing, the part of the document
    that lacks it is removed; the last list has an error for each such part. After `ERRORS_MAX`
    errors, the document may have further errors."""
    left, found, parts = deepcopy(document), list[ManifestError](), list[ManifestError]()
    places: dict[tuple[object, ...], list[int]] = {}
    for _ in range(ERRORS_MAX):
        try:
            read_configuration(left)
        except ManifestError as error:
            steps = list(_STEP.finditer(error.field))
            path = [_step(match) for match in steps]
            key = _there(error.field, places)
            if not any(f"{each.field}.".startswith((f"{key}.", f"{key}[")) for each in found):
                found.append(ManifestError(key, error.value, error.problem, error.fix))
            count, document = 0, left  # of the steps that lead to a value
            while count < len(path) and (document := _entry(document, path[count])) is not GONE:
                count += 1
            if not count:
                break
            if count < len(path):
                end = steps[count - 1].end()
                lacks = error.field[end:].removeprefix(".")
                problem = f"cannot be used: {lacks} is missing or not valid"
                part = _there(error.field[:end], places)
                parts.append(ManifestError(part, None, problem, "correct it"))
            *outer, last = path[:count]
            document = left
            for step in outer:
                document = _entry(document, step)
            if isinstance(document, list):
                places.setdefault(tuple(outer), list(range(len(document)))).pop(int(last))
            del document[last]
        else:
            break
    return left, found, parts


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


def _entry(holder: Any, step: str | int) -> Any:
    if isinstance(holder, dict):
        return holder.get(step, GONE)
    if isinstance(holder, list) and isinstance(step, int) and step < len(holder):
        return holder[step]
    return GONE
