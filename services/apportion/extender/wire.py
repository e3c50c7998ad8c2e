"""Decodes requests from any version of kube-scheduler to an extender.

Field names are lower case in older versions and upper case in newer ones; both are accepted.
Invariant: node objects are passed on as the bytes received; only their name is read."""

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from apportion.runtime.service.own_machine import read_pod
from apportion_schemas.decoding import from_outside

NODES_MAX = 20_000
Name = Annotated[str, Meta(min_length=1, max_length=253)]


class FilterArgs(NamedTuple):
    """kube-scheduler's `ExtenderArgs`. `objects` has whole nodes, if kube-scheduler sent them."""

    pod: dict[str, Any]
    names: list[str]
    objects: list[Raw] | None


class BindingArgs(Struct, frozen=True, rename="lower"):
    """kube-scheduler's `ExtenderBindingArgs`: a pod, and the node to bind it to."""

    pod_name: Name = msgspec.field(name="podname")
    pod_namespace: Name = msgspec.field(name="podnamespace")
    pod_uid: Name = msgspec.field(name="poduid")
    node: Name


class _Meta(Struct, frozen=True):
    name: Name


class _Node(Struct, frozen=True):
    metadata: _Meta


class _Nodes(Struct, frozen=True):
    items: Annotated[list[Raw], Meta(max_length=NODES_MAX)] | None = None


_decode_fields = from_outside(msgspec.json.Decoder(dict[str, Raw]).decode)
_decode_nodes = from_outside(msgspec.json.Decoder(_Nodes).decode)
_decode_node = from_outside(msgspec.json.Decoder(_Node).decode)
_decode_names = from_outside(
    msgspec.json.Decoder(Annotated[list[Name], Meta(max_length=NODES_MAX)]).decode
)
_decode_text = from_outside(msgspec.json.Decoder(str).decode)
_NULL = Raw(b"null")


def decode_filter(body: bytes) -> FilterArgs:
    """Decode `ExtenderArgs` from JSON. Raises msgspec.MsgspecError, BadBody."""
    fields = _lower(body)
    if "pod" not in fields:
        raise msgspec.ValidationError("Object missing required field `Pod`")
    pod = read_pod(fields["pod"])
    if not isinstance(pod, dict):
        raise msgspec.ValidationError("`Pod` is not an object")
    if "nodes" in fields:
        objects = _decode_nodes(fields["nodes"]).items or []
        names = [_decode_node(raw).metadata.name for raw in objects]
        return FilterArgs(pod, names, objects)
    if "nodenames" in fields:
        return FilterArgs(pod, _decode_names(fields["nodenames"]), None)
    raise msgspec.ValidationError("Object missing required field `Nodes` or `NodeNames`")


def decode_binding(body: bytes) -> BindingArgs:
    """Decode `ExtenderBindingArgs` from JSON. Raises msgspec.MsgspecError."""
    said = {name: _decode_text(raw) for name, raw in _lower(body).items()}
    return msgspec.convert(said, BindingArgs)


def _lower(body: bytes) -> dict[str, Raw]:
    found = _decode_fields(body).items()
    return {name.lower(): raw for name, raw in found if bytes(raw) != bytes(_NULL)}
