"""Folds the ledger once from its beginning and writes checkpoints, an index and event counts.

Invariant: the newest checkpoint and the committed index are of the same revision, from which a
restarted process continues."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from apportion.core.answers.past import MarkRow
from apportion.core.explain import differences
from apportion.core.explain.differences import picture, touched
from apportion.core.explain.text.event_text import Teller
from apportion.core.ledger.handlers.change import Change
from apportion.core.ledger.state import State
from apportion.gateway.past.cells import Cells
from apportion.gateway.past.index import CONFIGURATION, DEVICE, LIMIT, NODE, POD, POLICY, Index
from apportion.gateway.past.states import Checkpoints
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion.runtime.process.logs import get_logger
from apportion_schemas import (
    ConfigurationChanged,
    DeviceCordoned,
    DeviceCordonLifted,
    DeviceHealthChanged,
    DevicesRegistered,
    DeviceUncordoned,
    Event,
    LedgerRebuilt,
    NodeCordoned,
    NodeCordonLifted,
    NodeGone,
    NodeHeard,
    NodeObserved,
    NodeReported,
    NodeSilent,
    NodeUncordoned,
    PlacementVoided,
    PodAdopted,
    PodEvicted,
    PodGone,
    PodPlaced,
    PodRejected,
    PodResized,
    PodSubmitted,
    PolicyChanged,
    Share,
)

_log = get_logger(__name__)
_NS = 1_000_000_000
# the index's kind for each list of differences
KINDS = {
    "placements": POD,
    "waiting": POD,
    "nodes": NODE,
    "devices": DEVICE,
    "limits": LIMIT,
    "configuration": CONFIGURATION,
    "policy": POLICY,
}
_MARKS: dict[type, str] = {
    DeviceCordoned: "cordon",
    NodeCordoned: "cordon",
    DeviceUncordoned: "uncordon",
    DeviceCordonLifted: "uncordon",
    NodeCordonLifted: "uncordon",
    NodeUncordoned: "uncordon",
    PolicyChanged: "policy",
    ConfigurationChanged: "configuration",
    LedgerRebuilt: "rebuilt",
    NodeGone: "failure",
    NodeSilent: "failure",
    NodeHeard: "recovery",
}


class Indexer(StateFold):
    """Folds every event, and notes in the index the objects that the event is about."""

    def __init__(self, state: State, index: Index, checkpoints: Checkpoints) -> None:
        super().__init__(state, quiet=True)
        self._index = index
        self._checkpoints = checkpoints
        self._newest: Record | None = None
        self._tried = 0
        self.failed = ""
        self.stored_ns: Callable[[], int] = lambda: 0
        self._teller = Teller(index.name_of)
        self.cells = Cells(index.kept("cells"))
        if state.revision and not index.revision:
            # The ledger's beginning is gone: note the pods of the first state as they are.
            index.keep("begins", str(state.revision).encode())
            for pod in state.pods.values():
                index.name_pod(pod.uid, pod.full_name)
                index.note(pod.submitted_revision, [(POD, pod.uid)])
                if at := pod.placement:
                    self._hold(pod.uid, at.node, pod.placed_revision, pod.placed_time, at.shares)

    def apply(self, record: Record, event: Event) -> Change:
        """Fold the event of a record, and note its changes in the index."""
        data = event.data
        before: Any = None  # the node's devices, or its readiness, so far
        if isinstance(data, NodeReported | NodeObserved | DevicesRegistered):
            node = self.state.nodes.get(data.node)
            if isinstance(data, NodeObserved):
                before = node and node.ready
            else:
                before = set(node.by_id) if node else set()
        part = touched(self.state, data)
        was = picture(self.state, part) if part is not None else None
        change = super().apply(record, event)
        self._count(record.revision, event.time, type(data).__name__)
        if not change.refused and not self.failed:
            try:
                self._note(record.revision, event, change, before)
                if was is not None:
                    now = picture(self.state, part)
                    for name, differ in differences.LISTS.items():
                        for each in differ(was, now):
                            self._index.change(record.revision, KINDS[name], each.key, each.what)
            except sqlite3.Error as error:
                self._fail(error)
        self._perhaps_keep(record)
        return change

    def refuse(self, record: Record, reason: str) -> Change:
        """Skip an unreadable record, and count it."""
        change = super().refuse(record, reason)
        self._count(record.revision, "", "unreadable")
        self._perhaps_keep(record)
        return change

    def keep(self) -> None:
        """Write a checkpoint and commit the index, unless nothing is new since the last one."""
        revision = self.state.revision
        if self._newest is None or self.failed:
            return
        self._tried = revision  # do not retry at every event while the disk is full
        try:
            self._checkpoints.add(self.state)
            self._index.keep("cells", self.cells.encode())
            self._index.keep("record", self._newest.digest)
            self._index.commit(revision)
        except OSError as error:
            _log.warning("no checkpoint written", revision=revision, error=str(error))
        except sqlite3.Error as error:
            self._fail(error)

    def _fail(self, error: sqlite3.Error) -> None:
        self.failed = (
            f"cannot write the index of the past: {error}; free space on its disk (--past) and "
            "restart the gateway"
        )
        _log.error("%s", self.failed)

    def _perhaps_keep(self, record: Record) -> None:
        self._newest = record
        kept = self._checkpoints.revisions
        last = max(kept[-1] if kept else 0, self._tried)
        if self.state.revision - last >= self._checkpoints.every_events:
            self.keep()

    def _count(self, revision: int, said: str, kind: str) -> None:
        ns = self.stored_ns()
        if not ns:
            with suppress(ValueError):  # the event gives no time
                ns = int(datetime.fromisoformat(said).timestamp() * _NS)
        self.cells.add(revision, ns, kind)

    def _note(self, revision: int, event: Event, change: Change, before: Any) -> None:
        data, pod = event.data, change.pod
        if isinstance(data, PodSubmitted | PodRejected):
            self._index.name_pod(data.uid, f"{data.namespace}/{data.name}")
        elif isinstance(data, PodAdopted) and pod is not None:
            self._index.name_pod(pod.uid, pod.full_name)
        self._index.note(revision, set(_things(data, change, before)))
        if isinstance(data, PodPlaced | PodAdopted | PodResized):
            if isinstance(data, PodResized):
                self._index.release(data.pod, revision, event.time)
            shares = pod.placement.shares if pod is not None and pod.placement else ()
            self._hold(data.pod, data.node, revision, event.time, shares)
        elif isinstance(data, PodGone | PlacementVoided) and change.shares:
            self._index.release(pod.uid if pod else "", revision, event.time)
        kind = _MARKS.get(type(data), "")
        if isinstance(data, DeviceHealthChanged):
            kind = "recovery" if data.healthy else "failure"
        elif isinstance(data, NodeObserved) and before not in (None, data.ready):
            kind = "recovery" if data.ready else "failure"
        if kind:
            parts, name = self._teller.parts(data).parts, type(data).__name__
            self._index.mark(MarkRow(revision, event.time, kind, type=name, parts=parts))
        if isinstance(data, PodGone):
            self._index.forget_pod(data.uid)

    def _hold(self, uid: str, node: str, revision: int, time: str, shares: Iterable[Share]) -> None:
        held = [(each.device, each.container, each.memory_mib, each.cores) for each in shares]
        if held:
            self._index.hold(uid, node, revision, time, held)


def _things(data: Any, change: Change, before: Any) -> Iterable[tuple[int, str]]:
    uid = getattr(data, "uid", "") or getattr(data, "pod", "")
    if uid:
        yield POD, uid
    if isinstance(data, PodEvicted):
        yield POD, data.beneficiary
    node = getattr(data, "node", "") or (change.node.name if change.node else "")
    if node:
        yield NODE, node
    device = getattr(data, "device", "")
    if device:
        yield DEVICE, device
    if isinstance(data, NodeReported | DevicesRegistered):
        for each in {each.id for each in data.devices} ^ before:
            yield DEVICE, each
    pod, shares = change.pod, tuple[Share, ...]()
    if isinstance(data, PodAdopted | PodPlaced | PodResized) and pod and pod.placement:
        shares = pod.placement.shares
    elif isinstance(data, PodGone | PlacementVoided):
        shares = change.shares or ()
    for share in shares:
        yield DEVICE, share.device


def open_index(folder: Path, created: str) -> tuple[Index, Checkpoints]:
    """Open the index and checkpoints of the stream that was created at `created`.

    Data of another ledger, and checkpoints without an index, are removed. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    checkpoints = Checkpoints(folder)
    index = Index(folder / "index.sqlite")
    if index.kept("created") != created.encode() or (
        index.revision and index.revision not in checkpoints.revisions
    ):
        index.clear()
        checkpoints.clear()
        index.keep("created", created.encode())
        index.commit(0)
    for revision in [each for each in checkpoints.revisions if each > index.revision]:
        checkpoints.forget(revision)
    return index, checkpoints
