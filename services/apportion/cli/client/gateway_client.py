"""Send requests to the gateway and decode its answers, with the standard library's HTTP client.

Invariant: an answer has a type of `core.answers.reads` and a limited size, or the verb fails."""

import http.client
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec

from apportion.cli.client.connection import CLUSTER, GATEWAY_TLS, TOKEN_ENV
from apportion.cli.exits import NotFound, NotLetIn, Unanswered, Unreachable, Wrong
from apportion.core.answers.past import HistoryPage
from apportion.core.answers.reads import Answer, ErrorAnswer, Page
from apportion.core.explain.text.printable import escaped
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.tls import ClientTls, explained, files_of

TIMEOUT_S = 40.0  # longer than the gateway waits for a revision
ANSWER_BYTES_MAX = 64 << 20
LIMIT = 1_000
PREFIX = "/api/v1"
LINES = "application/x-ndjson"
REQUEST_BYTES_MAX = 1 << 20  # the gateway takes no larger ones
HTTP_OK, HTTP_NOT_FOUND = 200, 404
HTTP_WRONG = (400, 413)
HTTP_NOT_LET_IN = (401, 403)
HTTP_LATER = (429, 503)
TOKEN_CHARS_MAX = 8_000
PATIENCE_S = 60.0
LOOK_S = 0.5
WAIT_S = 30  # seconds that the gateway may take to catch up with the ledger

A = TypeVar("A", bound=Answer)
P = TypeVar("P", Page[Any], HistoryPage)
T = TypeVar("T")


def at_of(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the parameter `at` of the query, or an empty query if it has none."""
    return {"at": query["at"]} if "at" in query else {}


class Response(Protocol):
    """An answer, with the interface of `http.client.HTTPResponse`."""

    status: int

    def read(self, amt: int, /) -> bytes:
        """Return at most `amt` bytes of the body."""

    def readline(self, limit: int, /) -> bytes:
        """Return the next line with its end, or b"" at the end."""

    def getheader(self, name: str, /) -> str | None:
        """Return a header, or None."""


class Connection(Protocol):
    """A connection to a gateway, with the interface of `http.client.HTTPConnection`."""

    def request(
        self, method: str, url: str, body: bytes | None = ..., headers: Mapping[str, str] = ...
    ) -> None:
        """Send a request, whose answer `getresponse` returns."""

    def getresponse(self) -> Response:
        """Return the answer to the last request."""

    def close(self) -> None:
        """Stop reading the answer, and close the connection."""


class Gateway:
    """A client of one gateway, with one connection. It retries while the gateway is replaying."""

    def __init__(
        self, url: str, *, timeout_s: float = TIMEOUT_S, patience_s: float = PATIENCE_S
    ) -> None:
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._cluster = url == CLUSTER
        self._headers: dict[str, str] = {}
        self._login()  # so that a wrong file is an error at once
        self._open(url)

    def _open(self, url: str) -> None:
        self._connection: Connection
        if url == CLUSTER:
            from apportion.cli.client.through_cluster import ClusterConnection

            self._url, self._connection = "the API server", ClusterConnection(self._timeout_s)
            return
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Wrong(f"--gateway: {url!r} is not a URL; write http://HOST:PORT")
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if parts.scheme == "https":
            try:
                context = ClientTls(files_of(GATEWAY_TLS)).context()
            except ConfigError as error:
                raise Wrong(str(error)) from None
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=self._timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=self._timeout_s
            )

    def _login(self) -> dict[str, str]:
        # A file is read for each request, because tokens expire and are renewed there. A pipe is
        # read once.
        path = os.environ.get(TOKEN_ENV)
        if not path or (self._headers and not Path(path).is_file()):
            return self._headers
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - pathlib cannot stop at a limit
                token = file.read(TOKEN_CHARS_MAX + 1).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Wrong(f"--token {path}: {error}") from None
        if not token.isprintable() or not 0 < len(token) <= TOKEN_CHARS_MAX:
            most = f"at most {TOKEN_CHARS_MAX} characters"
            raise Wrong(f"--token {path}: not a token of {most}")
        if self._cluster:
            from apportion.cli.client.through_cluster import token_header

            self._headers = token_header(token)
        else:
            self._headers = {"Authorization": f"Bearer {token}"}
        return self._headers

    def move(self, url: str) -> None:
        """Use `url` from now on, because a restarted gateway may listen on another port."""
        self._connection.close()
        self._open(url)

    def ask(self, *path: str, answer: type[A], query: Mapping[str, object] | None = None) -> A:
        """Return the answer at `path`. Raises NotFound, Wrong or Unreachable."""
        if "" in path:
            raise Wrong("empty name; `apportion get pods` and `apportion get nodes` list names")
        body = self._get_in_time(path, query or {})
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise Unreachable(
                f"cannot decode the answer of {self._url}: {error}; is it an Apportion gateway of "
                "this version?"
            ) from None

    def text(self, *path: str, query: Mapping[str, object]) -> str:
        """Return the plain text at `path`. Raises the same errors as `ask`."""
        return self._get_in_time(path, query).decode(errors="replace")

    def every(
        self, what: str, item: type[T], query: Mapping[str, object] | None = None
    ) -> Iterator[Page[T]]:
        """Yield every page of one list of the gateway; `what` names the list, such as `pods`."""
        return self.pages(what, answer=Page[item], query=query)  # type: ignore[valid-type]

    def pages(
        self, *path: str, answer: type[P], query: Mapping[str, object] | None = None
    ) -> Iterator[P]:
        """Yield all pages of an answer that has pages."""
        asked = {**(query or {}), "limit": LIMIT}
        while True:
            page = self.ask(*path, answer=answer, query=asked)
            yield page
            if not page.next:
                return
            asked["continue"] = page.next

    def items(
        self, what: str, item: type[T], query: Mapping[str, object] | None = None
    ) -> tuple[int, list[T]]:
        """Return the revision of the last page of the list `what`, and all items of the list."""
        revision, items = 0, list[T]()
        for page in self.every(what, item, query):
            revision = page.revision
            items += page.items
        return revision, items

    def post_for_lines(
        self, *path: str, body: Answer, query: Mapping[str, object] | None = None
    ) -> Iterator[bytes]:
        """Post `body`, and yield the answer's JSON lines. Raises NotFound, Wrong, Unreachable."""
        target = _target(path, query)
        data = msgspec.json.encode(body)
        if len(data) > REQUEST_BYTES_MAX:
            raise Wrong(
                f"the request has {len(data)} bytes, more than {REQUEST_BYTES_MAX}; send fewer "
                "manifests"
            )
        headers = {"Accept": LINES, "Content-Type": "application/json", **self._login()}
        try:
            self._connection.request("POST", target, data, headers)
            response = self._connection.getresponse()
            if response.status != HTTP_OK:
                raise refusal(self._url, response.status, response.read(ANSWER_BYTES_MAX))
            while line := response.readline(ANSWER_BYTES_MAX):
                yield line
        except (http.client.HTTPException, OSError) as error:
            raise _unreachable(self._url, error) from None
        finally:
            self._connection.close()

    def close(self) -> None:
        """Close the connection to the gateway."""
        self._connection.close()

    def _get_in_time(self, path: tuple[str, ...], query: Mapping[str, object]) -> bytes:
        end_s, said = time.monotonic() + self._patience_s, False
        while True:
            status, body, soon = self._get(path, query)
            if status == HTTP_OK:
                return body
            refused = refusal(self._url, status, body)
            if not soon or time.monotonic() > end_s:
                raise refused
            if not said:
                reason = escaped(refused.message)
                click.echo(f"{reason}; retrying for up to {self._patience_s:g} s", err=True)
            said = True
            time.sleep(LOOK_S)

    def _get(self, path: tuple[str, ...], query: Mapping[str, object]) -> tuple[int, bytes, bool]:
        target, headers = _target(path, query), self._login()
        for attempt in (1, 2):
            try:
                self._connection.request("GET", target, headers=headers)
                response = self._connection.getresponse()
                body = response.read(ANSWER_BYTES_MAX + 1)
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                # The gateway may have closed an idle connection.
                if attempt == 1 and not isinstance(error, TimeoutError | ConnectionRefusedError):
                    continue
                raise _unreachable(self._url, error) from None
            if len(body) > ANSWER_BYTES_MAX:
                self._connection.close()
                raise Unreachable(
                    f"the answer of {self._url} is larger than {ANSWER_BYTES_MAX} bytes"
                )
            soon = response.status in HTTP_LATER and response.getheader("Retry-After") is not None
            return response.status, body, soon
        raise AssertionError("the second attempt returns or raises")


def _target(path: tuple[str, ...], query: Mapping[str, object] | None) -> str:
    target = "/".join((PREFIX, *(quote(part, safe="") for part in path)))
    return f"{target}?{urlencode(query)}" if query else target


def _unreachable(url: str, error: Exception) -> Unreachable:
    reason: Any = error
    if tls := explained(error, GATEWAY_TLS):
        return Unreachable(f"cannot verify the gateway at {url}: {tls}")
    ended = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    if url.startswith("https") and ended:
        # A server that rejects the client's certificate usually just closes the connection.
        reason = f"{error}; if it requires a client certificate, set {GATEWAY_TLS}_CERT"
    elif isinstance(error, socket.gaierror):
        reason = f"no such host ({error.strerror})"
    elif isinstance(error, OSError):
        reason = error.strerror or error
    return Unanswered(
        f"cannot reach the gateway at {url}: {reason}; is `apportion up` or `apportion gateway` "
        "running there?"
    )


def refusal(url: str, status: int, body: bytes) -> NotFound | Wrong | Unreachable:
    """Return the exception for an error response of the gateway."""
    try:
        said = msgspec.json.decode(body, type=ErrorAnswer)
    except msgspec.DecodeError:
        return Unreachable(f"{url} returned status {status}; is it an Apportion gateway?")
    return refused(said, status)


def refused(said: ErrorAnswer, status: int) -> NotFound | Wrong | Unreachable:
    """Return the exception for the error that the gateway returned with this HTTP status."""
    text = f"{said.error}; {said.fix}" if said.fix else said.error
    if status == HTTP_NOT_FOUND:
        return NotFound(text, said)
    if status in HTTP_NOT_LET_IN:
        return NotLetIn(text)
    if status not in HTTP_WRONG:
        return Unreachable(text)
    # Name the option instead of the field, if the verb has one of that name.
    context, option = click.get_current_context(silent=True), f"--{said.field}"
    if any(option in param.opts for param in (context.command.params if context else ())):
        about = f"{option}{said.rest}" if said.rest else f"{option}: {said.error}"
        text = f"{about}; {said.fix}" if said.fix else about
    return Wrong(text)
