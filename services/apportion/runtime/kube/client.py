"""The Kubernetes API over HTTP: configuration, credentials and transport; bytes in, bytes out.

The only module that knows the client library. Its models are not used: they decode what nobody
reads, and cost more than the API server's own answer. Invariants: a request ends, in an answer or
in `KubeUnavailable`, within its time; an answer has a limit in bytes; a token is read anew when it
is renewed, and is never part of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from kubernetes_asyncio import client, config

from apportion.runtime.process.config import ConfigError

TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 512
ANSWER_BYTES_MAX = 64 << 20
"""One page of a list: 500 objects that etcd limits to 1.5 MiB are far below this."""
LINE_BYTES_MAX = 16 << 20
"""One event of a watch: one object, in JSON."""
HTTP_ERRORS = 400

JSON = "application/json"
MERGE_PATCH = "application/strategic-merge-patch+json"

_load_incluster: Any = config.load_incluster_config
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

    def refusal(self) -> KubeRefused:
        """The answer as an error."""
        return _refusal(self.status, self.body)


class _Status(msgspec.Struct, frozen=True):
    """A `v1` Status."""

    message: str = ""
    reason: str = ""
    code: int = 0


class KubeApi:
    """One API server, as one user."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        # The library's own session looks up the environment's proxies in a thread, at each request.
        self._session = aiohttp.ClientSession(
            connector=self._client.rest_client.pool_manager.connector, connector_owner=False
        )
        self._more: dict[str, Any] = {}
        proxy = configuration.proxy or _environment_proxy(configuration.host)
        if proxy:
            self._more["proxy"] = proxy
        if configuration.tls_server_name:
            self._more["server_hostname"] = configuration.tls_server_name

    @property
    def url(self) -> str:
        """Where the API server is."""
        return str(self._configuration.host)

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

        Raises:
            KubeUnavailable: no answer within `timeout_s`.
        """
        headers = {"Accept": JSON} | ({"Content-Type": content_type} if body is not None else {})
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    method,
                    self._configuration.host + path,
                    params=query,
                    data=body,
                    headers=headers | await self._credentials(),
                    timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
                    **self._more,
                ) as response,
            ):
                return Answer(
                    response.status, await _limited(response), _retry_after_s(response.headers)
                )
        except _FAILURES as error:
            raise _unavailable(method, path, error) from error

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """The body of a GET.

        Raises:
            KubeUnavailable, KubeRefused: there is none.
        """
        answer = await self.request("GET", path, query=query)
        if not answer.ok:
            raise answer.refusal()
        return answer.body

    async def lines(
        self, path: str, query: Mapping[str, str], *, idle_s: float
    ) -> AsyncIterator[bytes]:
        """The lines of an answer that goes on, until the server ends it; an empty one as it begins.

        Raises:
            KubeUnavailable: the connection broke, or was silent for `idle_s`.
            KubeRefused: the server said no at once.
        """
        try:
            async with self._session.request(
                "GET",
                self._configuration.host + path,
                params=query,
                headers={"Accept": JSON} | await self._credentials(),
                timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s),
                **self._more,
            ) as response:
                if response.status >= HTTP_ERRORS:
                    raise _refusal(response.status, await _limited(response))
                yield b""
                async for line in _split(response):
                    yield line
        except _FAILURES as error:
            raise _unavailable("GET", path, error) from error

    async def close(self) -> None:
        """Close every connection to the API server."""
        await self._session.close()
        await self._client.close()

    async def _credentials(self) -> dict[str, str]:
        settings = await self._configuration.auth_settings()
        return {auth["key"]: auth["value"] for auth in settings.values() if auth["value"]}


@asynccontextmanager
async def open_kube(kubeconfig: Path | None, context: str | None) -> AsyncIterator[KubeApi]:
    """The API server that a kubeconfig names, or in a pod its own cluster's.

    Raises:
        ConfigError: there is no usable configuration.
    """
    api = KubeApi(await _configuration(kubeconfig, context))
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
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "--kubeconfig",
            str(kubeconfig or "(the default)"),
            f"is not usable ({error}): name a kubeconfig, or run in a pod with a service account",
        ) from error
    made.connection_pool_maxsize = CONNECTIONS_MAX
    return made


def _in_cluster() -> bool:
    try:
        _load_incluster(client_configuration=client.Configuration())
    except config.ConfigException:
        return False
    return True


def _environment_proxy(host: str) -> str:
    url = urlsplit(host)
    if proxy_bypass(url.hostname or ""):
        return ""
    return getproxies().get(url.scheme, "")


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


async def _split(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole lines; what the connection ends in the middle of is dropped and comes again."""
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
