"""The console's login: a token into a cookie that scripts cannot read, and who one is.

The token is kept in the browser alone, until that is closed; the gateway keeps nothing, so it may
be begun anew, and there may be several. Invariant: a cookie is set for a known token alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from aiohttp import web

from apportion.core.answers.access import LoginRequest, MeAnswer
from apportion.gateway.access.gate import COOKIE, PERSON, Gate
from apportion.gateway.access.people import READ_ALL, READ_DOCTOR, Person, Wish
from apportion.gateway.api.answering import json_response
from apportion.gateway.api.endpoint import Audience, Endpoint, Handler
from apportion.gateway.api.query import Query, RequestRefused
from apportion.runtime.process.logs import get_logger
from apportion_schemas.decoding import from_outside

TOKEN_CHARS_MAX = 3_800
"""Browsers take cookies of 4,096 bytes."""
_decode = from_outside(msgspec.json.Decoder(LoginRequest).decode)
_audit = get_logger("audit")


ME = Endpoint(
    path="me", name="me", answer=MeAnswer, query=Query, audience=Audience.KNOWN,
    summary="The person that the token belongs to, and what he may do",
)  # fmt: skip
LOGIN = Endpoint(
    path="login", name="login", method="POST", query=Query, body=LoginRequest, answer=MeAnswer,
    audience=Audience.EVERYONE, summary="Put a token into a cookie, for the console",
)  # fmt: skip
LOGOUT = Endpoint(
    path="logout", name="login", method="POST", query=Query, answer=MeAnswer,
    audience=Audience.EVERYONE, summary="Delete that cookie",
)  # fmt: skip
ENDPOINTS = (ME, LOGIN, LOGOUT)


class Sessions:
    """The routes of a gateway's login; `gate` is None where it has none."""

    def __init__(self, gate: Gate | None) -> None:
        self._gate = gate

    def routes(
        self, guarded: Callable[[Endpoint, Handler], Handler]
    ) -> Iterable[web.AbstractRouteDef]:
        """To log in and out, and to hear who one is."""
        yield ME.route(guarded(ME, self.me))
        yield LOGIN.route(guarded(LOGIN, self.login))
        yield LOGOUT.route(guarded(LOGOUT, self.logout))

    async def me(self, request: web.Request) -> web.StreamResponse:
        """Who asks, and what he may, for a page to show."""
        if self._gate is None:
            return json_response(MeAnswer(login=False, all=True, doctor=True))
        return json_response(await self._about(self._gate, request[PERSON]))

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Take a token, and answer with who that is and a cookie. Raises RequestRefused."""
        if self._gate is None:
            raise RequestRefused(404, "this gateway has no login", fix="just ask")
        try:
            token = _decode(await request.read()).token.strip()
        except msgspec.DecodeError as error:
            raise RequestRefused(
                400, f"the body is no login: {error}", field="body", fix='send {"token": "…"}'
            ) from None
        if len(token) > TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
            raise RequestRefused(400, "this cannot be a token", field="token")
        try:
            person = await self._gate.known(token)
        except RequestRefused:
            _audit.warning("a login was refused", address=request.remote)
            raise
        _audit.info("logged in", person=person.name, address=request.remote)
        response = json_response(await self._about(self._gate, person))
        response.set_cookie(
            COOKIE, token, httponly=True, samesite="Strict", secure=self._gate.secure(request),
            path="/",
        )  # fmt: skip
        return response

    async def logout(self, request: web.Request) -> web.StreamResponse:
        """Have the browser forget the token."""
        del request
        response = json_response(MeAnswer(login=self._gate is not None))
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict")
        return response

    async def _about(self, gate: Gate, person: Person) -> MeAnswer:
        return MeAnswer(
            login=True,
            name=person.name,
            all=await gate.may(person, READ_ALL),
            doctor=await gate.may(person, READ_DOCTOR),
            cordons=await gate.may(person, Wish("cordon", "nodes")),
        )
