"""What goes wrong beside a verb is no line of a log."""

import logging

import pytest

from apportion.cli.client.ledger import say_troubles
from apportion.runtime.process.logs import get_logger


def test_a_warning_is_said_without_the_form_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of who logged it, with what it is about and no password; less is not said, nor
    the same of two connections.
    """
    say_troubles()
    log = get_logger("apportion.runtime.jetstream.client")
    url = "nats://operator:secret@127.0.0.1:4222"
    for _connection in range(2):
        log.warning("connection lost, reconnecting", server=url, error="no answer")
    log.warning("appending waits: %s", "no answer")
    log.info("connected again")
    logging.getLogger("nats").error("of another library")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"connection lost, reconnecting: server {url.replace('secret', '***')}, error no answer",
        "appending waits: no answer",
        "of another library",
    ]
