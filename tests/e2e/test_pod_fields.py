"""Apportion reads each field of a Kubernetes pod, refuses it by name, or lists it as harmless."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from apportion.core.workloads import kube
from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.pods.unsupported import POD_SPEC
from tests.support.control_plane import ControlPlane

NEWEST = (1, 37)
CORE = "io.k8s.api.core.v1."


class Schemas:
    """The API server's OpenAPI schemas of the core API group."""

    def __init__(self, plane: ControlPlane) -> None:
        if plane.version < NEWEST:
            pytest.skip("an API server before {}.{} lacks fields of the newest".format(*NEWEST))
        document = json.loads(plane.kubectl("get", "--raw", "/openapi/v3/api/v1"))
        self._schemas: dict[str, Any] = document["components"]["schemas"]

    def fields(self, name: str) -> dict[str, str]:
        """Return the fields of a type, each with its type. For a list, return the items' type."""
        properties: Mapping[str, Any] = self._schemas[name].get("properties", {})
        return {field: _named(schema) for field, schema in properties.items()}


def _named(schema: Mapping[str, Any]) -> str:
    """Return the name of the type to which a field refers, or an empty string for a plain value."""
    of = schema.get("items", schema)
    found = [of, *of.get("allOf", ())]
    refs = [each["$ref"].rpartition("/")[2] for each in found if "$ref" in each]
    return refs[0] if refs else ""


def _structs(kind: msgspec.inspect.Type) -> msgspec.inspect.StructType | None:
    """Return the first struct type in this type, or None if the type contains no struct.

    Look into the items of a list type and into each member of a union type."""
    match kind:
        case msgspec.inspect.StructType():
            return kind
        case msgspec.inspect.ListType(item_type=item):
            return _structs(item)
        case msgspec.inspect.UnionType(types=types):
            return next((found for each in types if (found := _structs(each))), None)
    return None


def unknown(
    schemas: Schemas, name: str, read: msgspec.inspect.StructType | None, path: str
) -> Iterator[str]:
    """Yield the path of each field that Apportion neither reads, refuses nor lists as harmless.

    `name` is a type in the API's schemas, and `read` is our struct for it. Each path begins with
    `path`."""
    fields = {} if read is None else {field.encode_name: field.type for field in read.fields}
    for field, of in sorted(schemas.fields(name).items()):
        below = f"{path}{field}"
        if field in fields:
            struct = _structs(fields[field])
            if struct is not None:
                listed = "[]" if _is_list(fields[field]) else ""
                yield from unknown(schemas, of, struct, f"{below}{listed}.")
        elif below == "volumes":  # read by no struct: each kind is refused or harmless
            yield from unknown(schemas, of, None, "volumes[].")
        elif below not in SAID:
            yield below


def _is_list(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.ListType)


SAID = {*ignored_fields.every(), *(row.path for row in POD_SPEC)}


def test_H9_every_field_of_a_pod_is_read_or_refused_or_listed(control_plane: ControlPlane) -> None:
    """Every pod field of this API server is read, refused, or in the list of fields without effect.

    If a new Kubernetes version adds a field, this test fails until the code treats the field in one
    of these ways."""
    schemas = Schemas(control_plane)
    spec = _structs(msgspec.inspect.type_info(kube.PodSpec))
    assert list(unknown(schemas, f"{CORE}PodSpec", spec, "")) == []


def test_nothing_is_listed_that_is_not_a_field(control_plane: ControlPlane) -> None:
    """Every field in our list of harmless fields exists in the API."""
    schemas = Schemas(control_plane)
    missing = []
    for path in sorted(ignored_fields.every()):
        name = f"{CORE}PodSpec"
        for part in path.split("."):
            fields = schemas.fields(name)
            if part.removesuffix("[]") not in fields:
                missing.append(path)
                break
            name = fields[part.removesuffix("[]")]
    assert missing == []
