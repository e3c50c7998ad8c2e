"""How much an intake holds of what agents ask and it has not answered."""

from dataclasses import dataclass

from apportion.intake.lanes import BYTES_OF_ALL_MAX, UNANSWERED_BYTES_MAX, Lane, Lanes


@dataclass
class Sent:
    """A request whose answer nobody waits for."""

    payload: bytes
    subject: str = ""
    reply: str = ""

    async def answer(self, payload: bytes) -> None:
        """See Request."""


LARGEST = Sent(bytes(UNANSWERED_BYTES_MAX))


def test_a_lane_and_all_of_them_together_hold_no_more_than_their_share() -> None:
    """Whoever speaks for every node fills no process; what is answered makes room again."""
    lanes = Lanes()
    many = BYTES_OF_ALL_MAX // UNANSWERED_BYTES_MAX
    for number in range(many):
        lane = lane_of(lanes, f"n{number}")
        assert lane.put(LARGEST)
        assert not lane.put(Sent(b"x"))
    first, other = lane_of(lanes, "n0"), lane_of(lanes, "other")
    assert not other.put(Sent(b"x"))
    assert first.next() is LARGEST
    first.over(LARGEST)
    assert other.put(Sent(b"x"))
    assert lanes.unanswered == many


def lane_of(lanes: Lanes, node: str) -> Lane:
    """The lane of this node."""
    lane = lanes.of(node, 0.0)
    assert lane is not None
    return lane
