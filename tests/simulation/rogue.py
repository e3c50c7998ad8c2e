"""Events that no honest service writes: garbage, unknown types, wrong subjects, contradictions.

The writer has a role's password, but ignores fences, chain and state. Invariant: a rogue uses ids
of its own, so it never takes the id of an honest event."""

from __future__ import annotations

import itertools
import random

from apportion.core.ledger.state import Phase, State
from apportion.runtime.ledger.port import Draft
from apportion_schemas import Event, PodBound, PodPlaced, Score, Share, encode
from apportion_schemas.catalogue import SUBJECTS, token
from apportion_schemas.quantities import Payload
from tests.simulation import hostile

FIRST_NODE = "n0-1"
"""A node in every run. A placement on a node without an agent would never be allocated."""
TIME = "2026-01-01T00:00:00.000000Z"
INVENTED = (
    b'{"specversion":"1.0","type":"apportion.dev/PodWeighed","schemaversion":1,"id":"r"}',
    b'{"specversion":"1.0","type":"apportion.dev/PodPlaced","schemaversion":99,"data":{"a":[1]}}',
)
"""Events that would halt every reader if an operator had enabled them."""
GARBAGE = (
    b"", b"{}", b"not json", b"[" * 2000, b'{"specversion":"1.0"}', b"\xff\xfe\x00", *INVENTED,
)  # fmt: skip


class Rogue:
    """Makes invalid events that no honest service would write."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers = itertools.count(1)

    def draft(self, state: State) -> tuple[str, Draft]:
        """Return a role, and an invalid event to append in that role."""
        makers = (self._garbage, self._misplaced, self._placement, self._placement, self._bound)
        role, subject, payload = self._chance.choice(makers)(state)
        return role, Draft(subject, f"rogue/{next(self._numbers)}", payload)

    def _garbage(self, state: State) -> tuple[str, str, bytes]:
        role, channel = self._chance.choice(
            (("scheduler", "placement"), ("intake", "inventory"), ("watcher", "workload"))
        )
        name = self._node(state) if channel != "workload" else "nobody"
        return role, f"{SUBJECTS}.{channel}.{token(name)}", self._chance.choice(GARBAGE)

    def _misplaced(self, state: State) -> tuple[str, str, bytes]:
        """Return a valid event on the subject of another node."""
        event = self._placed(state, "nowhere", memory_mib=1)
        return "scheduler", f"{SUBJECTS}.placement.{token(self._node(state))}", _encoded(event)

    def _placement(self, state: State) -> tuple[str, str, bytes]:
        """Return a wrong placement.

        It may break the hash chain, be too large, or name an unknown pod or an old attempt."""
        node = self._node(state)
        event = self._placed(state, node, memory_mib=self._chance.choice((1, 1, 10_000_000)))
        return "scheduler", f"{SUBJECTS}.placement.{token(node)}", _encoded(event)

    def _placed(self, state: State, node: str, *, memory_mib: int) -> PodPlaced:
        known = state.nodes.get(node)
        devices = list(known.by_id) if known else []
        pod = self._pod(state)
        attempt = state.pods[pod].attempt if pod in state.pods else 1
        return PodPlaced(
            pod=pod,
            namespace="sim",
            name="rogue",
            attempt=self._chance.choice((attempt, attempt, 1, 7)),
            node=node,
            shares=tuple(
                Share(container="c0", device=device, memory_mib=memory_mib, cores=1)
                for device in devices[:1]
            ),
            score=Score(node=node, total=1.0),
            previous=known.chain if known and self._chance.random() < 0.5 else "",
        )

    def _bound(self, state: State) -> tuple[str, str, bytes]:
        """Return a PodBound event for a pod that is not placed."""
        pending = [pod.uid for pod in state.pods.values() if pod.phase is Phase.PENDING]
        pod = self._chance.choice(pending) if pending else "nobody"
        node = self._node(state)
        event = PodBound(pod=pod, node=node, attempt=self._chance.choice((1, 2, 9)))
        return "binder", f"{SUBJECTS}.binding.{token(node)}", _encoded(event)

    def _node(self, state: State) -> str:
        """Return a random node with an honest agent. A hostile agent would not answer bindings."""
        reported = sorted(
            name for name, node in state.nodes.items() if node.reported and name != hostile.NODE
        )
        return self._chance.choice(reported or [FIRST_NODE])

    def _pod(self, state: State) -> str:
        return self._chance.choice([*state.pods, "nobody"])


def _encoded(data: Payload) -> bytes:
    return encode(Event(id="rogue", source="rogue", time=TIME, data=data))
