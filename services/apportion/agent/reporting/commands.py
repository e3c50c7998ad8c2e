"""Orders to an agent, over plain request and reply: a simulated device fails or recovers, or the
whole node is lost or returns.

Only simulated devices take orders: a real card's health is what the driver says. Invariant: an
order changes the device, never the ledger; the fact follows as for any device, from the agent's own
look at its inventory, or, of a node that is lost, from the scheduler that does not hear it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from apportion.agent.simulated import DeviceUnknown, SimulatedBackend
from apportion.runtime.ledger.port import Handler
from apportion_schemas.catalogue import token
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import Text

PREFIX = "apportion.command.agent"
_BYTES_MAX = 4_096


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"verb": "fail", "device": "GPU-...", "reason": "fan broken"}`, or `{"verb": "lose"}`."""

    verb: Literal["fail", "recover", "lose", "return"]
    device: Text = ""
    reason: Annotated[Text, Meta(min_length=1)] = "failed by command"


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`{"done": true}`, or `false` and why."""

    done: bool
    error: str = ""


_decode = from_outside(msgspec.json.Decoder(Order).decode)
_encode = msgspec.json.Encoder().encode


def command_subject(node: str) -> str:
    """Where the agent of that node takes orders."""
    return f"{PREFIX}.{token(node)}"


def obey(backend: SimulatedBackend) -> Handler:
    """The handler of one node's orders."""

    async def handle(subject: str, payload: bytes) -> bytes:  # noqa: ARG001 - one node, one handler
        try:
            _carry_out(payload)
        except (DeviceUnknown, msgspec.DecodeError) as error:
            return _encode(Answer(done=False, error=str(error)))
        return _encode(Answer(done=True))

    def _carry_out(payload: bytes) -> None:
        if len(payload) > _BYTES_MAX:
            raise DeviceUnknown(f"order of {len(payload)} bytes; at most {_BYTES_MAX}")
        order = _decode(payload)
        match order.verb:
            case "fail":
                backend.fail(order.device, order.reason)
            case "recover":
                backend.recover(order.device)
            case "lose":
                backend.lose()
            case "return":
                backend.come_back()

    return handle
