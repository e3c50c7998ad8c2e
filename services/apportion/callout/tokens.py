"""Tokens of ServiceAccounts, reviewed by the API server: whose, in which pod, on which node.

Invariants: what the API server does not know, or made for somebody else than us, is no token; a
node is the pod's own. A pod that is gone has no token either: the API server sees to that. A host
whose tokens are refused costs the API server one review a second. No other host waits for it, nor
does a client of the same host that was let in before, unless its own name is flooded. A token opens
a limited number of connections, so one that was stolen cannot take those of all agents."""

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from apportion.callout.claims import payload_of
from apportion.core.identity.bearers import Bearer
from apportion.core.intake.buckets import Bucket
from apportion.runtime.kube.client import KubeApi
from apportion.runtime.service.limits import client_of

REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
TOKEN_BYTES_MAX: Final = 16 << 10
TIMEOUT_S: Final = 5.0
REFUSED_PER_S: Final = 1.0
REFUSED_BURST: Final = 16.0
"""Reviews that end in a refusal, of one host; those under way at the same time come on top."""
REFUSED_KEPT_S: Final = 5.0
"""A token may count a moment later: an API server learns of a new pod."""
OPENED_PER_S: Final = 1 / 60
OPENED_BURST: Final = 64.0
"""Connections that one token opens at a callout. Each ends after an hour at most: 124 at a time."""
KEPT_MAX: Final = 8_192
_ACCOUNT: Final = "system:serviceaccount:"
_EXTRA: Final = "authentication.kubernetes.io/"


class NoToken(ValueError):
    """Not a token that counts; the message says why, and shows nothing of it."""


class Limited(Exception):
    """Too many tokens of this host were refused lately, or this one opened too many connections: it
    is not reviewed now."""


class Reviewed(Struct, frozen=True):
    """Whose it is, and when it ends (Unix time)."""

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


_Client = tuple[str, str]
"""An address, and the user there; empty for all users that were not let in yet."""
K = TypeVar("K")
V = TypeVar("V")


class Tokens:
    """One API server's word for tokens of one audience."""

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
        """Whose it is that a client at `host` shows, which calls itself `user`.

        Raises NoToken: nobody's. Raises Limited: the host had too many refused, or the token opened
        too many connections. Raises KubeRefused, KubeUnavailable: the API server does not say."""
        if len(token) > TOKEN_BYTES_MAX:
            raise NoToken(f"the token is over {TOKEN_BYTES_MAX} bytes")
        try:
            ends_s = msgspec.json.decode(payload_of(token.encode()), type=_Ending).exp
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise NoToken("what is shown is no token of a ServiceAccount that ends") from None
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
        """Count a token that gets nothing against the host, as one of an account without a role."""
        self._bucket_of(host, user).take(1, self._now())

    def let_in(self, host: str, user: str) -> None:
        """Count the user apart from its host from now on."""
        _keep(self._known, (client_of(host), user), None)

    def _bucket_of(self, host: str, user: str) -> Bucket:
        client = client_of(host)
        key = (client, user if (client, user) in self._known else "")
        bucket = self._buckets.get(key) or Bucket(REFUSED_PER_S, REFUSED_BURST, self._now())
        _keep(self._buckets, key, bucket)
        return bucket

    async def _reviewed(self, token: str, ends_s: float) -> Reviewed:
        """Raises NoToken, KubeRefused, KubeUnavailable."""
        user = await self._user(token)
        space, _, account = user.username.removeprefix(_ACCOUNT).partition(":")
        if not user.username.startswith(_ACCOUNT) or not account:
            raise NoToken("the token is no ServiceAccount's")
        pod, uid, node = (
            next(iter(user.extra.get(_EXTRA + name, ())), "")
            for name in ("pod-name", "pod-uid", "node-name")
        )
        if pod and not node:  # Kubernetes before 1.32 does not say
            node = await self._node(space, pod, uid)
        return Reviewed(Bearer(space, account, pod, node), ends_s)

    async def _user(self, token: str) -> _User:
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        answer = await self._api.change("POST", REVIEWS, asked, timeout_s=TIMEOUT_S)
        status = msgspec.json.decode(answer, type=_Review).status
        if not status.authenticated:
            why = status.error.replace(token, "...")[:300] or "it does not say why"
            raise NoToken(f"the API server does not take the token: {why}")
        if self._audience not in status.audiences:
            raise NoToken(f"the token is not for the audience {self._audience}")
        return status.user

    async def _node(self, space: str, name: str, uid: str) -> str:
        body = await self._api.find(f"/api/v1/namespaces/{space}/pods/{name}")
        if body is None:
            raise NoToken(f"pod {space}/{name} of the token is gone")
        pod = msgspec.json.decode(body, type=_Pod)
        if pod.metadata.uid != uid:
            raise NoToken(f"pod {space}/{name} of the token is gone, another has its name")
        return pod.spec.node


def _keep(of: OrderedDict[K, V], key: K, value: V) -> None:
    """Have it as the newest; the oldest goes where there are too many."""
    of.pop(key, None)
    of[key] = value
    if len(of) > KEPT_MAX:
        of.popitem(last=False)
