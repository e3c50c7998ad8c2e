"""Reviews ServiceAccount tokens at the API server, which returns account, pod and node.

Invariants: a token counts only if the API server accepts it for our audience. The node is the node
of the token's pod. A host whose tokens are refused gets one review per second. This delays no other
host, and no client that was accepted before. One token opens a limited number of connections."""

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from apportion.callout.claims import payload_of
from apportion.core.identity.bearers import Bearer
from apportion.runtime.kube.client import KubeApi
from apportion.runtime.service.limits import Bucket, client_of

REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
TOKEN_BYTES_MAX: Final = 16 << 10
TIMEOUT_S: Final = 5.0
# Refused reviews per host; reviews in progress are not counted yet.
REFUSED_PER_S: Final = 1.0
REFUSED_BURST: Final = 16.0
REFUSED_KEPT_S: Final = 5.0  # short, because an API server may learn of a new pod a little later
# Connections opened per token. Each ends within an hour, so at most 124 are open at a time.
OPENED_PER_S: Final = 1 / 60
OPENED_BURST: Final = 64.0
KEPT_MAX: Final = 8_192
_ACCOUNT: Final = "system:serviceaccount:"
_EXTRA: Final = "authentication.kubernetes.io/"


class NoToken(ValueError):
    """The error for a refused token. The message has the reason but not the token."""


class Limited(Exception):
    """The error for a token that is not reviewed, after too many refusals or connections."""


class Reviewed(Struct, frozen=True):
    """A reviewed token: its account, pod and node, and when it expires (Unix time)."""

    bearer: Bearer
    ends_s: float


class _User(Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _Status(Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: list[str] = []
    error: str = ""


class _Review(Struct, frozen=True):
    status: _Status = _Status()


class _Ending(Struct, frozen=True):
    exp: float


class _Meta(Struct, frozen=True):
    uid: str = ""


class _Spec(Struct, frozen=True):
    node: str = msgspec.field(default="", name="nodeName")


class _Pod(Struct, frozen=True):
    metadata: _Meta
    spec: _Spec


_Client = tuple[str, str]  # host and user; the user is empty for all that were not accepted yet
K = TypeVar("K")
V = TypeVar("V")


class Tokens:
    """Reviews tokens of one audience at one API server."""

    def __init__(
        self, api: KubeApi, audience: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._audience = audience
        self._now = now
        self._buckets: OrderedDict[_Client, Bucket] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._known: OrderedDict[_Client, None] = OrderedDict()
        self._opened: OrderedDict[bytes, Bucket] = OrderedDict()

    async def review(self, token: str, host: str = "", user: str = "") -> Reviewed:
        """Return the identity behind the token that `user` on `host` sent.

        Raises NoToken if the token is refused. Raises Limited after too many refusals for the host,
        or too many connections with the token. Raises KubeRefused or KubeUnavailable if the API
        server does not answer."""
        if len(token) > TOKEN_BYTES_MAX:
            raise NoToken(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
        try:
            ends_s = msgspec.json.decode(payload_of(token.encode()), type=_Ending).exp
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise NoToken("expected an expiring ServiceAccount token") from None
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        until_s, why = self._refused.get(digest, (0.0, ""))
        if self._now() < until_s:
            raise NoToken(why)
        if self._bucket_of(host, user).take(0, self._now()) > 0:
            raise Limited(host)
        opened = self._opened.get(digest)
        if opened is not None and not opened.may_take(1, self._now()):
            raise Limited(host)
        try:
            reviewed = await self._reviewed(token, ends_s)
        except NoToken as error:
            self.charge(host, user)
            _keep(self._refused, digest, (self._now() + REFUSED_KEPT_S, str(error)))
            raise
        opened = self._opened.get(digest) or Bucket(OPENED_PER_S, OPENED_BURST - 1, self._now())
        _keep(self._opened, digest, opened)
        return reviewed

    def charge(self, host: str, user: str) -> None:
        """Count a refusal against the rate limit of the host; after `let_in`, of the user there.

        Call it if a valid token is refused, for example because its account has no role."""
        self._bucket_of(host, user).take(1, self._now())

    def let_in(self, host: str, user: str) -> None:
        """From now on, count refusals of this user separately from other users on the host."""
        _keep(self._known, (client_of(host), user), None)

    def _bucket_of(self, host: str, user: str) -> Bucket:
        client = client_of(host)
        key = (client, user if (client, user) in self._known else "")
        bucket = self._buckets.get(key) or Bucket(REFUSED_PER_S, REFUSED_BURST, self._now())
        _keep(self._buckets, key, bucket)
        return bucket

    async def _reviewed(self, token: str, ends_s: float) -> Reviewed:
        spec = {"token": token, "audiences": [self._audience]}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        answer = await self._api.change("POST", REVIEWS, review, timeout_s=TIMEOUT_S)
        status = msgspec.json.decode(answer, type=_Review).status
        if not status.authenticated:
            why = status.error.replace(token, "...")[:300] or "no reason given"
            raise NoToken(f"the API server rejected the token: {why}")
        if self._audience not in status.audiences:
            raise NoToken(f"the token does not have the audience {self._audience}")
        user = status.user
        space, _, account = user.username.removeprefix(_ACCOUNT).partition(":")
        if not user.username.startswith(_ACCOUNT) or not account:
            raise NoToken("the token does not belong to a ServiceAccount")
        pod, uid, node = (
            next(iter(user.extra.get(_EXTRA + name, ())), "")
            for name in ("pod-name", "pod-uid", "node-name")
        )
        if pod and not node:  # Kubernetes before 1.32 does not send the node
            body = await self._api.find(f"/api/v1/namespaces/{space}/pods/{pod}")
            if body is None:
                raise NoToken(f"the token's pod {space}/{pod} no longer exists")
            found = msgspec.json.decode(body, type=_Pod)
            if found.metadata.uid != uid:
                raise NoToken(f"the token's pod {space}/{pod} was replaced by another of that name")
            node = found.spec.node
        return Reviewed(Bearer(space, account, pod, node), ends_s)


def _keep(of: OrderedDict[K, V], key: K, value: V) -> None:
    of.pop(key, None)
    of[key] = value
    if len(of) > KEPT_MAX:
        of.popitem(last=False)
