"""The Kubernetes API over HTTP: configuration, credentials and transport; bytes in, bytes out.

The only module that knows the client library. Its models are not used: they decode what nobody
reads, and cost more than the API server's own answer. Invariants: a request ends, in an answer or
in `KubeUnavailable`, within its time; an answer has a limit in bytes; a token is read anew when it
is renewed, and is never part of a message."""

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

from apportion.runtime.process.clock import Clock
from apportion.runtime.process.config import ConfigError

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 512
ANSWER_BYTES_MAX = 64 << 20
"""One page of a list: 500 objects that etcd limits to 1.5 MiB are far below this."""
LINE_BYTES_MAX = 16 << 20
"""One event of a watch: one object, in JSON."""
HTTP_ERRORS = 400
NOT_FOUND, CONFLICT = 404, 409
TOO_MANY = 429
SERVER_ERROR = 500

JSON = "application/json"
MERGE_PATCH = "application/strategic-merge-patch+json"

_log = logging.getLogger(__name__)
_load_incluster: Any = config.load_incluster_config
_library: Any = kube_config  # which exports nothing by name
_UNUSABLE = (
    config.ConfigException, _library.yaml.YAMLError,
    OSError, ValueError, KeyError, TypeError, AttributeError,
)  # fmt: skip
"""What the library raises of a kubeconfig, which it reads without looking at it first."""
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class KubeUnavailable(Exception):
    """No answer: the API server cannot be reached, or did not answer in time."""


class KubeRefused(Exception):
    """The API server said no. `status` is HTTP's; `reason` and `message` are Kubernetes'."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Answer(msgspec.Struct, frozen=True):
    """What the API server answered, whatever it was. `retry_after_s` is 0 where it says nothing."""

    status: int
    body: bytes
    retry_after_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the request was done."""
        return self.status < HTTP_ERRORS

    @property
    def passing(self) -> bool:
        """Whether the server has too much to do, or failed: the same may be done later."""
        return self.status == TOO_MANY or self.status >= SERVER_ERROR

    def refusal(self) -> KubeRefused:
        """The answer as an error."""
        return _refusal(self.status, self.body)


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0


class Renewal(Protocol):
    """Where a configuration comes from, which may be another one by now."""

    async def newer(self) -> Any | None:
        """The configuration as it is now; None while it is as it was given last."""


class _Connection:
    """One configuration: its address, its credentials and its connections."""

    def __init__(self, configuration: Any) -> None:
        self.url = str(configuration.host)
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        # The library's own session looks up the environment's proxies in a thread, at each request.
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
        """The headers that say who asks."""
        settings = await self._configuration.auth_settings()
        return {auth["key"]: auth["value"] for auth in settings.values() if auth["value"]}

    async def close(self) -> None:
        """End every request under way."""
        await self.session.close()
        await self._client.close()


class KubeApi:
    """One API server, as one user; both may be others once the configuration is.

    What is under way when it changes ends as it began: the connections of before are closed when it
    changes again."""

    def __init__(self, configuration: Any, renewal: Renewal | None = None) -> None:
        self._connection = _Connection(configuration)
        self._before: _Connection | None = None
        self._renewal = renewal

    @property
    def url(self) -> str:
        """Where the API server is."""
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
        """One request and its whole answer; a refusal is an answer too.

        Raises KubeUnavailable: no answer within `timeout_s`."""
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
                return Answer(
                    response.status, await _limited(response), _retry_after_s(response.headers)
                )
        except _FAILURES as error:
            raise _unavailable(method, path, error) from error

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """The body of a GET.

        Raises KubeUnavailable, KubeRefused: there is none."""
        answer = await self.request("GET", path, query=query)
        if not answer.ok:
            raise answer.refusal()
        return answer.body

    async def find(self, path: str) -> bytes | None:
        """The body of a GET; None where there is no such object.

        Raises KubeUnavailable, KubeRefused: that is not known."""
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
        """The body of the answer to a request with this document.

        Raises KubeUnavailable, KubeRefused: it was not done, or that is not known."""
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
        """The lines of an answer that goes on, until the server ends it; an empty one as it begins.

        Raises KubeUnavailable: the connection broke, or was silent for `idle_s`. Raises
        KubeRefused: the server said no at once."""
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
                # Whole lines; what the connection ends in the middle of is dropped and comes again.
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
                            raise ValueError(f"one event has more than {LINE_BYTES_MAX} bytes")
        except _FAILURES as error:
            raise _unavailable("GET", path, error) from error

    async def close(self) -> None:
        """Close every connection to the API server."""
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


class KubeconfigFile:
    """A kubeconfig that somebody may rewrite, as who renews tokens and certificates does.

    Invariant: what cannot be used, as half a file, changes nothing until it is whole."""

    def __init__(self, path: Path, context: str | None) -> None:
        self._path, self._context = path, context
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    async def newer(self) -> Any | None:
        """See Renewal."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            made = await _configuration(self._path, self._context)
        except ConfigError as error:
            _log.warning("the credentials stay as they were: %s", error)
            return None
        _log.info("%s was rewritten, and is read anew", self._path)
        return made


@asynccontextmanager
async def open_kube(kubeconfig: Path | None, context: str | None) -> AsyncIterator[KubeApi]:
    """The API server that a kubeconfig names, or in a pod its own cluster's.

    Raises ConfigError: there is no usable configuration."""
    file = _file_of(kubeconfig, context)
    renewal = None if file is None else KubeconfigFile(file, context)
    api = KubeApi(await _configuration(kubeconfig, context), renewal)
    try:
        yield api
    finally:
        await api.close()


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
            str(kubeconfig or "(the default)"),
            f"is not usable ({error}): name a kubeconfig, or run in a pod with a service account",
        ) from error
    made.connection_pool_maxsize = CONNECTIONS_MAX
    return made


def _file_of(kubeconfig: Path | None, context: str | None) -> Path | None:
    """The one file that the configuration is read from; None in a pod, and where there are more."""
    if kubeconfig is not None:
        return kubeconfig
    if context is None and _in_cluster():
        return None
    given = os.environ.get("KUBECONFIG", "")
    if os.pathsep in given:
        return None
    return Path(given or "~/.kube/config").expanduser()


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
            raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


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
    """The path of a pod in the API, whatever its names are: they come from outside."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _retry_after_s(headers: Mapping[str, str]) -> float:
    value = headers.get("Retry-After", "")
    return float(value) if value.isdecimal() and len(value) < 5 else 0.0  # noqa: PLR2004


EVERY_S = 5.0
VERSION = "/version"
"""What anybody with credentials may read (the ClusterRole `system:discovery`)."""


class Reach:
    """Asks now and then; `problem` is why the server is out of reach, or empty.

    For services that ask the API server only when there is something to do: a watch notices when it
    breaks, but a service that only writes would notice too late."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self.problem = "the API server has not answered yet"

    def not_ready(self) -> list[str]:
        """Why the service is not ready; empty in reach of the API server."""
        return [self.problem] if self.problem else []

    async def run(self) -> None:
        """Ask the server for its version every few seconds, until cancelled."""
        while True:
            try:
                await self._api.get(VERSION)
            except (KubeUnavailable, KubeRefused) as error:
                self.problem = f"the API server is out of reach: {error}"
            else:
                self.problem = ""
            await self._clock.pause(EVERY_S)
