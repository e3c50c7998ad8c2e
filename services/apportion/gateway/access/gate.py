"""The gate before every route: it authenticates and authorizes the user, and redacts the answer.

Invariants: with a login, an unknown user gets only the page that requests a token; a refusal names
the missing permission; a page of another site cannot act for a user who is logged in here."""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web

from apportion.gateway.access.people import (
    READ_ALL,
    READ_DOCTOR,
    READ_METRICS,
    LoginUnavailable,
    Person,
    Remembered,
    Wish,
    read_namespace,
)
from apportion.gateway.access.redaction_rules import (
    OF_ERRORS,
    Look,
    is_shown,
    look_at,
    planned_namespaces,
    shown,
)
from apportion.gateway.api.answering import (
    SIGHT,
    STILL,
    Sight,
    Still,
    json_response,
    refusal_response,
    short_turns,
    turn_of,
)
from apportion.gateway.api.endpoint import JSON, PREFIX, Audience, Endpoint
from apportion.gateway.api.log import PAGE, narrowed
from apportion.gateway.api.plans import LINES, PLAN
from apportion.gateway.api.query import LIMIT_MAX, RequestRefused
from apportion.runtime.process.config import ConfigError
from apportion.runtime.service.http import CLIENT, Handle, address_of

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SEALED_MAX: Final = 1_024
_PURPOSE: Final = b"apportion gateway cursors"
_KEY_BYTES: Final = 32


class Cursors:
    """Encrypts the page cursors that tenants receive.

    A cursor names the last item of a page, which may belong to another tenant. If tenants could
    write cursors, they could find out which names exist. Invariant: a cursor can only be opened for
    the path for which it was sealed."""

    def __init__(self, secret: bytes = b"") -> None:
        self._key = hmac.digest(secret or secrets.token_bytes(_KEY_BYTES), _PURPOSE, "sha256")

    @cached_property
    def _fernet(self) -> Fernet:
        from cryptography.fernet import Fernet  # noqa: PLC0415 - only tenants need it

        return Fernet(urlsafe_b64encode(self._key))

    def seal(self, path: str, cursor: str) -> str:
        """Encrypt a cursor of the list at `path`.

        A cursor that is empty or a revision is returned unchanged, because it reveals nothing."""
        if not cursor or _is_revision(cursor):
            return cursor
        return self._fernet.encrypt(f"{path}\n{cursor}".encode()).decode()

    def open(self, path: str, sealed: str) -> str:
        """Decrypt a cursor that was sealed for `path`. Raises RequestRefused."""
        if not sealed or _is_revision(sealed):
            return sealed
        from cryptography.fernet import InvalidToken  # noqa: PLC0415

        try:
            if len(sealed) > SEALED_MAX or not sealed.isascii():
                raise InvalidToken
            of, _, cursor = self._fernet.decrypt(sealed).decode().partition("\n")
            if of != path:
                raise InvalidToken
        except InvalidToken:
            why = f"`continue` was not returned by {path}, or the gateway's key has changed"
            fix = "start again without `continue`, and pass the value that each page returns"
            raise RequestRefused(400, why, field="continue", fix=fix) from None
        return cursor


def _is_revision(text: str) -> bool:
    return text.isascii() and text.isdecimal()


COOKIE = "apportion_token"
PERSON = web.RequestKey("person", Person)  # the user of a request, if there is a login
_PAGE = re.compile(r"^(/|/console/.*)$")  # served to everyone, because this page requests the token
SAFE = ("GET", "HEAD")


class Gate:
    """Authenticates and authorizes the requests to one gateway."""

    def __init__(
        self,
        login: Remembered,
        cursors: Cursors,
        endpoints: Iterable[Endpoint],
        public: PublicUrl | None = None,  # the console's URL as browsers see it
    ) -> None:
        self._login = login
        self._cursors = cursors
        self._endpoints = {(it.method, f"{PREFIX}/{it.path}"): it for it in endpoints}
        self._public = public
        self._masking = short_turns()
        self._masker = ThreadPoolExecutor(1, "masking")

    def client(self, request: web.BaseRequest) -> str:
        """Return the client for rate limits: the authenticated user's name, or the address."""
        person = self._login.known(token_of(request))
        return address_of(request) if person is None else person.name

    def secure(self, request: web.Request) -> bool:
        """Return True if the browser uses HTTPS, to this gateway or to a proxy."""
        return request.secure if self._public is None else self._public.secure

    async def guard(self, request: web.Request, handle: Handle) -> web.StreamResponse:
        """Answer the request if its user is permitted to see the answer."""
        try:
            return await self._guarded(request, handle)
        except RequestRefused as refused:
            response = refusal_response(refused)
            if refused.status == web.HTTPUnauthorized.status_code:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response

    async def may(self, person: Person, wish: Wish) -> bool:
        """Return True if the user has the permission. Raises RequestRefused if the login fails."""
        try:
            return await self._login.may(person, wish)
        except LoginUnavailable as error:
            raise _nobody_says(error) from None

    async def require(self, person: Person, wish: Wish) -> None:
        """Raise RequestRefused unless the user has the permission."""
        if not await self.may(person, wish):
            raise forbidden(person, wish)

    async def known(self, token: str) -> Person:
        """Return the user of the token. Raises RequestRefused if the token is not valid."""
        try:
            # A header may contain any bytes, but a token is ASCII.
            person = await self._login.person(token) if token and token.isascii() else None
        except LoginUnavailable as error:
            raise _nobody_says(error) from None
        if person is None:
            said = "the token is unknown or has expired" if token else "a login is required"
            fix = "send Authorization: Bearer TOKEN; for verbs, --token FILE or APPORTION_TOKEN"
            raise RequestRefused(401, said, field="Authorization", fix=fix)
        return person

    async def _guarded(self, request: web.Request, handle: Handle) -> web.StreamResponse:
        path = request.path
        if request.method not in SAFE and hdrs.AUTHORIZATION not in request.headers:
            _refuse_other_sites(request, self._public)
        # An unknown path has no endpoint.
        resource = request.match_info.route.resource
        method = "GET" if request.method in SAFE else request.method
        endpoint = self._endpoints.get((method, resource.canonical)) if resource else None
        audience = endpoint.audience if endpoint else Audience.LEDGER
        if _PAGE.match(path) or audience is Audience.EVERYONE:
            return await handle(request)
        person = request[PERSON] = await self.known(token_of(request))
        request[CLIENT] = person.name
        if audience is Audience.KNOWN:
            return await handle(request)
        if path == "/metrics":
            await self.require(person, READ_METRICS)
            return await handle(request)
        if audience is Audience.DOCTOR:
            await self.require(person, READ_DOCTOR)
            return await handle(request)

        async def may_go_on() -> bool:
            """Return True if the token is still valid, with no fewer rights than before."""
            try:
                person = await self.known(token_of(request))
                return SIGHT in request or await self.may(person, READ_ALL)
            except RequestRefused:
                return False

        request[STILL] = Still(may_go_on)
        if await self.may(person, READ_ALL):
            return await handle(request)
        return await self._of_tenant(request, person, handle, endpoint)

    async def _of_tenant(
        self, request: web.Request, person: Person, handle: Handle, endpoint: Endpoint | None
    ) -> web.StreamResponse:
        async def may_see(namespace: str) -> bool:
            return await self.may(person, read_namespace(namespace))

        def seal(cursor: str) -> str:
            return self._cursors.seal(path, cursor)

        async def masked(body: bytes, look: Look) -> bytes:
            async with turn_of(self._masking, request, "requests"):
                return await shown(body, look, may_see, seal, self._masker)

        path = request.path.removeprefix(f"{PREFIX}/")
        named = request.match_info.get("namespace") or request.query.get("namespace", "")
        if named:
            await self.require(person, read_namespace(named))
        if endpoint is None or not is_shown(endpoint, request.query):
            raise forbidden(person, READ_ALL)
        if endpoint.answer is None:
            request[SIGHT] = Sight(may_see)
            return await handle(request)
        searched = endpoint is PAGE and bool({"text", "subject"} & request.query.keys())
        behind = self._cursors.open(path, request.query.get("continue", ""))
        answer = await handle(_plainly(request, behind, searched=searched))
        if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
            raise forbidden(person, READ_ALL)
        as_line = LINES in request.headers.get(hdrs.ACCEPT, "")
        done = answer.status == web.HTTPOk.status_code
        for planned in planned_namespaces(answer.body) if done and endpoint is PLAN else ():
            await self.require(person, read_namespace(planned))
        body = await masked(answer.body, look_at(endpoint) if done else OF_ERRORS)
        if done and searched:
            body = narrowed(body, request.query)
        if as_line:  # the client asked for lines: the whole answer is one
            line = {"answer" if done else "error": msgspec.Raw(body), "status": answer.status}
            return web.Response(body=msgspec.json.encode(line) + b"\n", content_type=LINES)
        response = json_response(msgspec.Raw(body), status=answer.status, compressed=True)
        if again := answer.headers.get("Retry-After"):
            response.headers["Retry-After"] = again
        return response


async def own_pages_only(request: web.Request, handle: Handle) -> web.StreamResponse:
    """Handle a request on a gateway without a login. Refuse writes from pages of other sites."""
    if request.method not in SAFE:
        try:
            _refuse_other_sites(request, None)
        except RequestRefused as refused:
            return refusal_response(refused)
    return await handle(request)


def _refuse_other_sites(request: web.Request, public: PublicUrl | None) -> None:
    """Raise RequestRefused if a page of another site made the browser send this request.

    Old browsers may send the cookie with such a request, although it is SameSite=Strict."""
    origin = request.headers.get(hdrs.ORIGIN)
    # Without --public-url our origin is the request's host.
    if origin is not None and (
        urlsplit(origin).netloc != request.host if public is None else origin != public.origin
    ):
        raise RequestRefused(
            403, f"request from a page of another origin, {origin[:200]}", field="Origin",
            fix=f"open {public.origin} instead" if public
            else "behind a proxy, start the gateway with --public-url",
        )  # fmt: skip
    if request.can_read_body and request.content_type != JSON:
        error = f"the content type is {request.content_type[:80]}"
        raise RequestRefused(415, error, field="Content-Type", fix="send application/json")


def _plainly(request: web.Request, behind: str, *, searched: bool) -> web.Request:
    # A tenant's answer is redacted as a whole, uncompressed, and searched only after that.
    headers = request.headers.copy()
    headers[hdrs.ACCEPT] = JSON
    headers.popall(hdrs.ACCEPT_ENCODING, None)
    url = request.rel_url
    if behind:
        url = url.update_query({"continue": behind})
    if searched:
        url = url.without_query_params("text", "subject", "limit").update_query(limit=LIMIT_MAX)
    return request.clone(headers=headers, rel_url=url)


def _nobody_says(error: LoginUnavailable) -> RequestRefused:
    why = f"login or permissions cannot be checked: {error}"
    return RequestRefused(503, why, fix="retry in a moment", retry_after_s=1)


def forbidden(person: Person, wish: Wish) -> RequestRefused:
    """Return the error 403 with the permission that `person` lacks."""
    of = f" {wish.name}" if wish.name else ""
    where = f" in namespace {wish.namespace}" if wish.namespace else ""
    right = f"`{wish.verb}` of `{wish.resource}.apportion.dev`{where}"
    error = f"{person.name} may not {wish.verb} {wish.resource}{of}{where}"
    fix = f"ask your administrator for the permission {right} (`apportion token --help`)"
    return RequestRefused(403, error, fix=fix)


def token_of(request: web.BaseRequest) -> str:
    """Return the token of a request from its header or cookie, or ""."""
    kind, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if kind.casefold() == "bearer":
        return token.strip()
    return "" if kind else request.cookies.get(COOKIE, "")


PUBLIC_URL = "--public-url"
_USUAL_PORTS = {"https": 443, "http": 80}
# ASCII only, because browsers send other host names encoded (`xn--…`)
_HOST = re.compile(r"[a-z0-9._:-]+")
_FIX = "write a scheme, a host and an optional port, as in https://apportion.example.com"


class PublicUrl(msgspec.Struct, frozen=True):
    """The origin of the console's pages, in the form in which browsers send it.

    Behind a proxy that terminates TLS, a request does not reveal the origin to the gateway."""

    origin: str

    @property
    def secure(self) -> bool:
        """Return True if browsers use HTTPS."""
        return self.origin.startswith("https:")


def parse_public_url(found: str) -> PublicUrl:
    """Parse the value of --public-url. Raises ConfigError."""
    try:
        url = urlsplit(found)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise ConfigError(PUBLIC_URL, found, f"{error}; {_FIX}") from None
    if url.scheme not in _USUAL_PORTS or not _HOST.fullmatch(host) or port == 0:
        raise ConfigError(PUBLIC_URL, found, _FIX)
    if url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise ConfigError(PUBLIC_URL, found, f"the console must be at the root of its host; {_FIX}")
    name = f"[{host}]" if ":" in host else host
    written = "" if port in {None, _USUAL_PORTS[url.scheme]} else f":{port}"
    return PublicUrl(f"{url.scheme}://{name}{written}")
