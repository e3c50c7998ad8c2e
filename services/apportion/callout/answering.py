"""Answers nats-server's authorization requests with a user or a refusal.

Invariant: concurrent requests to the API server are limited. If too many requests wait, a new one
gets no answer, and nats-server lets the client retry."""

import asyncio
import random
from typing import Final

import msgspec

from apportion.callout.claims import (
    NoRequest,
    Request,
    answer_claims,
    read_request,
    signed,
    user_claims,
)
from apportion.callout.tokens import Limited, NoToken, Tokens
from apportion.core.identity.bearers import Accounts, identity_of
from apportion.core.identity.configuration import subscriptions_of
from apportion.core.identity.identity import InvalidIdentity
from apportion.core.identity.permissions import permissions_of, role_of
from apportion.runtime.jetstream.wire import Message, Wire
from apportion.runtime.kube.client import KubeRefused, KubeUnavailable
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.process.reach import KeyPair
from apportion.runtime.service.lifecycle import Service

TOGETHER_MAX: Final = 32
WAITING_MAX: Final = 4096
SPREAD: Final = 0.2  # a user ends up to a fifth early, so that clients do not all reconnect at once


class Answering:
    """Answers authorization requests. `wire` is a connection with the role callout."""

    def __init__(
        self,
        service: Service,
        tokens: Tokens,
        wire: Wire,
        *,
        accounts: Accounts,
        key: KeyPair,
        life_s: float,
    ) -> None:
        self._service = service
        self._tokens = tokens
        self._wire = wire
        self._accounts = accounts
        self._key = key
        self._life_s = life_s
        self._together = asyncio.Semaphore(TOGETHER_MAX)
        self._under_way: set[asyncio.Task[None]] = set()
        self._outcomes = service.metrics.counter(
            "apportion_callout_answers_total", "Logins to NATS by outcome.", ("outcome",)
        )

    async def receive(self, message: Message) -> None:
        """Start to answer a request, or drop it if too many requests wait."""
        if len(self._under_way) >= WAITING_MAX:
            self._count("dropped")
            return
        task = asyncio.create_task(self._answer(message), name="answer")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        """Drop all requests in progress without answering them."""
        for task in list(self._under_way):
            task.cancel()

    async def _answer(self, message: Message) -> None:
        try:
            request = read_request(message.data)
        except NoRequest as error:
            self._count("unreadable")
            self._service.log.warning("unreadable authorization request", error=str(error))
            return
        async with self._together:
            now_s = self._service.clock.now().timestamp()
            try:
                user = await self._user(request, now_s)
            except Limited:  # no answer, so that an honest client retries: a refusal would end it
                self._count("limited")
                self._service.log.debug("token not reviewed: limit reached", host=request.host)
                return
            except (NoToken, InvalidIdentity) as error:
                answer = self._refused(request, "refused", str(error), now_s)
            except (KubeRefused, KubeUnavailable, msgspec.MsgspecError) as error:
                reason = f"the API server did not review the token: {error}"
                answer = self._refused(request, "no review", reason, now_s)
            else:
                self._count("taken")
                answer = signed(answer_claims(request, user=user), self._key, now_s=int(now_s))
        try:
            await self._wire.publish(message.reply, answer.encode(), headers={})
        except LedgerUnavailable as error:
            self._service.log.warning("response lost", error=str(error))

    async def _user(self, request: Request, now_s: float) -> str:
        shown = request.shown
        token = shown.password or shown.auth_token
        if not token:
            raise NoToken("no token given")
        reviewed = await self._tokens.review(token, request.host, shown.user)
        try:
            identity = identity_of(reviewed.bearer, shown.user, self._accounts)
        except InvalidIdentity:
            self._tokens.charge(request.host, shown.user)
            raise
        self._tokens.let_in(request.host, identity.name)
        life_s = self._life_s * (1 - SPREAD * random.random())  # noqa: S311 - spreads load
        claims = user_claims(
            identity.name,
            role_of(identity).account,
            permissions_of(identity),
            subs=subscriptions_of([identity]),
            user_key=request.user_key,
            ends_s=int(min(now_s + life_s, reviewed.ends_s)),
        )
        self._service.log.info(
            "taken", role=identity.role, user=identity.name, nodes=identity.nodes, host=request.host
        )
        return signed(claims, self._key, now_s=int(now_s))

    def _refused(self, request: Request, outcome: str, reason: str, now_s: float) -> str:
        self._count(outcome)
        self._service.log.warning(
            "refused", user=request.shown.user[:253], host=request.host, reason=reason
        )
        return signed(answer_claims(request, refused=reason), self._key, now_s=int(now_s))

    def _count(self, outcome: str) -> None:
        self._outcomes.labels(outcome).inc()
