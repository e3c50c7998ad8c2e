"""XIDs, the faults that the driver reports: listening for them, and which are recent.

A critical XID makes its card unhealthy until the card has been quiet for a while. One of a MIG
instance closes the place of that instance, and no other one of its card. Invariant: every card that
answers is listened to, also after the driver was away or one card's loss made the event set deaf.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import pynvml as nvml

from apportion.agent.backend import NotMade
from apportion.core.grants.mig import named, overlap
from apportion.runtime.process.clock import Clock
from apportion_schemas import MigInstance

IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 94, 109})
"""Faults of the program, not of the card: the list that HAMi and NVIDIA's own plugin ignore, and an
error of memory that was contained (94), which ends the programs that have used that memory."""
NOTICE_XIDS = frozenset({63, 154})
"""A row of memory was remapped, the driver asks for another recovery: the next look asks for both,
and is made at once. Source of both lists: NVIDIA's catalogue of XIDs."""
XID_MAX = 9_999
QUIET_S = 300.0
"""A card that had a critical XID is offered again after this long without another."""
NO_INSTANCE = 0xFFFF_FFFF
"""What an event says where it is of the whole card."""
_UNKNOWN = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
"""What a card, or a driver older than the question, says to something that it does not have."""

_log = logging.getLogger(__name__)


class Xids:
    """The driver's set of events, and the critical XIDs of the last `quiet_s` seconds."""

    def __init__(
        self,
        clock: Clock,
        *,
        quiet_s: float,
        ignored: frozenset[int],
        hung: Callable[[], Collection[str]],
    ) -> None:
        """`ignored` are the XIDs after which a card stays healthy; `hung` names the calls into the
        driver that have not returned.
        """
        self.ignored = ignored
        self._clock = clock
        self._quiet_s = quiet_s
        self._hung = hung
        self._xids: dict[str, tuple[int, float]] = {}
        self._faults: dict[tuple[str, MigInstance], tuple[int, float]] = {}
        self._events: Any = None
        self._watched: set[str] = set()
        self._stumbled = False

    def listen(self) -> None:
        """Make the set of events, to which `watch` adds each card. Raises NVMLError."""
        if self._events is None:
            self._events = nvml.nvmlEventSetCreate()

    def stop_listening(self) -> None:
        """Free the set of events, unless a call that hangs may be using it."""
        events, self._events = self._events, None
        self._watched.clear()
        if events is not None and not self._hung():
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def watch(self, device: str, handle: Any) -> None:
        """Ask for the card's critical XIDs. A card that has no such events is only probed.

        Raises NVMLError.
        """
        if device in self._watched:
            return
        events = self._events
        with suppress(*_UNKNOWN):
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        if events is self._events:  # else the call hung for as long as that set was in use
            self._watched.add(device)

    def keep_watching(self, devices: Collection[str]) -> None:
        """Forget all other cards: the events of a card that was lost went with it."""
        self._watched.intersection_update(devices)

    def wait(self, wait_s: float) -> Any:
        """A critical XID that came within that time; else whether to look at the cards."""
        if self._events is None:
            time.sleep(wait_s)  # the driver was away at the last look
            return True
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, max(1, int(wait_s * 1_000)))
        except nvml.NVMLError_Timeout:
            self._stumbled = False
            return False
        except nvml.NVMLError:
            # A card fell off the bus, or the driver restarts. One lost card makes a set deaf to
            # the others: the next look makes another, of those that answer.
            if self._stumbled:
                time.sleep(wait_s)
            self._stumbled = True
            self.stop_listening()
            return True
        self._stumbled = False
        return event if event.eventType == nvml.nvmlEventTypeXidCriticalError else False

    def note(self, device: str, xid: int) -> None:
        """Keep the XID of a card in mind."""
        self._xids[device] = (xid, self._clock.monotonic())

    def note_fault(self, device: str, cut: MigInstance, xid: int) -> None:
        """Keep the XID of a MIG instance in mind, and log it unless it is the same as before."""
        before, _ = self._faults.get((device, cut), (0, 0.0))
        self._faults[device, cut] = (xid, self._clock.monotonic())
        if xid != before:
            _log.error(
                "device %s: XID %d on MIG instance %s; no pod is placed and no container is "
                "started there for %g s. Other instances of the device are not affected",
                *(device, xid, named(cut), self._quiet_s),
            )

    def recent(self, device: str) -> str:
        """The card's critical XID of the last `quiet_s` seconds, as a reason; empty without one."""
        xid, at_s = self._xids.get(device, (0, 0.0))
        if xid and self._clock.monotonic() - at_s < self._quiet_s:
            return f"XID {xid}"
        self._xids.pop(device, None)
        return ""

    def faults(self, device: str) -> Iterator[tuple[MigInstance, int]]:
        """The card's MIG instances that had a critical XID in the last `quiet_s` seconds."""
        for (card, cut), (xid, at_s) in list(self._faults.items()):
            if self._clock.monotonic() - at_s >= self._quiet_s:
                del self._faults[card, cut]
            elif card == device:
                yield cut, xid

    def check_place(self, device: str, wanted: MigInstance) -> None:
        """Raises NotMade where an instance had a critical XID a short time ago."""
        for cut, xid in self.faults(device):
            if overlap(cut, wanted):
                raise NotMade(
                    f"MIG instance {named(cut)} had XID {xid}; its place is given to containers "
                    f"again after {self._quiet_s:g} s without another"
                )
