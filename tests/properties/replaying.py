"""A program that reads histories and prints digests of their results.

    python -m tests.properties.replaying < histories

Each input line is a history: a JSON list of `[subject, event]`, with null where the engine decides.
Each output line has the digest of the state and the SHA-256 of all decisions."""

import hashlib
import json
import sys
from collections.abc import Iterable

import msgspec

from apportion.core.ledger import fold
from apportion.core.ledger.digest import digest
from apportion.core.ledger.state import State
from apportion.core.placement.engine import Engine
from apportion_schemas import Event, decode, encode, subject_of
from apportion_schemas.quantities import Payload
from tests.properties.core_histories import Decide, Effect, Step
from tests.support.deciding import decided
from tests.support.ledger_of import event_of


def written(steps: Iterable[Step], state: State) -> str:
    """Return the history as one line of input for this program, with each `Effect` as an event."""
    line: list[list[str] | None] = []

    def take(data: Payload) -> None:
        event = event_of(data)
        fold.apply(state, state.revision + 1, event)
        line.append([subject_of(data), encode(event).decode()])

    for step in steps:
        if isinstance(step, Decide):
            line.append(None)
            for event in Engine(state).decide().events:
                fold.apply(state, state.revision + 1, event_of(event))
            continue
        data = step.about(state) if isinstance(step, Effect) else step
        if data is not None:
            take(data)
    return json.dumps(line)


def played(line: str) -> str:
    """Play the history that a line of input encodes. Return the digests of the final state and of
    all decisions."""
    state, said = State(), hashlib.sha256()
    engine = Engine(state)

    def take(event: Event) -> None:
        engine.observe(fold.apply(state, state.revision + 1, event))

    for entry in json.loads(line):
        if entry is not None:
            take(decode(entry[1].encode(), subject=entry[0]))
            continue
        for data in decided(engine).events:
            said.update(msgspec.json.encode(data))
            take(event_of(data))
    return f"{digest(state)} {said.hexdigest()}"


if __name__ == "__main__":
    for history in sys.stdin:
        print(played(history))  # noqa: T201 - this is the result
