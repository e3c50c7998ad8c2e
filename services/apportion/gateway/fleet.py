"""The rows of all nodes, encoded and kept, so that the picture of the fleet costs what changed.

Every event that touches a node moves it to the end of one ordered map; what changed behind a
revision is the end of that map, however large the fleet is. A row is made when somebody asks for it
and its node has changed since.

Invariant: an answer is of one revision, that of the state when it was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from apportion.core.explain.fleet_rows import FleetAnswer, packed_row
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion_schemas import NodeReported

SLICE_NODES: Final = 250
"""How many rows are made before others have their turn."""


class FleetRows:
    """The rows of one fold; `observe` wants every change of it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._begin = state.revision
        self._of_kubernetes = state.of_kubernetes
        self._changed: dict[str, int] = dict.fromkeys(state.nodes, state.revision)
        self._rows: dict[str, msgspec.Raw] = {}
        self._reporter = dict(state.node_of_device)

    def observe(self, change: Change) -> None:
        """Note the nodes that an event touched: their rows are made anew when they are wanted."""
        state = self._state
        if state.of_kubernetes != self._of_kubernetes:  # then other nodes than it tells of are gone
            self._of_kubernetes = state.of_kubernetes
            self._touch(list(state.nodes))
        for node in change.forgotten:
            self._begin = max(self._begin, self._changed.pop(node.name, 0))
            self._rows.pop(node.name, None)
        if change.node is not None:
            self._touch((change.node.name,))
        elif change.pod is not None and change.pod.placement is not None:  # its phase is in the row
            self._touch((change.pod.placement.node,))
        if isinstance(change.data, NodeReported) and not change.refused:
            # A device that another node reported before is no more there, and that row says so.
            for device in change.data.devices:
                before = self._reporter.get(device.id, change.data.node)
                if before != change.data.node:
                    self._touch((before,))
                self._reporter[device.id] = change.data.node

    def _touch(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._state.nodes:
                continue
            self._changed.pop(name, None)
            self._changed[name] = self._state.revision
            self._rows.pop(name, None)

    async def answer(self, after: int) -> FleetAnswer:
        """The nodes that changed behind `after`; all of them where it lies before our beginning."""
        whole = after < self._begin or after > self._state.revision
        since = -1 if whole else after
        while len(stale := [it for it in self.behind(since) if it not in self._rows]) > SLICE_NODES:
            for name in stale[:SLICE_NODES]:
                self._row(name)
            await asyncio.sleep(0)
        names, nodes = self.behind(since), self._state.nodes
        return FleetAnswer(
            revision=self._state.revision,
            whole=whole,
            nodes=tuple(self._row(name) for name in names if nodes[name].present),
            gone=() if whole else tuple(name for name in names if not nodes[name].present),
        )

    def behind(self, after: int) -> list[str]:
        """The nodes that changed behind that revision, the newest change first."""
        names: list[str] = []
        for name, revision in reversed(self._changed.items()):
            if revision <= after:
                break
            names.append(name)
        return names

    def _row(self, name: str) -> msgspec.Raw:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = packed_row(self._state.nodes[name])
        return row
