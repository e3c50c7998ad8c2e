"""What verbs that write have in common."""

import asyncio

import pytest

from apportion.cli.client.ledger import to_its_end


async def test_ctrl_c_comes_after_a_step() -> None:
    """What is being moved is moved and noted before the drain stops."""
    begun, may_end, noted = asyncio.Event(), asyncio.Event(), list[str]()

    async def move() -> None:
        begun.set()
        await may_end.wait()
        noted.append("a")

    drain = asyncio.create_task(to_its_end(move()))
    await begun.wait()
    drain.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await drain
    assert noted == ["a"]
