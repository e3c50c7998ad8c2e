"""Declarations of API endpoints: path, parameters, answer and audience in one place.

The router, the gate, the answer to unknown paths, the OpenAPI document and the API reference are
made from these declarations. Invariant: an endpoint without a declared audience has the narrowest
audience, so a forgotten line can only hide an answer."""

import re
from collections.abc import Awaitable, Callable
from enum import Enum

from aiohttp import web
from msgspec import Struct

from apportion.gateway.api.query import AtQuery, Query

PREFIX = "/api/v1"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
JSON = "application/json"


class Audience(Enum):
    """The users who may call an endpoint, if the gateway has a login."""

    EVERYONE = "everyone"
    KNOWN = "any user"
    DOCTOR = "doctor"
    LEDGER = "ledger"
    TENANTS = "tenants"


class Endpoint(Struct, frozen=True, kw_only=True):
    """A path of the API, with the structs of its request and answer."""

    path: str
    name: str  # its label in the request metrics
    summary: str
    answer: type[Struct] | None  # of the JSON answer
    query: type[Query] = AtQuery
    audience: Audience = Audience.LEDGER
    method: str = "GET"
    body: type[Struct] | None = None  # of the request
    also: tuple[str, ...] = ()  # other media types of the answer

    @property
    def written(self) -> str:
        """Return the path as in documentation, with parameters in capitals."""
        return re.sub(r"{(\w+)}", lambda part: part[1].upper(), self.path)

    def route(self, handle: Handler) -> web.AbstractRouteDef:
        """Return the route that calls `handle` for this path."""
        make = web.get if self.method == "GET" else web.post
        return make(f"{PREFIX}/{self.path}", handle)
