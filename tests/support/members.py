"""Several schedulers' engines over one state in memory, each with its shard.

    Members(["a", "b"], rack("n1", 8)).submit(pod("p1", ask(4096))).decide_by("a")

The state is one, so what one member has decided the others know at once: what is asked here is who
decides, and where, not what happens while a decision is on its way."""

from collections.abc import Sequence
from typing import Self

from apportion.core.ledger.fold import Change
from apportion.core.placement.engine import Decision, Engine
from apportion.core.placement.queueing.sharding import shard
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided
from tests.support.ledger_of import Ledger


class Members(Ledger):
    """See the module; `engines` are those of the members that are there."""

    def __init__(self, names: Sequence[str], *payloads: Payload) -> None:
        self.engines: dict[str, Engine] = {}
        super().__init__()
        self.be(*names)
        self.play(*payloads)

    def be(self, *names: str) -> Self:
        """From now on these are the members; all of them know it."""
        for name in names:
            self.engines.setdefault(name, Engine(self.state))
        self.engines = {name: self.engines[name] for name in names}
        for name, engine in self.engines.items():
            engine.own(shard(name, names))
        return self

    def take(self, data: Payload) -> Change:
        """See Ledger; every member observes it."""
        change = super().take(data)
        for engine in self.engines.values():
            engine.observe(change)
        return change

    def decided_by(self, name: str, *, apart: bool = False) -> Decision:
        """What a member decides now; nothing is folded."""
        engine = self.engines[name]
        engine.keep_apart(apart=apart)
        return decided(engine)

    def decide_by(self, name: str, *, apart: bool = False) -> list[Payload]:
        """One decision of a member, folded; returns its events."""
        events: list[Payload] = [*self.decided_by(name, apart=apart).events]
        self.play(*events)
        return events
