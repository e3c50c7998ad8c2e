"""Check that sections of HAMi's and Volcano's configuration files match what Apportion does.

Invariant: a key that requests something else is refused, with the fix."""

from typing import Any, Final

from apportion.core.workloads.document import ManifestError, below, shown

AS_IN_CHART: Final = "write it as in HAMi's chart"


def expect(value: object, accepted: tuple[object, ...], path: str, fix: str) -> None:
    """Raise ManifestError if `value` is not one of the accepted values.

    An empty tuple accepts any value."""
    if accepted and not any(value == each and type(value) is type(each) for each in accepted):
        raise ManifestError(path, value, "is not supported", fix)


def same(section: dict[str, Any], expected: dict[str, Any], path: str) -> None:
    """Raise ManifestError if a key of `section` differs from `expected`; keys may be absent."""
    for key, value in expected.items():
        fix = f"remove it; Apportion always uses {shown(value)}"
        expect(section.get(key, value), (value,), below(path, key), fix)


def an_object(value: object, path: str) -> dict[str, Any]:
    """Return the value if it is an object; raise ManifestError otherwise."""
    if not isinstance(value, dict):
        raise ManifestError(path, value, "is not an object", AS_IN_CHART)
    return value


def a_list(value: object, path: str) -> list[Any]:
    """Return the value if it is a list; raise ManifestError otherwise."""
    if not isinstance(value, list):
        raise ManifestError(path, value, "is not a list", AS_IN_CHART)
    return value
