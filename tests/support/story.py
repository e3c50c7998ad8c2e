"""A ledger of the past, in which pods waited for each other, and a feed that followed it."""

from msgspec import structs

from apportion.core.ledger.moments import SECOND, text_of
from apportion.core.ledger.snapshot import restore, take
from apportion.core.ledger.state import PodState
from apportion.core.placement.engine import Engine
from apportion.gateway.feed import Feed
from apportion.runtime.ledger.port import Record
from apportion_schemas import DeviceConstraints, PodGone, PodPlaced, encode
from apportion_schemas.catalogue import subject_of
from apportion_schemas.quantities import Payload
from tests.support.deciding import decided
from tests.support.fleet import A30, T4, rack
from tests.support.ledger_of import event_of
from tests.support.pods import ask, cards, pod, shape

BEGIN_S = 1_700_000_000
T4S = shape(cards(), devices=DeviceConstraints(use_types=("T4",)))
A30S = shape(ask(16_000), devices=DeviceConstraints(use_types=("A30",)))


class Story:
    """A ledger in which pods use one device in turn, each with part of its memory. The last pod is
    pending, and these pods do not accept the devices of another node. A feed follows all events."""

    def __init__(self, rounds: int, *, begin_s: int = BEGIN_S) -> None:
        self.now_s, self.gap_s = begin_s, 60
        self.live = Feed()
        self.engine = Engine(self.live.state)
        self.records: list[Record] = []
        self.play(rack("n1", 2, model=T4), rack("n2", 1, model=A30), pod("other", shape=T4S))
        for number in range(rounds):
            self.play(pod(f"p{number}", shape=A30S))
            if number and number < rounds - 1:
                self.play(PodGone(uid=f"p{number - 1}"))

    @property
    def last(self) -> PodState:
        """Return the newest pod."""
        return next(reversed(self.live.state.pods.values()))

    def play(self, *payloads: Payload) -> None:
        """Append these events and then the engine's decisions, each `gap_s` after the last."""
        while payloads:
            for data in payloads:
                self.record(data)
            payloads = tuple(decided(self.engine).events)

    def record(self, data: Payload) -> None:
        """Append an event to the ledger, and let the feed follow it."""
        revision = len(self.records) + 1
        self.now_s += self.gap_s
        if isinstance(data, PodPlaced):
            data = structs.replace(data, previous=self.live.state.nodes[data.node].chain)
        event = event_of(data, text_of(self.now_s * SECOND))
        self.records.append(Record(revision, subject_of(data), encode(event)))
        self.engine.observe(self.live.apply(self.records[-1], event))

    def restarted(self, *, start: int = 1) -> Feed:
        """Return a feed that starts from a snapshot, and reads old events from revision `start`."""
        feed = Feed(restore(take(self.live.state)))
        learn = feed.look_back()
        assert [learn(record) for record in self.records[start - 1 :]].index(False) == (
            len(self.records) - start
        )
        return feed
