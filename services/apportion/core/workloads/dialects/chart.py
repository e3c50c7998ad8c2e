"""Sections of HAMi's and Volcano's configuration files, held to what is fixed here.

Such a file is taken whole where it says what is so here anyhow. Invariant: anything else is refused
by its key, with what to do instead."""

from typing import Any

from apportion.core.workloads.document import ManifestError, below, shown


def expect(value: object, nothing: tuple[object, ...], path: str, fix: str) -> None:
    """Refuse a value that is none of these, if there are any; `true` is no 1.

    Raises ManifestError: names the key."""
    if nothing and not any(value == each and type(value) is type(each) for each in nothing):
        raise ManifestError(path, value, "is not obeyed here", fix)


def same(section: dict[str, Any], expected: dict[str, Any], path: str) -> None:
    """Refuse a section that says otherwise of one of these keys.

    Raises ManifestError: names the key."""
    for key, value in expected.items():
        fix = f"remove it; here it is {shown(value)}"
        expect(section.get(key, value), (value,), below(path, key), fix)


def an_object(value: object, path: str) -> dict[str, Any]:
    """The value, which must be an object. Raises ManifestError: it is none."""
    if not isinstance(value, dict):
        raise ManifestError(path, value, "is not an object", "write it as in the chart")
    return value


def a_list(value: object, path: str) -> list[Any]:
    """The value, which must be a list. Raises ManifestError: it is none."""
    if not isinstance(value, list):
        raise ManifestError(path, value, "is not a list", "write it as in the chart")
    return value
