"""What an endpoint of the API declares: the one place where its path, parameters and answer stand.

The router, the gate, the refusal of an unknown path, the OpenAPI document and the reference page
are all made from these declarations. Invariant: what an endpoint does not say about its audience is
the narrowest, so a forgotten line hides an answer and never shows one."""

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
    """Who may call an endpoint, where the gateway has a login."""

    EVERYONE = "everyone"
    KNOWN = "known people"
    DOCTOR = "doctor"
    LEDGER = "ledger"
    TENANTS = "tenants"


class Endpoint(Struct, frozen=True, kw_only=True):
    """One path of the API. `name` is what its requests are counted under in the metrics.

    `answer` is the struct of the JSON answer, None where there is none; `also` are the other media
    types that it has, and `body` is the struct of a request's body."""

    path: str
    name: str
    summary: str
    answer: type[Struct] | None
    query: type[Query] = AtQuery
    audience: Audience = Audience.LEDGER
    method: str = "GET"
    body: type[Struct] | None = None
    also: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """The path as people write it: parts to fill in are in capitals."""
        return re.sub(r"{(\w+)}", lambda part: part[1].upper(), self.path)

    def route(self, handle: Handler) -> web.AbstractRouteDef:
        """The route that calls `handle`."""
        make = web.get if self.method == "GET" else web.post
        return make(f"{PREFIX}/{self.path}", handle)
