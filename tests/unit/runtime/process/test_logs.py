"""Tests of log lines, which are JSON or readable text and never show a password."""

import io
import json
import logging
from datetime import UTC, datetime

import pytest

from apportion.runtime.process.logs import blank_passwords, configure_logs, get_logger

SECRET = "nats://agent:s3cret@10.0.0.1:4222"


class NoonClock:
    """A fake clock that always shows noon."""

    def now(self) -> datetime:
        return datetime(2026, 5, 1, 12, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def pause(self, longest_s: float) -> None:
        """Fail the test, because logging never pauses."""
        raise AssertionError(longest_s)


@pytest.fixture
def stream() -> io.StringIO:
    """Provide the stream to which a test's logs are written."""
    return io.StringIO()


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_who_what_and_with_what(stream: io.StringIO) -> None:
    """A JSON log line has the time, service, logger, level, event and fields."""
    configure_logs(service="agent", form="json", stream=stream, clock=NoonClock())
    get_logger("apportion.agent").info("reported", node="n1", devices=8)
    assert _lines(stream) == [
        {
            "event": "reported",
            "level": "info",
            "logger": "apportion.agent",
            "service": "agent",
            "time": "2026-05-01T12:00:00.000000Z",
            "node": "n1",
            "devices": 8,
        }
    ]


def test_other_libraries_log_the_same_way(stream: io.StringIO) -> None:
    """Warnings of libraries are logged in our format."""
    configure_logs(service="agent", form="json", stream=stream)
    logging.getLogger("nats.aio.client").warning("slow %s", "consumer")
    logging.getLogger("nats.aio.client").info("chatter")
    (line,) = _lines(stream)
    assert (line["event"], line["logger"]) == ("slow consumer", "nats.aio.client")


@pytest.mark.parametrize("form", ["json", "console"])
def test_passwords_are_blanked_wherever_they_hide(stream: io.StringIO, form: str) -> None:
    """Passwords are masked everywhere: in messages, fields, errors, tracebacks and the logs of
    libraries."""
    configure_logs(service="agent", form=form, stream=stream)  # type: ignore[arg-type]
    logger = get_logger("test")
    logger.info(f"connecting to {SECRET}", url=SECRET)  # noqa: G004
    logger.info("connecting to %s", SECRET)
    logger.info("failed", error=ValueError(SECRET), urls=[SECRET], nested={"deep": (SECRET,)})
    logging.getLogger("foreign").warning("to %s", SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError:
        logger.exception("broke")
    assert "s3cret" not in stream.getvalue()
    assert "nats://agent:***@10.0.0.1:4222" in stream.getvalue()


def test_a_line_break_in_a_value_does_not_make_a_second_line(stream: io.StringIO) -> None:
    """If a value has a line break, the log entry is still a single line."""
    configure_logs(service="agent", form="json", stream=stream)
    get_logger("test").info("pod", name='evil\n{"event": "forged"}')
    assert len(_lines(stream)) == 1


def test_whoever_is_named_in_a_traceback_writes_no_line_of_it(stream: io.StringIO) -> None:
    """In readable logs, tracebacks are indented and control characters are escaped. An error
    message therefore cannot forge a log line."""
    configure_logs(service="agent", form="console", stream=stream)
    try:
        raise ValueError("no pod x\n2026-01-01 00:00:00 [error    ] forged\x1b[2J\x9b")
    except ValueError:
        get_logger("test").exception("unexpected", pod="a\nb")
    first, *others = stream.getvalue().splitlines()
    assert r"a\nb" in first
    assert all(line.startswith("    ") for line in others)
    assert others[0].startswith("    Traceback ")
    assert others[-1].endswith(r"forged\x1b[2J\x9b")
    assert "\x1b" not in stream.getvalue()


def test_the_level_holds_back_what_is_below_it(stream: io.StringIO) -> None:
    """Messages below the configured level are not logged."""
    configure_logs(service="agent", level="warning", form="json", stream=stream)
    get_logger("test").info("quiet")
    get_logger("test").warning("loud")
    assert [line["event"] for line in _lines(stream)] == ["loud"]


def test_text_without_a_password_is_left_alone() -> None:
    """Text that has no URL with a password is logged unchanged."""
    for text in ("a@b", "http://host:80/path@x", "nats://127.0.0.1:4222", "mail x:y@z"):
        assert blank_passwords(text) == text
