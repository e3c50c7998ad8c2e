"""Where browsers reach the gateway: behind a proxy that ends TLS nothing of a request tells it.

Invariant: an origin is written as browsers write it, so that it can be compared as it is.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from apportion.runtime.process.config import ConfigError

KEY = "--public-url"
_USUAL_PORTS = {"https": 443, "http": 80}
_HOST = re.compile(r"[a-z0-9._:-]+")
"""In the letters of ASCII, in which browsers name a host of others too (`xn--…`)."""
_FIX = "write scheme, host and, if need be, port, as in https://apportion.example.com"


class PublicUrl(msgspec.Struct, frozen=True):
    """The origin of the console's pages, as a browser names it."""

    origin: str

    @property
    def secure(self) -> bool:
        """Whether browsers come over HTTPS."""
        return self.origin.startswith("https:")


def parse_public_url(found: str) -> PublicUrl:
    """The URL that somebody gave. Raises ConfigError."""
    try:
        url = urlsplit(found)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise ConfigError(KEY, found, f"{error}; {_FIX}") from None
    if url.scheme not in _USUAL_PORTS or not _HOST.fullmatch(host) or port == 0:
        raise ConfigError(KEY, found, _FIX)
    if url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise ConfigError(KEY, found, f"the console is at the root of its host; {_FIX}")
    name = f"[{host}]" if ":" in host else host
    written = "" if port in {None, _USUAL_PORTS[url.scheme]} else f":{port}"
    return PublicUrl(f"{url.scheme}://{name}{written}")
