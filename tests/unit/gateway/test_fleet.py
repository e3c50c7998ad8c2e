"""Tests that applying only the changes of a cluster gives the same page as reading the whole
cluster."""

from pathlib import Path

import msgspec
import pytest

from apportion.core.explain.fleet_rows import FleetAnswer, PackedNode, whole_fleet
from apportion.core.ledger.state import State
from apportion.gateway import fleet
from apportion.gateway.fleet import FleetRows
from apportion.runtime.ledger.archive import read_archive, read_said
from apportion.runtime.ledger.port import Record
from apportion.runtime.ledger.reader import StateFold
from apportion_schemas.quantities import Payload
from tests.support.fleet import gpu, node, observed, rack
from tests.support.folding import taken
from tests.support.ledger_of import event_of
from tests.support.pods import ask, pod

LEDGERS = sorted((Path(__file__).parents[2] / "golden" / "ledgers").glob("*.jsonl"))


class Screen:
    """The node rows that a page shows, built from the answers that the page received."""

    def __init__(self) -> None:
        self.revision = -1
        self.rows: dict[str, PackedNode] = {}

    def take(self, answer: FleetAnswer) -> None:
        """Apply the answer to the rows, as the console's page does."""
        if answer.whole:
            self.rows.clear()
        for row in answer.nodes:
            decoded = msgspec.json.decode(row, type=PackedNode)
            self.rows[decoded.node] = decoded
        for name in answer.gone:
            self.rows.pop(name, None)
        self.revision = answer.revision


def shown(state: State) -> dict[str, PackedNode]:
    """Return the row of each node in the state."""
    screen = Screen()
    screen.take(whole_fleet(state))
    return screen.rows


class Followed:
    """A cluster's state with its node rows, and a page that follows the changes of these rows."""

    def __init__(self) -> None:
        self.fold = StateFold(State())
        self.rows = FleetRows(self.fold.state)
        self.screen = Screen()

    def play(self, *payloads: Payload) -> None:
        """Fold the events as a ledger reader does."""
        for data in payloads:
            record = Record(self.fold.state.revision + 1, "apportion.v1.test.x", b"")
            self.rows.observe(self.fold.apply(record, event_of(data)))

    async def look(self) -> FleetAnswer:
        """Fetch the changes since the last call and apply them to the page."""
        answer = await self.rows.answer(self.screen.revision)
        self.screen.take(answer)
        return answer


@pytest.mark.parametrize("path", LEDGERS, ids=[path.stem for path in LEDGERS])
@pytest.mark.parametrize("every", [1, 7])
async def test_changes_add_up_to_the_whole(path: Path, every: int) -> None:
    """After each event of a recorded ledger, a page that follows the changes shows the complete
    state."""
    followed = Followed()
    followed.fold.rules.foresee(read_said([path]))
    for record in read_archive(path):
        followed.rows.observe(taken(followed.fold, record))
        if record.revision % every == 0:
            await followed.look()
            assert followed.screen.rows == shown(followed.fold.state)
    assert followed.screen.rows


async def test_an_answer_holds_what_changed_and_no_more() -> None:
    """If one node changed, the answer contains only the row of that node."""
    followed = Followed()
    followed.play(*(rack(f"n{at}", 1) for at in range(100)))
    assert len((await followed.look()).nodes) == 100
    followed.play(pod("a", ask(1000)))
    assert not (await followed.look()).nodes
    followed.play(rack("n7", 2))
    assert (await followed.look()).nodes == (followed.rows._rows["n7"],)


async def test_a_device_that_moved_changes_both_rows() -> None:
    """If a device moved to another node, the rows of both nodes change."""
    followed = Followed()
    followed.play(node("n1", gpu("g0")), observed("n1"), observed("n2"))
    await followed.look()
    followed.play(node("n1"), node("n2", gpu("g0")))
    await followed.look()
    assert followed.screen.rows == shown(followed.fold.state)


async def test_the_first_word_of_a_cluster_takes_nodes_away() -> None:
    """When Kubernetes first reports its nodes, all other nodes disappear from the page."""
    followed = Followed()
    followed.play(rack("n1", 1), rack("n2", 1))
    await followed.look()
    followed.play(observed("n1", version="v1.30.0"))
    assert (await followed.look()).gone == ("n2",)
    assert set(followed.screen.rows) == {"n1"} == set(shown(followed.fold.state))


async def test_a_fold_that_began_later_answers_all() -> None:
    """If the gateway does not know what changed since a client's revision, the answer is the whole
    cluster."""
    followed = Followed()
    followed.play(rack("n1", 1), rack("n2", 1))
    rows = FleetRows(followed.fold.state)
    assert (await rows.answer(1)).whole
    assert not (await rows.answer(2)).whole
    assert (await rows.answer(99)).whole  # a revision of another ledger


async def test_many_rows_are_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are many rows, the gateway computes them in several steps. The answer still shows
    the cluster at a single revision."""
    monkeypatch.setattr(fleet, "SLICE_NODES", 2)
    followed = Followed()
    followed.play(*(rack(f"n{at}", 1) for at in range(9)))
    await followed.look()
    assert followed.screen.rows == shown(followed.fold.state)
