"""MIG instances for the containers of this node: made before they start, destroyed when they ended.

Which ones are needed is no record of ours: it follows from the kubelet's books and from the ledger
(`LivePods`), so an agent that was killed, or is new on the node, comes to the same. Which ones this
agent made is a record of ours (`OurInstances`). Invariant: an instance that a container of the
ledger may be using, or that this agent did not make, is not destroyed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from apportion.agent.backend import DeviceBackend, InTheWay, NotMade
from apportion.core.grants import MadeInstance
from apportion.core.grants.mig import cut, named
from apportion_schemas import MigInstance, Share

PATIENCE_S: Final = 8.0
"""How long a start waits for an instance in its place: a container that ended releases it soon."""
_AGAIN_S: Final = 0.25

_log = logging.getLogger(__name__)


class Instances:
    """The MIG instances of one node's cards."""

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend
        self._left: dict[str, tuple[tuple[MigInstance, ...], tuple[MigInstance, ...]]] = {}
        self._problems: dict[str, str] = {}

    async def ensure(
        self, wanted: Iterable[Share], needed: Collection[Share]
    ) -> dict[Share, MadeInstance]:
        """Have those of these shares there, which are of one container.

        Raises:
            NotMade: one of them cannot be there; the message says what stands in its way.
            OSError: one of them cannot be noted as ours.
        """
        made: dict[Share, MadeInstance] = {}
        for share in wanted:
            if share.instance is not None:
                others = _of_card(needed, share.device)
                made[share] = await self._patiently(share, cut(share.instance), others)
        return made

    async def keep(self, cards: Iterable[str], needed: Collection[Share]) -> None:
        """Destroy what is ours and not needed, on these cards, which are in MIG mode.

        What the driver holds is tried again in the next round. Raises OSError.
        """
        for card in cards:
            try:
                kept = await self._backend.keep_instances(card, _of_card(needed, card))
            except NotMade as problem:
                if self._problems.get(card) != str(problem):
                    _log.warning("MIG instances of %s are left as they are: %s", card, problem)
                self._problems[card] = str(problem)
                continue
            self._problems.pop(card, None)
            if kept.gone:
                _log.info("card %s: no pod needs %s: destroyed", card, _names(kept.gone))
            if (kept.held, kept.foreign) != self._left.get(card, ((), ())):
                # What stays on the card is logged once for each change of it.
                self._left[card] = kept.held, kept.foreign
                if kept.held:
                    _log.warning(
                        "card %s: no pod needs %s, and the driver says that it is in use; a "
                        "process runs there, or DCGM holds it. Retrying until it is destroyed",
                        card,
                        _names(kept.held),
                    )
                if kept.foreign:
                    _log.warning(
                        "card %s: Apportion did not make %s; it stays, and its slices are given to "
                        "no pod; if no program needs it, destroy it with nvidia-smi mig -dci and "
                        "-dgi",
                        card,
                        _names(kept.foreign),
                    )

    async def _patiently(
        self, share: Share, wanted: MigInstance, others: Collection[MigInstance]
    ) -> MadeInstance:
        """Raises InTheWay, NotMade."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while True:
            try:
                return await self._backend.make_instance(
                    share.device, wanted, others, least_mib=share.memory_mib
                )
            except InTheWay:
                if loop.time() > until:
                    raise
            await asyncio.sleep(_AGAIN_S)


def _of_card(shares: Iterable[Share], card: str) -> set[MigInstance]:
    return {cut(each.instance) for each in shares if each.device == card and each.instance}


def _names(instances: Iterable[MigInstance]) -> str:
    return ", ".join(named(each) for each in instances)
