"""A round of tidying, and preparations that come before, during and after it."""

import asyncio

from apportion.agent.shares.preparing import Rounds


async def test_a_preparation_waits_for_the_end_of_a_round() -> None:
    """What the round has read of who is there holds until it has taken away what is left over."""
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
    """It is passed over, and the next one takes place, also after a preparation that failed."""
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
