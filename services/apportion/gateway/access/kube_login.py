"""Login by a Kubernetes API server: TokenReview gives the user, SubjectAccessReview the rights.

The resources `ledger`, `pods`, `metrics`, `doctor`, `nodes` and `devices` of `apportion.dev` need
not exist, because RBAC compares only names. Invariants: no user is let in unless the API server
answers; a token for another audience is refused."""

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

from apportion.gateway.access.people import LoginUnavailable, Person, Wish
from apportion.runtime.kube.client import KubeApi, KubeUnavailable
from apportion_schemas.decoding import from_outside

AUDIENCE = "apportion"
GROUP = "apportion.dev"
REVIEW_S = 5.0
AT_ONCE = 16
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _Kube(Struct, frozen=True, rename="camel"): ...


class _User(_Kube, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class _TokenStatus(_Kube, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()


class _TokenReview(_Kube, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(_Kube, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(_Kube, frozen=True):
    status: _AccessStatus = _AccessStatus()


_token_review = from_outside(msgspec.json.Decoder(_TokenReview).decode)
_access_review = from_outside(msgspec.json.Decoder(_AccessReview).decode)
_encode = msgspec.json.Encoder().encode


class KubeLogin:
    """A `people.Login` through the API server. Tokens must be for one of `audiences`."""

    def __init__(self, api: KubeApi, audiences: tuple[str, ...]) -> None:
        self._api = api
        self._audiences = audiences
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def person(self, token: str) -> Person | None:
        """Return the user of a token, or None if the API server refuses the token.

        Raises LoginUnavailable."""
        spec = {"token": token, "audiences": self._audiences}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = _token_review(await self._post(TOKENS, review)).status
        # An API server without support for audiences omits them; such a token is refused.
        if not status.authenticated or not set(self._audiences) & set(status.audiences):
            return None
        user = status.user
        return Person(user.username, uid=user.uid, groups=user.groups, extra=user.extra)

    async def may(self, person: Person, wish: Wish) -> bool:
        """Return True if the cluster's RBAC permits the action. Raises LoginUnavailable."""
        attributes = {"group": GROUP, "verb": wish.verb, "resource": wish.resource}
        attributes |= {"namespace": wish.namespace, "name": wish.name}
        who = {"user": person.name, "uid": person.uid, "groups": person.groups}
        spec = {**who, "extra": person.extra, "resourceAttributes": attributes}
        kind = "SubjectAccessReview"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        status = _access_review(await self._post(ACCESS, review)).status
        return status.allowed and not status.denied

    async def _post(self, path: str, review: dict[str, Any]) -> bytes:
        try:
            async with self._turn:
                answer = await self._api.request(
                    "POST", path, body=_encode(review), timeout_s=REVIEW_S
                )
        except KubeUnavailable as error:
            raise LoginUnavailable(str(error)) from None
        if not answer.ok:
            raise LoginUnavailable(
                f"the API server refused the review ({answer.refusal()}); bind the ClusterRole "
                "system:auth-delegator to the gateway's account"
            )
        return answer.body
