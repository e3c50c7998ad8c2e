"""Logs: one event per line on stderr, for people or as JSON.

Invariants: only this module uses structlog. Passwords in URLs are blanked. Every line that is not
indented is one event: line breaks in names and errors are escaped, and tracebacks are indented."""

import logging
import re
import sys
from typing import TextIO

from apportion.core.explain.text.printable import escaped
from apportion.runtime.process.clock import Clock, SystemClock, rfc3339
from apportion.runtime.process.config import LogFormat, LogLevel

# structlog would import rich for coloured tracebacks, which costs each service 4 MB and each verb
# 40 ms. Hide it during this import; modules that need rich for tables can still import it.
_rich = sys.modules.pop("rich", None)
sys.modules["rich"] = None  # type: ignore[assignment]  # makes the import fail
import structlog  # noqa: E402
from structlog.typing import EventDict, Processor, WrappedLogger  # noqa: E402

del sys.modules["rich"]
if _rich is not None:
    sys.modules["rich"] = _rich

Logger = structlog.stdlib.BoundLogger

_URL_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^@/\s]+@")
_MANY_LINES = ("exception", "stack")
_QUIET = ("asyncio", "aiohttp.access", "nats")


def get_logger(name: str) -> Logger:
    """Return a logger. Its `bind` adds fields to all its lines."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


def blank_passwords(text: str) -> str:
    """Replace the password of every URL in `text` with `***`."""
    return _URL_PASSWORD.sub(r"\1***@", text)


def configure_logs(
    *,
    service: str,
    level: LogLevel = "info",
    form: LogFormat = "console",
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Send all logs of this process to `stream` (stderr), marked with `service`."""
    sink = stream or sys.stderr
    time = clock or SystemClock()
    render: Processor = structlog.processors.JSONRenderer(default=str)
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=sink.isatty())

    def stamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["time"] = rfc3339(time.now())
        event["service"] = service
        return event

    def blanked(logger: WrappedLogger, method: str, event: EventDict) -> str:
        shown = one_event_a_line(event) if form == "console" else event  # JSON escapes by itself
        return blank_passwords(str(render(logger, method, shown)))

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        stamp,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, blanked],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def one_event_a_line(event: EventDict) -> EventDict:
    """Escape the texts of an event so that each text fits on one line."""
    shown: EventDict = {}
    for key, value in event.items():
        text = value if isinstance(value, str) else None
        if text is not None and key in _MANY_LINES:
            lines = (escaped(line, keep="\t") for line in text.splitlines())
            shown[key] = "\n".join(f"    {line}" for line in lines)
        else:
            shown[key] = value if text is None else escaped(text)
    return shown
