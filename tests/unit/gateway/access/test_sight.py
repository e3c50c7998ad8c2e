"""What a tenant sees of answers whose rows have no namespace of their own."""

from typing import Any

import msgspec

from apportion.core.explain.past_answers import DiffAnswer, DiffRow, MomentAnswer
from apportion.gateway.access.sight import look_at

NOW = MomentAnswer(revision=9, time="2026-01-01T00:00:00Z")


def row(name: str, cause: str = "") -> DiffRow:
    """One that names itself in its sentence, as they do."""
    return DiffRow(name=name, what="x", before="", after="x", sentence=f"{name} is gone",
                   by="watcher", cause=cause)  # fmt: skip


def as_sent(answer: msgspec.Struct) -> Any:
    """As it is decoded where a tenant is in between."""
    return msgspec.json.decode(msgspec.json.encode(answer))


def test_differences_tell_nothing_of_others() -> None:
    """Not who waits, for whom a pod went, or what a namespace may hold; what is his stays."""
    mine = row("ml/mine", "deleted by mei")
    answer = DiffAnswer(
        revision=9, begin=NOW, end=NOW, waiting=(mine, row("ops/secret")),
        placements=(
            mine, row("ops/secret", "drained by olga"), row("ml/b", "evicted for ops/boss"),
        ),
        limits=(row("quota ops/secret"), row("queue all")), configuration=(row("key"),),
    )  # fmt: skip
    look = look_at("diff")
    assert look is not None
    shown: dict[str, Any] = look(as_sent(answer), lambda namespace: namespace == "ml")
    for told in ("ops", "olga", "secret", "boss", "queue all"):
        assert told not in str(shown)
    assert shown["waiting"][0] == shown["placements"][0] == as_sent(mine)
    assert (shown["limits"], len(shown["waiting"]), len(shown["placements"])) == ([], 2, 3)
