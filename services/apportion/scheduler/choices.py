"""Choices over the bus: the extender says where kube-scheduler wants a pod, and that it was heard.

What comes of a choice is not in the answer but in the ledger, as PodPlaced or PodRefused, which
only a scheduler writes. Every scheduler hears every choice; that of the pod's shard decides.
Invariant: a choice that cannot be read changes nothing and is answered with what is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from apportion.core.placement.external_choice import Chosen
from apportion.runtime.ledger.choosing import SUBJECT, Choice, Heard
from apportion.runtime.ledger.port import Ledger, NotPermitted
from apportion_schemas.decoding import from_outside

_log = logging.getLogger(__name__)
_decode = from_outside(msgspec.json.Decoder(Choice).decode)
_encode = msgspec.json.Encoder().encode


async def serve(ledger: Ledger, chosen: Chosen, stir: Callable[[], None]) -> None:
    """Take choices from now on, and `stir` whoever decides at each."""

    async def take(_subject: str, payload: bytes) -> bytes:
        try:
            choice = _decode(payload)
        except msgspec.MsgspecError as error:
            return _encode(Heard(error=f"the choice cannot be read: {error}"))
        chosen.choose(choice.pod, choice.node)
        stir()
        return _encode(Heard())

    try:
        await ledger.serve(SUBJECT, take)
    except NotPermitted as error:
        _log.warning("pods of extended kube-schedulers are not placed here: %s", error)
