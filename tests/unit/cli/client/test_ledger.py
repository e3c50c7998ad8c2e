"""Tests of how verbs that write to the ledger handle Ctrl-C and print warnings."""

import asyncio
import logging

import pytest

from apportion.cli.client.ledger import say_troubles, to_its_end
from apportion.runtime.process.logs import get_logger
from tests.support.golden import Golden


async def test_ctrl_c_comes_after_a_step() -> None:
    """Ctrl-C during a step, such as moving a pod in a drain, takes effect when that step has
    ended."""
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


def test_a_warning_is_said_without_the_form_of_a_log(
    golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning of our own logger is printed once, without a password and without log formatting.
    Other log records are not printed."""
    say_troubles()
    log = get_logger("apportion.runtime.jetstream.client")
    url = "nats://operator:secret@127.0.0.1:4222"
    for _connection in range(2):
        log.warning("connection lost, reconnecting", server=url, error="no answer")
    log.warning("append delayed, retrying: %s", "no answer")
    log.info("reconnected")
    logging.getLogger("nats").error("of another library")
    said = capsys.readouterr()
    assert said.out == ""
    assert "secret" not in said.err
    golden({"twice lost, one wait, one of another library": said.err})
