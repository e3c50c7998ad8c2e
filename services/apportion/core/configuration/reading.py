"""Read a configuration: check spellings, unknown keys, types and consistency, in this order.

Invariant: any document gives a configuration or a `ManifestError`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from apportion.core.configuration.checks import check
from apportion.core.configuration.hami_volcano_keys import Passed, without_foreign
from apportion.core.configuration.keys import KEYS
from apportion.core.devices import chains
from apportion.core.names import near
from apportion.core.workloads.dialects import chart
from apportion.core.workloads.document import ManifestError, below, cleaned, refusal
from apportion_schemas import Configuration

ROOT = "document"
_SPELLINGS = {key.also: key.path.rpartition(".")[2] for key in KEYS if key.also}


def read_configuration(document: object) -> Configuration:
    """Return the document as a configuration. Raises `ManifestError` with key, value and fix."""
    ours, _ = without_foreign(_clean(document))
    spelled = _spelled(ours)
    try:
        _check_keys(spelled, inspect.type_info(Configuration), "")
        configuration = msgspec.convert(spelled, Configuration)
        check(configuration)
    except msgspec.ValidationError as error:
        raise _as_written(refusal(spelled, str(error)), ours) from None
    except ManifestError as error:
        raise _as_written(error, ours) from None
    return configuration


def _as_written(error: ManifestError, document: dict[str, Any]) -> ManifestError:
    """Return the error with the spelling of its key that the document has."""
    for written, name in _SPELLINGS.items():
        if error.field == f"nvidia.{name}" and name not in document["nvidia"]:
            return ManifestError(f"nvidia.{written}", error.value, error.problem, error.fix)
    return error


def passed_over(document: object) -> tuple[Passed, ...]:
    """Return the keys of the document that have no effect in Apportion, with the reasons.

    They are keys of HAMi and Volcano. Raises `ManifestError` for an invalid document."""
    return without_foreign(_clean(document))[1]


def _clean(document: object) -> dict[str, Any]:
    clean = cleaned(document)
    if not isinstance(clean, dict):
        raise ManifestError(
            ROOT, document, "is not an object", "write an object with keys such as nvidia"
        )
    return clean


def _spelled(document: dict[str, Any]) -> dict[str, Any]:
    nvidia = document.get("nvidia")
    if not isinstance(nvidia, dict):
        return document
    spelled: dict[str, Any] = {}
    for key, value in nvidia.items():
        name = _SPELLINGS.get(key) or key
        if name != key and name in nvidia and nvidia[name] != value:
            raise ManifestError(
                f"nvidia.{key}", value, f"differs from {name}, another spelling", "keep one of them"
            )
        spelled[name] = value
    geometries = spelled.get("knownMigGeometries")
    if isinstance(geometries, list):
        spelled["knownMigGeometries"] = [_named_groups(entry) for entry in geometries]
    return document | {"nvidia": spelled}


def _named_groups(entry: Any) -> Any:
    """Name MIG groups without a name, as older files have them: group1, group2, …"""
    groups = entry.get("allowedGeometries") if isinstance(entry, dict) else None
    if not isinstance(groups, list):
        return entry
    named = [
        {"group": f"group{number}", "geometries": group} if isinstance(group, list) else group
        for number, group in enumerate(groups, 1)
    ]
    return entry | {"allowedGeometries": named}


def _check_keys(value: object, kind: inspect.Type, path: str) -> None:
    if isinstance(kind, inspect.Metadata):
        _check_keys(value, kind.type, path)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            _check_keys(value, each, path)
    elif isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        for position, entry in enumerate(value):
            _check_keys(entry, kind.item_type, f"{path}[{position}]")
    elif isinstance(kind, inspect.StrType) and kind.pattern and value == "":
        raise ManifestError(path, value, "is empty", "write a name, or remove it for the default")
    elif isinstance(kind, inspect.LiteralType) and isinstance(value, str):
        chain = path == "policy.devices" and chains.known(value)
        fix = f"write one of {', '.join(filter(None, map(str, kind.values)))}"
        pods = f"remove it, and annotate pods with hami.io/gpu-scheduler-policy: {value}"
        chart.expect(value, kind.values, path, pods if chain else fix)
    elif isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, entry in value.items():
            at = below(path, key)
            if key not in fields:
                like = near(key, fields, alike=0.5, most=1, seen_as=str.lower)
                fix = f"write one of {', '.join(fields)}"
                if like:
                    fix = f"write {like[0]}, or remove it"
                raise ManifestError(at, None, "is not a known key", fix)
            _check_keys(entry, fields[key], at)
