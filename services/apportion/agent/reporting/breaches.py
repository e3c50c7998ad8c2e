"""Containers that are not held to their shares, reported to the ledger as `ShareBreached`.

Invariants: each code is reported at most once an hour for a container and device, however often it
is found, so a container cannot fill the ledger; and no loop that restores a limit waits for an
append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from apportion.agent.reporting.agent import Node
from apportion.agent.reporting.view import Claim, NodeView
from apportion.agent.shares.regions import Breach
from apportion.core.grants.controls import heeded, uncontrolled
from apportion.runtime.process.clock import Clock
from apportion_schemas import Share, ShareBreached

HOUR_S: Final = 3_600
_MIB: Final = 1 << 20

_Key = tuple[str, str, str, str]


class Breaches:
    """What was found on one node and is to be reported."""

    def __init__(
        self,
        node: Node,
        view: NodeView,
        clock: Clock,
        revision: Callable[[], int],
        may_be_unheld: Callable[[str], bool] = lambda _namespace: False,
    ) -> None:
        self._may_be_unheld = may_be_unheld
        self._node = node
        self._view = view
        self._clock = clock
        self._revision = revision
        self._hour = 0
        self._noted: set[_Key] = set()
        self._due: dict[_Key, Breach] = {}
        self._news = asyncio.Event()
        self._doubtful: dict[str, set[_Key]] = {}

    def note(self, found: Iterable[Breach]) -> None:
        """Report these, unless they were in this hour."""
        hour = self._hour_now()
        if hour != self._hour:
            self._hour = hour
            self._noted.clear()
        for each in found:
            if _key(each) not in self._noted:
                self._noted.add(_key(each))
                self._due[_key(each)] = each
                self._news.set()

    def note_again(self, source: str, found: Iterable[Breach]) -> None:
        """Report those that the last look of this source found as well: the others may be about to
        start or to end.
        """
        now = {_key(each): each for each in found}
        before = self._doubtful.get(source, set())
        self._doubtful[source] = set(now)
        self.note(each for key, each in now.items() if key in before)

    async def report(self) -> None:
        """Append what is due, until cancelled."""
        while True:
            await self._news.wait()
            while self._due:
                await self._report(self._due.pop(next(iter(self._due))))
            self._news.clear()

    async def _report(self, found: Breach) -> None:
        claim = self._view.held.get(found.pod)
        share = _share(claim, found) if claim is not None else None
        if claim is None or share is None:
            return
        said = dict[str, str](claim.placed.controls.get(found.container, {}).items())
        may_be_unheld = self._may_be_unheld(claim.placed.namespace)
        if found.code != "raised" and uncontrolled(heeded(said, may_be_unheld=may_be_unheld)):
            return
        data = ShareBreached(
            pod=claim.pod,
            node=claim.node,
            attempt=claim.attempt,
            container=found.container,
            device=found.device,
            code=found.code,
            memory_mib=share.memory_mib,
            memory_found_mib=found.memory // _MIB,
            cores=share.cores,
            cores_found=found.cores,
        )
        what = f"{found.container}/{found.device}/{found.code}/{self._hour_now()}"
        await self._node.publisher.publish(
            data,
            event_id=f"{claim.pod}/{claim.attempt}/breach/{what}",
            basis=self._revision(),
            cause=claim.bound_revision,
        )

    def _hour_now(self) -> int:
        return int(self._clock.now().timestamp()) // HOUR_S


def _key(found: Breach) -> _Key:
    return found.pod, found.container, found.device, found.code


def _share(claim: Claim, found: Breach) -> Share | None:
    """What the container has of the device, which the pod itself holds."""
    for share in (*claim.placed.shares, *claim.placed.borrowed):
        if (share.container, share.device) == (found.container, found.device):
            return share if found.device in claim.devices else None
    return None
