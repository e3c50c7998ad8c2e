"""Tests that the agent never runs a cleanup round while it prepares a share."""

import asyncio

from apportion.agent.shares.preparing import Rounds


async def test_a_preparation_waits_for_the_end_of_a_round() -> None:
    """If the agent has to prepare a share during a cleanup round, it first completes the round."""
    rounds, said = Rounds(), list[str]()

    async def prepare() -> None:
        async with rounds.preparing():
            said.append("prepared")

    async with rounds.tidying() as alone:
        assert alone
        waiting = asyncio.create_task(prepare())
        await asyncio.sleep(0)
        said.append("tidied")
    await waiting
    assert said == ["tidied", "prepared"]


async def test_no_round_beside_a_preparation() -> None:
    """The agent skips a cleanup round while a share is being prepared. The next round runs even if
    the preparation failed."""
    rounds = Rounds()
    try:
        async with rounds.preparing(), rounds.preparing():
            async with rounds.tidying() as alone:
                assert not alone
            raise OSError("full")
    except OSError:
        pass
    async with rounds.tidying() as alone:
        assert alone
