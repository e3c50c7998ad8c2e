"""What nats-server says of itself on its monitoring port, which no client of the ledger can see.

Invariant: a server that does not say it is no error: whoever asked knows less.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.logs import get_logger

TIMEOUT_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 1 << 20

_log = get_logger(__name__)


def monitor_url(key: str, found: str) -> str:
    """The address of a monitoring port. Raises ConfigError."""
    parts = urlsplit(found)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(key, found, "write http://host:port of nats-server's monitoring port")
    return found.rstrip("/")


async def server_says(url: str) -> Mapping[str, Any]:
    """Its `/varz`; empty without a URL, or where nobody answers in time."""
    if not url:
        return {}
    try:
        said = await asyncio.to_thread(_get, f"{url}/varz")
    except (OSError, http.client.HTTPException, ValueError, msgspec.DecodeError) as error:
        _log.warning("the monitoring port does not answer", url=url, error=str(error))
        return {}
    return said if isinstance(said, dict) else {}


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
        return msgspec.json.decode(answer.read(ANSWER_BYTES_MAX))
