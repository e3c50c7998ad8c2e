"""Run the engines of several schedulers over one in-memory state.

    Members(["a", "b"], rack("n1", 8)).submit(pod("p1", ask(4096))).decide_by("a")

Each scheduler has its own shard, and sees the other schedulers' decisions at once. So tests can
check which scheduler places a pod, but not what happens while a decision is on its way to the
ledger."""

from collections.abc import Sequence
from typing import Self

from apportion.core.ledger.fold import Change
from apportion.core.placement.engine import Decision, Engine
from apportion.core.placement.queueing.sharding import shard
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided
from tests.support.ledger_of import Ledger


class Members(Ledger):
    """An in-memory ledger with several schedulers, and the engine of each live scheduler."""

    def __init__(self, names: Sequence[str], *payloads: Payload) -> None:
        self.engines: dict[str, Engine] = {}
        super().__init__()
        self.be(*names)
        self.play(*payloads)

    def be(self, *names: str) -> Self:
        """Make exactly these schedulers live, and tell each engine its new shard."""
        for name in names:
            self.engines.setdefault(name, Engine(self.state))
        self.engines = {name: self.engines[name] for name in names}
        for name, engine in self.engines.items():
            engine.own(shard(name, names))
        return self

    def take(self, data: Payload) -> Change:
        """Fold one event, and show the change to every engine."""
        change = super().take(data)
        for engine in self.engines.values():
            engine.observe(change)
        return change

    def decided_by(self, name: str, *, apart: bool = False) -> Decision:
        """Return a scheduler's next decision without folding it.

        With `apart`, the scheduler tries the nodes of its own shard first."""
        engine = self.engines[name]
        engine.keep_apart(apart=apart)
        return decided(engine)

    def decide_by(self, name: str, *, apart: bool = False) -> list[Payload]:
        """Let one scheduler decide, fold the events, and return them.

        With `apart`, it tries the nodes of its own shard first."""
        events: list[Payload] = [*self.decided_by(name, apart=apart).events]
        self.play(*events)
        return events
