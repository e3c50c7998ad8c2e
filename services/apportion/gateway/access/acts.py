"""What users do through the gateway: log in, log out, and cordon nodes and devices.

Invariants: a cookie is set only for a valid token. Only an authenticated user acts. The event has
the user's name from the login, not from the request. Every act and refusal is in the audit log."""

import asyncio
from contextlib import suppress
from typing import Final
from uuid import uuid4

import msgspec
from aiohttp import web

from apportion.core.answers.access import ActAnswer, CordonRequest, LoginRequest, MeAnswer
from apportion.core.devices.cordons import cordoning, lifting, spoken
from apportion.gateway.access.gate import COOKIE, PERSON, Gate
from apportion.gateway.access.people import READ_ALL, READ_DOCTOR, Person, Wish
from apportion.gateway.api.answering import Handlers, json_response
from apportion.gateway.api.endpoint import PREFIX, Audience, Endpoint
from apportion.gateway.api.query import Query, RequestRefused, parsed
from apportion.gateway.feed import Feed
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.logs import get_logger
from apportion_schemas.decoding import from_outside
from apportion_schemas.quantities import NAME_MAX, Payload

_decode_cordon = from_outside(msgspec.json.Decoder(CordonRequest).decode)
_audit = get_logger("audit")

ACTS = tuple(
    Endpoint(
        path=f"{kind}/{{name}}/{verb}", name=verb, method="POST", query=Query, body=CordonRequest,
        answer=ActAnswer, audience=Audience.KNOWN,
        summary=f"{summary} a {kind.removesuffix('s')}",
    )
    for kind in ("nodes", "devices")
    for verb, summary in (("cordon", "Cordon"), ("uncordon", "Remove one user's cordon from"))
)  # fmt: skip


FOLD_S: Final = 2.0  # an act is in the ledger; its answer waits so long for this gateway's fold


class Acts:
    """Appends the events of users' actions, such as cordons.

    The gateway folds the event before it answers, so the user's next request sees the effect."""

    def __init__(self, gate: Gate | None, feed: Feed, publisher: Publisher) -> None:
        self._gate = gate
        self._feed = feed
        self._publisher = publisher

    def handlers(self) -> Handlers:
        """Return the handlers of `POST /nodes/NODE/cordon` and of the other acts."""
        return [(endpoint, self.handle) for endpoint in ACTS]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Append the event of one request, and answer with its revision. Raises RequestRefused."""
        parsed(Query, request.query)
        kind, _, rest = request.path.removeprefix(f"{PREFIX}/").partition("/")
        name, _, verb = rest.rpartition("/")
        if self._gate is None:
            fix = f"start the gateway with a login, or use `apportion {verb}`"
            raise RequestRefused(403, "changes need a login", fix=fix)
        person = request[PERSON]
        try:
            await self._gate.require(person, Wish(verb, kind, name=name))
            asked = await _asked(request, needed=verb == "cordon")
            data, basis = self._event(kind, name, verb, person, asked), self._feed.state.revision
            event = type(data).__name__
            try:
                event_id = f"{event}/{uuid4()}"
                appended = await self._publisher.publish(data, event_id=event_id, basis=basis)
            except LedgerError as error:
                why = f"not appended: {error}"
                raise RequestRefused(503, why, fix="retry in a moment") from None
        except RequestRefused as refused:
            said = refused.answer.error
            _audit.warning("refused", person=person.name, act=verb, target=name, error=said)
            raise
        revision = appended.revision or 0
        _audit.info(
            "done", person=person.name, act=verb, target=name, reason=asked.reason,
            revision=revision,
        )  # fmt: skip
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLD_S):
                await self._feed.reached(revision)
        return json_response(
            ActAnswer(revision=revision, event=event, target=name, by=person.name,
                      reason=asked.reason)
        )  # fmt: skip

    def _event(
        self, kind: str, name: str, verb: str, person: Person, asked: CordonRequest
    ) -> Payload:
        state, by = self._feed.state, person.name[:NAME_MAX]
        known = name in (state.nodes if kind == "nodes" else state.node_of_device)
        if not known:
            error = f"no {kind.removesuffix('s')} {name} at revision {state.revision}"
            raise RequestRefused(404, error, field="name", fix=f"list them at {PREFIX}/{kind}")
        node, device = (name, "") if kind == "nodes" else ("", name)
        if verb == "cordon":
            return cordoning(node, device, by=by, reason=asked.reason)
        cordons = (
            state.nodes[name].cordons if kind == "nodes" else state.device_cordons.get(name, ())
        )
        of = asked.of or by
        if of not in {each.by for each in cordons}:
            error = f"{of} has no cordon on {name}; cordons: {spoken(cordons) or 'none'}"
            fix = "set `of` to the user whose cordon to remove"
            raise RequestRefused(404, error, field="of", fix=fix)
        return lifting(node, device, of=of, by=by, reason=asked.reason)


async def _asked(request: web.Request, *, needed: bool) -> CordonRequest:
    body = await request.read()
    try:
        asked = _decode_cordon(body or b"{}")
    except msgspec.DecodeError as error:
        why, fix = f"invalid request body: {error}", 'send {"reason": "…"}'
        raise RequestRefused(400, why, field="body", fix=fix) from None
    if needed and not asked.reason.strip():
        fix = "give a reason; it is shown to other users"
        raise RequestRefused(400, "reason is missing", field="reason", fix=fix)
    return asked


TOKEN_CHARS_MAX = 3_800  # browsers accept cookies of 4,096 bytes
_decode_login = from_outside(msgspec.json.Decoder(LoginRequest).decode)

ME = Endpoint(
    path="me", name="me", answer=MeAnswer, query=Query, audience=Audience.KNOWN,
    summary="The token's user and their permissions",
)  # fmt: skip
LOGIN = Endpoint(
    path="login", name="login", method="POST", query=Query, body=LoginRequest, answer=MeAnswer,
    audience=Audience.EVERYONE, summary="Store a token in a cookie, for the console",
)  # fmt: skip
LOGOUT = Endpoint(
    path="logout", name="login", method="POST", query=Query, answer=MeAnswer,
    audience=Audience.EVERYONE, summary="Delete the cookie",
)  # fmt: skip
ENDPOINTS = (*ACTS, ME, LOGIN, LOGOUT)


class Sessions:
    """The console's login, which puts a token into a cookie that scripts cannot read."""

    def __init__(self, gate: Gate | None) -> None:
        self._gate = gate

    def handlers(self) -> Handlers:
        """Return the handlers for login, logout, and the user's own permissions."""
        return [(ME, self.me), (LOGIN, self.login), (LOGOUT, self.logout)]

    async def me(self, request: web.Request) -> web.StreamResponse:
        """Answer with the user's name and permissions, which the console shows."""
        if self._gate is None:
            return json_response(MeAnswer(login=False, all=True, doctor=True))
        return json_response(await self._about(self._gate, request[PERSON]))

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Check a token. Answer with the token's user, and set a cookie. Raises RequestRefused."""
        if self._gate is None:
            fix = "send requests without a token"
            raise RequestRefused(404, "this gateway has no login", fix=fix)
        try:
            token = _decode_login(await request.read()).token.strip()
        except msgspec.DecodeError as error:
            why, fix = f"invalid request body: {error}", 'send {"token": "…"}'
            raise RequestRefused(400, why, field="body", fix=fix) from None
        if len(token) > TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
            raise RequestRefused(400, "this is not a token", field="token")
        try:
            person = await self._gate.known(token)
        except RequestRefused:
            _audit.warning("login refused", address=request.remote)
            raise
        _audit.info("logged in", person=person.name, address=request.remote)
        response = json_response(await self._about(self._gate, person))
        response.set_cookie(
            COOKIE, token, httponly=True, samesite="Strict", secure=self._gate.secure(request),
            path="/",
        )  # fmt: skip
        return response

    async def logout(self, request: web.Request) -> web.StreamResponse:
        """Delete the token's cookie in the browser."""
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
