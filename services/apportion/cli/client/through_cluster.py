"""Reach the gateway through the API server's service proxy, with the credentials of a kubeconfig.

The API server keeps the Authorization header for itself and does not pass on who the user is. So
the gateway's token travels in the cookie that the gateway also accepts from the console.
Invariant: the credentials of the kubeconfig are sent to the API server only, and the gateway's
token is no credential for the API server."""

import asyncio
import atexit
import os
import re
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from apportion.cli.exits import NotLetIn, Unanswered, Unreachable, Wrong
from apportion.runtime.kube.kubeconfig import Chosen, choose
from apportion.runtime.process.config import ConfigError

if TYPE_CHECKING:
    from apportion.runtime.kube.client import Exchange, KubeApi

CONTEXT_ENV = "APPORTION_CONTEXT"
SERVICE_ENV = "APPORTION_GATEWAY_SERVICE"
SERVICE_FORM = "[NAMESPACE/][SCHEME:]NAME[:PORT]"
LABELS = "app.kubernetes.io/name=apportion,app.kubernetes.io/component=gateway"
COOKIE = "apportion_token"
ROLE = "apportion-kubectl"
# The characters of a bearer token (RFC 6750). None of them needs quotes in a cookie.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SERVICE = re.compile(
    rf"(?:(?P<namespace>{_LABEL})/)?(?:(?P<scheme>https?):)?(?P<name>{_LABEL})(?::(?P<port>{_LABEL}))?"
)
SERVICES_SHOWN = 3
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_MANY, UNAVAILABLE = 401, 403, 404, 429, 503
ERRORS = 400
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
T = TypeVar("T")


class Service(msgspec.Struct, frozen=True):
    """The Service of the gateway. The defaults are those of the chart.

    With a port number, the API server answers 404 if the Service does not exist. With a port's
    name, it would answer 503, as for a Service without endpoints."""

    namespace: str = "apportion"
    scheme: str = "http"
    name: str = "gateway"
    port: str = "8470"

    @property
    def resource(self) -> str:
        """Return the name of the Service in the API path, and in the resourceNames of a role."""
        return f"{self.scheme}:{self.name}:{self.port}"

    @property
    def path(self) -> str:
        """Return the API path under which the API server passes requests on."""
        return f"/api/v1/namespaces/{self.namespace}/services/{self.resource}/proxy"


def read_service(text: str) -> Service:
    """Return the Service that `text` names. Raises Wrong."""
    found = _SERVICE.fullmatch(text)
    if found is None:
        raise Wrong(f"--gateway-service: {text!r} is not a Service; write {SERVICE_FORM}")
    return Service(**{key: value for key, value in found.groupdict().items() if value})


def token_header(token: str) -> dict[str, str]:
    """Return the header that carries the gateway's token past the API server. Raises Wrong."""
    if not _TOKEN.fullmatch(token):
        raise Wrong("--token: the file has invalid characters; write only the token into it")
    return {"Cookie": f"{COOKIE}={token}"}


class _Status(msgspec.Struct, frozen=True):
    """An error of the API server itself. The gateway's errors have no field `kind`."""

    kind: str = ""
    message: str = ""


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    port: int
    app_protocol: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _Spec(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] = ()


class _Item(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()

    @property
    def service(self) -> Service:
        port = self.spec.ports[0] if self.spec.ports else _Port(8470)
        scheme = "https" if port.app_protocol == "https" else "http"
        return Service(self.metadata.namespace, scheme, self.metadata.name, str(port.port))


class _Items(msgspec.Struct, frozen=True):
    items: tuple[_Item, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    status: int
    exchange: Any
    body: bytes | None  # of an error; otherwise it is read later


class _Cluster:
    """A client of one API server, whose requests run in a thread with an event loop."""

    def __init__(self) -> None:
        given = os.environ.get(SERVICE_ENV, "")
        self.service = read_service(given) if given else Service()
        self._seek = not given
        self.chosen: Chosen | None = None
        self._api: KubeApi | None = None
        self._open = AsyncExitStack()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        atexit.register(self.end)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def drop(self, exchange: "Exchange") -> None:
        """Stop reading an answer, in the thread of the event loop."""
        self._loop.call_soon_threadsafe(exchange.close)

    def end(self) -> None:
        """Close the connections and stop the thread."""
        atexit.unregister(self.end)
        if self._pid == os.getpid():  # a fork has no such thread
            self.do(self._open.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str],
        silent_s: float,
    ) -> _Answer:  # fmt: skip
        """Send one request to the gateway. Raises Unreachable if the API server refuses it."""
        from apportion.runtime.kube.client import KubeUnavailable

        api, renewed = await self._connected(), False
        while True:
            try:
                exchange = await api.exchange(
                    method, self.service.path + target, headers=headers, body=body,
                    silent_s=silent_s,
                )  # fmt: skip
                if exchange.status < ERRORS:
                    return _Answer(exchange.status, exchange, None)
                answer = await exchange.read()
            except KubeUnavailable as error:
                fix = "check the kubeconfig's `server`, or try `kubectl version`"
                raise Unanswered(f"{error}; {fix}") from None
            exchange.close()
            try:
                said = msgspec.json.decode(answer, type=_Status)
            except msgspec.DecodeError:
                said = None
            if said is None or said.kind != "Status":  # an error of the gateway
                return _Answer(exchange.status, exchange, answer)
            if exchange.status != UNAUTHORIZED or renewed:
                raise self._refused(
                    exchange.status, said.message, await self._labelled(exchange.status)
                )
            api, renewed = await self._connected(renew=True), True  # a credential may have expired

    async def _connected(self, *, renew: bool = False) -> "KubeApi":
        if self._api is None or renew:
            from apportion.runtime.kube.client import open_kube

            await self._open.aclose()
            try:
                self.chosen = choose(os.environ.get(CONTEXT_ENV) or None)
                opened = open_kube(self.chosen.path, self.chosen.context or None)
                self._api = await self._open.enter_async_context(opened)
            except ConfigError as error:
                raise Wrong(str(error)) from None
        return self._api

    async def _labelled(self, status: int) -> str:
        """Return the Services with the chart's labels, as a hint if no Service has this name.

        Anyone may label a Service, so the token goes only to a Service that the user names."""
        from apportion.runtime.kube.client import KubeRefused, KubeUnavailable

        if not self._seek or self._api is None or status not in {FORBIDDEN, NOT_FOUND}:
            return ""
        try:
            body = await self._api.get("/api/v1/services", {"labelSelector": LABELS})
            items = msgspec.json.decode(body, type=_Items).items
        except (KubeRefused, KubeUnavailable, msgspec.DecodeError):
            return ""
        found = {item.service for item in items} - {self.service}
        names = sorted(f"{each.namespace}/{each.resource}" for each in found)[:SERVICES_SHOWN]
        return f" (perhaps {', '.join(names)})" if names else ""

    def _refused(self, status: int, said: str, labelled: str) -> Unreachable:
        service, context = self.service, self.chosen.context if self.chosen else ""
        at = f"service {service.namespace}/{service.name}"
        other = f"set --gateway-service {SERVICE_FORM} or {SERVICE_ENV}{labelled}"
        if status == UNAUTHORIZED:
            return NotLetIn(
                f"the API server rejects the credentials of context {context!r}: {said}; renew "
                "them, so that `kubectl auth whoami` works"
            )
        if status == FORBIDDEN:
            return NotLetIn(
                f"{at}: {said}; allow get and create of services/proxy with resourceNames "
                f"[{service.resource!r}] in namespace {service.namespace}, for example with "
                f"`kubectl -n {service.namespace} create rolebinding NAME --role {ROLE} --user "
                f"USER`; if the gateway runs elsewhere, {other}"
            )
        if status == NOT_FOUND:
            return Unreachable(
                f"{at}: {said}; install Apportion in context {context!r}, or {other}"
            )
        if status == UNAVAILABLE:
            return Unanswered(
                f"{at}: {said}; check `kubectl -n {service.namespace} get pods -l "
                f"app={service.name}`. If the gateway serves HTTPS, set --gateway-service "
                f"{service.namespace}/https:{service.name}:{service.port}"
            )
        failed = Unanswered if status == TOO_MANY else Unreachable
        return failed(f"{at}: the API server returned status {status}: {said}")


CLUSTERS: dict[int, _Cluster] = {}  # by process id, because a fork needs its own


def _cluster() -> _Cluster:
    return CLUSTERS.get(os.getpid()) or CLUSTERS.setdefault(os.getpid(), _Cluster())


class Response:
    """An answer of the gateway, with the methods of http.client that our client uses."""

    def __init__(self, cluster: _Cluster, answer: _Answer) -> None:
        self.status = answer.status
        self._cluster = cluster
        self._exchange: Exchange = answer.exchange
        self._body = answer.body

    def getheader(self, name: str) -> str | None:
        """Return a header, or None."""
        return self._exchange.header(name)

    def read(self, amt: int) -> bytes:
        """Return at most `amt` bytes of the body. Raises Unanswered."""
        if self._body is not None:
            return self._body[:amt]
        return self._do(self._exchange.read())[:amt]

    def readline(self, limit: int) -> bytes:
        """Return the next line with its end, or b"" at the end. Raises Unanswered."""
        line = self._do(self._exchange.line())
        return b"" if line is None else (line + b"\n")[:limit]

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        from apportion.runtime.kube.client import KubeUnavailable

        try:
            return self._cluster.do(work)
        except KubeUnavailable as error:
            raise Unanswered(f"{error}; run it again") from None


class ClusterConnection:
    """A connection to the gateway, with the methods of http.client that our client uses."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._answer: _Answer | None = None

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """Send a request. Raises Unreachable, or Wrong if the kubeconfig cannot be used."""
        cluster = _cluster()
        self._answer = cluster.do(cluster.ask(method, url, body, headers, self._timeout_s))

    def getresponse(self) -> Response:
        """Return the answer to the last request."""
        assert self._answer is not None  # noqa: S101 - request() comes first
        return Response(_cluster(), self._answer)

    def close(self) -> None:
        """Stop reading the last answer. The connection to the API server stays open."""
        if self._answer is not None:
            _cluster().drop(self._answer.exchange)
            self._answer = None
