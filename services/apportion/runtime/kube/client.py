"""Connects to the Kubernetes API over HTTP: configuration, credentials and transport.

Only this module uses the client library, and none of its models, which are slow to decode.
Invariants: a request ends in time, with an answer or `KubeUnavailable`. Answers have a maximum
size. A renewed token is read again, and never appears in a message."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config import kube_config

from apportion.runtime.files.atomic import stamp_of
from apportion.runtime.kube.kubeconfig import check_user
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.config import ConfigError

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 512
ANSWER_BYTES_MAX = 64 << 20  # far above one page of 500 objects, each below 1.5 MiB in etcd
LINE_BYTES_MAX = 16 << 20  # one event of a watch: one object in JSON
HTTP_ERRORS = 400
NOT_FOUND, CONFLICT = 404, 409
TOO_MANY = 429
SERVER_ERROR = 500

JSON = "application/json"
MERGE_PATCH = "application/strategic-merge-patch+json"

_log = logging.getLogger(__name__)
_load_incluster: Any = config.load_incluster_config
_library: Any = kube_config  # which exports nothing by name
# What the library raises for a bad kubeconfig, which it does not validate.
_UNUSABLE = (
    config.ConfigException, _library.yaml.YAMLError,
    OSError, ValueError, KeyError, TypeError, AttributeError,
)  # fmt: skip
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class KubeUnavailable(Exception):
    """Error: the API server cannot be reached or did not answer in time."""


class KubeSilent(KubeUnavailable):
    """Error: a streamed answer was silent for too long, so the connection may be dead."""


class KubeRefused(Exception):
    """Error: the API server refused, with HTTP `status` and Kubernetes' `reason` and `message`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def passing(self) -> bool:
        """Return True if a retry may succeed, because the server failed or is overloaded."""
        return self.status == TOO_MANY or self.status >= SERVER_ERROR


class Answer(msgspec.Struct, frozen=True):
    """An answer of the API server. `retry_after_s` is 0 without a Retry-After header."""

    status: int
    body: bytes
    retry_after_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Return True if the request succeeded."""
        return self.status < HTTP_ERRORS

    @property
    def passing(self) -> bool:
        """Return True if a retry may succeed, because the server failed or is overloaded."""
        return self.status == TOO_MANY or self.status >= SERVER_ERROR

    def refusal(self) -> KubeRefused:
        """Return this answer as an error to raise."""
        return _refusal(self.status, self.body)


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0


class Renewal(Protocol):
    """A source of client configuration that may change, such as a kubeconfig file."""

    async def newer(self) -> Any | None:
        """Return the new configuration, or None if it has not changed."""


class _Connection:
    def __init__(self, configuration: Any) -> None:
        self.url = str(configuration.host)
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        # The library's own session looks up proxies in a thread for each request.
        self.session = aiohttp.ClientSession(
            connector=self._client.rest_client.pool_manager.connector, connector_owner=False
        )
        self.more: dict[str, Any] = {}
        proxy, url = configuration.proxy, urlsplit(configuration.host)
        if not proxy and not proxy_bypass(url.hostname or ""):
            proxy = getproxies().get(url.scheme, "")
        if proxy:
            self.more["proxy"] = proxy
        if configuration.tls_server_name:
            self.more["server_hostname"] = configuration.tls_server_name

    async def credentials(self) -> dict[str, str]:
        settings = await self._configuration.auth_settings()
        return {auth["key"]: auth["value"] for auth in settings.values() if auth["value"]}

    async def close(self) -> None:
        await self.session.close()
        await self._client.close()


class KubeApi:
    """A client of one API server as one user. It always uses the newest configuration."""

    def __init__(self, configuration: Any, renewal: Renewal | None = None) -> None:
        self._connection = _Connection(configuration)
        self._before: _Connection | None = None  # for its last requests, until the next change
        self._renewal = renewal

    @property
    def url(self) -> str:
        """Return the URL of the API server."""
        return self._connection.url

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Send a request and return the answer, even a refusal. Raises KubeUnavailable."""
        headers = {"Accept": JSON} | ({"Content-Type": content_type} if body is not None else {})
        use = await self._newest()
        try:
            async with (
                asyncio.timeout(timeout_s),
                use.session.request(
                    method,
                    use.url + path,
                    params=query,
                    data=body,
                    headers=headers | await use.credentials(),
                    timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
                    **use.more,
                ) as response,
            ):
                after = response.headers.get("Retry-After", "")
                after_s = float(after) if after.isdecimal() and len(after) < 5 else 0.0  # noqa: PLR2004
                return Answer(response.status, await _limited(response), after_s)
        except _FAILURES as error:
            raise _unavailable(method, path, error) from error

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Send a GET and return the answer's body. Raises KubeUnavailable, KubeRefused."""
        answer = await self.request("GET", path, query=query)
        if not answer.ok:
            raise answer.refusal()
        return answer.body

    async def find(self, path: str) -> bytes | None:
        """Send a GET and return the body, or None on 404. Raises KubeUnavailable, KubeRefused."""
        try:
            return await self.get(path)
        except KubeRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def change(
        self,
        method: str,
        path: str,
        document: object,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Send a document and return the answer's body. Raises KubeRefused, KubeUnavailable."""
        answer = await self.request(
            method, path, query=query, body=msgspec.json.encode(document),
            content_type=content_type, timeout_s=timeout_s,
        )  # fmt: skip
        if not answer.ok:
            raise answer.refusal()
        return answer.body

    async def lines(
        self, path: str, query: Mapping[str, str], *, idle_s: float
    ) -> AsyncIterator[bytes]:
        """Yield an empty line once connected, then the lines of a streamed answer until it ends.

        Raises KubeRefused, KubeSilent after `idle_s` without data, or KubeUnavailable."""
        use = await self._newest()
        try:
            async with use.session.request(
                "GET",
                use.url + path,
                params=query,
                headers={"Accept": JSON} | await use.credentials(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s),
                **use.more,
            ) as response:
                if response.status >= HTTP_ERRORS:
                    raise _refusal(response.status, await _limited(response))
                yield b""
                async for line in _lines(response):
                    yield line
        except aiohttp.SocketTimeoutError as error:
            raise KubeSilent(f"GET {path}: no data for {idle_s:g} s") from error
        except _FAILURES as error:
            raise _unavailable("GET", path, error) from error

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        silent_s: float = TIMEOUT_S,
    ) -> "Exchange":
        """Send a request and return once the status is known. Raises KubeUnavailable.

        `silent_s` limits each wait for data. The caller closes the answer. Credentials of the
        kubeconfig replace an Authorization header."""
        use = await self._newest()
        try:
            response = await use.session.request(
                method,
                use.url + path,
                data=body,
                headers={**headers} | await use.credentials(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=silent_s),
                allow_redirects=False,
                **use.more,
            )
        except _FAILURES as error:
            raise _unavailable(method, path, error) from error
        return Exchange(response, method, path)

    async def close(self) -> None:
        """Close all connections to the API server."""
        for each in (self._before, self._connection):
            if each is not None:
                await each.close()

    async def _newest(self) -> _Connection:
        newer = None if self._renewal is None else await self._renewal.newer()
        if newer is not None:
            old, self._before = self._before, self._connection
            self._connection = _Connection(newer)
            if old is not None:
                await old.close()
        return self._connection


class Exchange:
    """An answer of the API server that can be read while the server still sends it."""

    def __init__(self, response: aiohttp.ClientResponse, method: str, path: str) -> None:
        self.status = response.status
        self._response = response
        self._method, self._path = method, path
        self._lines = _lines(response)

    def header(self, name: str) -> str | None:
        """Return a header of the answer, or None."""
        return self._response.headers.get(name)

    async def read(self) -> bytes:
        """Return the whole body. Raises KubeUnavailable."""
        try:
            return await _limited(self._response)
        except _FAILURES as error:
            raise _unavailable(self._method, self._path, error) from error

    async def line(self) -> bytes | None:
        """Return the next line without its end, or None at the end. Raises KubeUnavailable."""
        try:
            return await anext(self._lines, None)
        except _FAILURES as error:
            raise _unavailable(self._method, self._path, error) from error

    def close(self) -> None:
        """Stop reading; the connection is used again if the whole answer was read."""
        self._response.release()


class KubeconfigFile:
    """A kubeconfig file that may be rewritten. An unusable rewrite is ignored."""

    def __init__(self, path: Path, context: str | None) -> None:
        self._path, self._context = path, context
        self._seen = stamp_of(path)

    async def newer(self) -> Any | None:
        """Return the new configuration, or None if it has not changed; see Renewal."""
        stamp = stamp_of(self._path)
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            made = await _configuration(self._path, self._context)
        except ConfigError as error:
            _log.warning("keeping the previous credentials: %s", error)
            return None
        _log.info("%s changed, reloaded", self._path)
        return made


@asynccontextmanager
async def open_kube(kubeconfig: Path | None, context: str | None) -> AsyncIterator[KubeApi]:
    """Connect to the API server of a kubeconfig or of our own pod. Raises ConfigError."""
    file = _file_of(kubeconfig, context)
    renewal = None if file is None else KubeconfigFile(file, context)
    api = KubeApi(await _configuration(kubeconfig, context), renewal)
    try:
        yield api
    finally:
        await api.close()


def _file_of(kubeconfig: Path | None, context: str | None) -> Path | None:
    if kubeconfig is not None or (context is None and _in_cluster()):
        return kubeconfig
    given = os.environ.get("KUBECONFIG", "")
    # Several files are not followed.
    return None if os.pathsep in given else Path(given or "~/.kube/config").expanduser()


async def _configuration(kubeconfig: Path | None, context: str | None) -> Any:
    made = client.Configuration()
    try:
        if kubeconfig is None and context is None and _in_cluster():
            _load_incluster(client_configuration=made)
        else:
            await config.load_kube_config(
                config_file=str(kubeconfig) if kubeconfig else None,
                context=context,
                client_configuration=made,
            )
    except _UNUSABLE as error:
        raise ConfigError(
            "--kubeconfig",
            str(kubeconfig or ""),
            f"no cluster configuration can be loaded ({error}): name a kubeconfig, or run in a pod "
            "with a service account",
        ) from error
    if kubeconfig is not None or context is not None or not _in_cluster():
        check_user(kubeconfig, context)
    made.connection_pool_maxsize = CONNECTIONS_MAX
    return made


def _in_cluster() -> bool:
    try:
        _load_incluster(client_configuration=client.Configuration())
    except config.ConfigException:
        return False
    return True


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"the answer exceeds {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # Whole lines only: the server sends an interrupted one again.
    rest: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        *lines, last = part.split(b"\n")
        for line in lines:
            yield b"".join(rest) + line if rest else line
            rest, size = [], 0
        if last:
            rest.append(last)
            size += len(last)
            if size > LINE_BYTES_MAX:
                raise ValueError(f"an event exceeds {LINE_BYTES_MAX} bytes")


def _refusal(status: int, body: bytes) -> KubeRefused:
    try:
        said = msgspec.json.decode(body, type=_Status)
    except msgspec.MsgspecError:
        said = _Status(message=body[:200].decode(errors="replace"))
    return KubeRefused(status, said.reason, said.message[:1000])


def _unavailable(method: str, path: str, error: BaseException) -> KubeUnavailable:
    said = str(error) or type(error).__name__
    return KubeUnavailable(f"{method} {path}: no answer from the API server ({said})")


def pod_path(namespace: str, name: str) -> str:
    """Return the API path of a pod, with the untrusted names quoted."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


EVERY_S = 5.0
VERSION = "/version"  # readable by every authenticated user (ClusterRole `system:discovery`)


class Reach:
    """Checks regularly that the API server answers, for services that only write to it."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self.problem = "the API server has not answered yet"

    def not_ready(self) -> list[str]:
        """Return why the service is not ready; empty if the API server answers."""
        return [self.problem] if self.problem else []

    async def run(self) -> None:
        """Request the server's version every few seconds, until cancelled."""
        while True:
            try:
                await self._api.get(VERSION)
            except (KubeUnavailable, KubeRefused) as error:
                self.problem = f"the API server is unreachable: {error}"
            else:
                self.problem = ""
            await self._clock.pause(EVERY_S)
