"""Limit what a node's agent may read: its own node's events and common subjects.

An agent has no right to the server's API. It sends requests to an intake, which queries the server:

    apportion.reading.<node>   Asked   ──►   the server's reply, or an error in its format

The server lets an agent publish only on its own node's subject, so the subject identifies the
agent. Invariant: the intake builds each request to the server itself, and a consumer delivers to an
agent only events that the agent may read."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, structs

from apportion.core.identity.identity import readers_of_node
from apportion.core.identity.permissions import DELIVERIES
from apportion.core.ledger.rules import RULES
from apportion.core.ledger.state import State, shape_key
from apportion_schemas import PodSubmitted
from apportion_schemas.catalogue import SUBJECTS, token
from apportion_schemas.decoding import from_outside
from apportion_schemas.workload import Shape

SUBJECT: Final = "apportion.reading"
SUBJECTS_OF_ALL: Final = f"{SUBJECT}.*"
# Requests `part_of` the intake's state, for a ledger whose beginning was dropped
STATE: Final = "STATE"
CHANNELS: Final = ("inventory", "intake", "placement", "binding", "allocation")
ADOPTIONS: Final = "adoption"  # another channel, whose subjects also name the pod
FOR_ALL: Final = (f"{SUBJECTS}.operator.configuration", RULES)  # subjects that every agent reads
REFUSED: Final = 403
_STREAM: Final = "APPORTION"
_NOT_FOUND: Final = b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}'
_CREATE: Final = f"CONSUMER.CREATE.{_STREAM}."

_Nanoseconds = Annotated[int, Meta(ge=100_000_000, le=60_000_000_000)]
_Filter = Annotated[str, Meta(max_length=1_024)]


class NotForAgents(ValueError):
    """Raised for a request that this node's agent may not send; names what is forbidden."""


class Asked(Struct, frozen=True, forbid_unknown_fields=True):
    """A request of an agent to the server's API; `api` is its subject after `$JS.API.`."""

    api: Annotated[str, Meta(max_length=512)]
    body: msgspec.Raw = msgspec.Raw(b"{}")


class Call(Struct, frozen=True):
    """A request that the intake sends to the server for an agent.

    If `is_record`, the reply is a record of the ledger, and `shown` must check it."""

    api: str
    body: bytes = b""
    is_record: bool = False


class _Consumer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: Annotated[str, Meta(max_length=64)]
    deliver_subject: Annotated[str, Meta(pattern=rf"^{DELIVERIES}\.[A-Za-z0-9_-]+\.[A-Za-z0-9]+$")]
    opt_start_seq: Annotated[int, Meta(ge=1)]
    idle_heartbeat: _Nanoseconds
    inactive_threshold: _Nanoseconds
    deliver_policy: Literal["by_start_sequence"]
    ack_policy: Literal["none"]
    max_deliver: Literal[1]
    num_replicas: Literal[1]
    mem_storage: bool
    flow_control: bool
    description: Annotated[str, Meta(max_length=64)] = ""
    metadata: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=8_192)]],
        Meta(max_length=4),
    ] = {}
    filter_subject: _Filter = ""
    filter_subjects: tuple[_Filter, ...] = ()


class _Creation(Struct, frozen=True, forbid_unknown_fields=True):
    stream_name: Literal["APPORTION"]
    config: _Consumer
    action: Literal["create"]


class _Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    seq: Annotated[int, Meta(ge=0)] = 0
    next_by_subj: _Filter = ""
    last_by_subj: _Filter = ""


class _Message(Struct, frozen=True):
    subject: str = ""


class _Answer(Struct, frozen=True):
    message: _Message | None = None


class _Error(Struct, frozen=True):
    description: str
    code: int = REFUSED
    err_code: int = 0


_encode = msgspec.json.Encoder().encode
_decode_asked = from_outside(msgspec.json.Decoder(Asked).decode)
_decode_creation = from_outside(msgspec.json.Decoder(_Creation).decode)
_decode_record = from_outside(msgspec.json.Decoder(_Record).decode)
_decode_answer = from_outside(msgspec.json.Decoder(_Answer).decode)


def subjects_of_node(node: str) -> list[str]:
    """Return the subjects of the node's events, which its agent reads."""
    name = token(node)
    return [
        *(f"{SUBJECTS}.{channel}.{name}" for channel in CHANNELS),
        f"{SUBJECTS}.{ADOPTIONS}.{name}.*",
    ]


def read_asked(payload: bytes) -> Asked:
    """Decode a request. Raises `NotForAgents`."""
    try:
        return _decode_asked(payload)
    except msgspec.MsgspecError as error:
        raise NotForAgents(f"invalid request: {error}") from None


def call_of(node: str, asked: Asked) -> Call:
    """Check an agent's request, and return the request to send to the server instead.

    Raises `NotForAgents`."""
    if asked.api == f"STREAM.INFO.{_STREAM}":
        return Call(asked.api)  # without a body it lists no subjects
    try:
        if asked.api == f"STREAM.MSG.GET.{_STREAM}":
            record = _decode_record(asked.body)
            _check_subjects(node, filter(None, (record.next_by_subj, record.last_by_subj)))
            return Call(asked.api, _encode(record), is_record=True)
        if asked.api.startswith(_CREATE):
            creation = _decode_creation(asked.body)
            config = creation.config
            filters = [*filter(None, [config.filter_subject]), *config.filter_subjects]
            if not filters:
                raise NotForAgents("a consumer without a subject filter")
            _check_subjects(node, filters)
            if config.name not in readers_of_node(node):
                raise NotForAgents(f"consumer {config.name!r}")
            return Call(f"{_CREATE}{config.name}", _encode(creation))
    except msgspec.MsgspecError as error:
        raise NotForAgents(f"invalid body of {asked.api}: {error}") from None
    for verb in ("INFO", "DELETE"):
        for name in readers_of_node(node):
            if asked.api == f"CONSUMER.{verb}.{_STREAM}.{name}":
                return Call(asked.api)
    raise NotForAgents(f"request {asked.api!r}")


def _check_subjects(node: str, subjects: Iterable[str]) -> None:
    """Raise `NotForAgents` if this node's agent may not read one of the subjects."""
    readable = {*subjects_of_node(node), *FOR_ALL}
    for each in subjects:
        if each not in readable:
            raise NotForAgents(f"subject {each!r}")


def shown(node: str, call: Call, answer: bytes) -> bytes:
    """Return `answer`, or "not found" if the agent may not read the record in it."""
    if not call.is_record:
        return answer
    try:
        message = _decode_answer(answer).message
    except msgspec.MsgspecError:
        return _NOT_FOUND
    if message is None:
        return answer
    for each in (*subjects_of_node(node), *FOR_ALL):
        prefix = each.rstrip("*>")
        if message.subject == each or (prefix != each and message.subject.startswith(prefix)):
            return answer
    return _NOT_FOUND


def refusal(why: str) -> bytes:
    """Return the reply to an agent's request that was refused."""
    return _encode({"error": _Error(f"not allowed for an agent of this node: {why}"[:1_000])})


def part_of(state: State, node: str) -> State:
    """Return the part of the state that this node's agent needs when it starts."""
    part = State(
        revision=state.revision,
        configuration=state.configuration,
        configuration_revision=state.configuration_revision,
        rules=state.rules,
    )
    there = state.nodes.get(node)
    if there is not None:
        part.nodes = {node: there}
        for uid, pod in there.pods.items():
            # No labels or constraints: agents need neither, and those of two pods may exceed one
            # reply.
            whole, shape = pod.submitted, Shape(asks=pod.submitted.shape.asks)
            submitted = PodSubmitted(
                uid=uid,
                namespace=whole.namespace,
                name=whole.name,
                shape=shape,
                dialect=whole.dialect,
                high_priority=whole.high_priority,
                init_containers=whole.init_containers,
                containers=whole.containers,
                borrowing=whole.borrowing,
                controls=whole.controls,
            )
            part.pods[uid] = structs.replace(
                pod, submitted=submitted, shape_key=shape_key(shape), refusal=None
            )
    return part
