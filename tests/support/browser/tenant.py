"""Show a page of the console as a tenant sees it, by redacting the answers of a real gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec
from playwright.sync_api import Page, Route

from apportion.gateway.access.redaction_rules import look_at
from apportion.gateway.api.endpoint import Audience
from tests.support.endpoints import endpoint_at

API = "/api/v1/"


@contextmanager
def seen_by_a_tenant(page: Page, *namespaces: str) -> Iterator[None]:
    """Redact the page's API answers as for a user of only these namespaces."""

    def answer(route: Route) -> None:
        headers = {**route.request.headers, "accept": "application/json"}
        response = route.fetch(headers=headers)
        endpoint = endpoint_at(urlsplit(route.request.url).path.removeprefix(API))
        if endpoint.audience is not Audience.TENANTS or not response.ok:
            route.fulfill(response=response)
            return
        look = look_at(endpoint)
        whole = msgspec.json.decode(response.body(), type=look.kind)
        allowed = look.namespaces(whole) & {*namespaces}
        shown = msgspec.json.encode(look.shown(whole, allowed.__contains__))
        route.fulfill(response=response, body=shown)

    page.route(re.compile(re.escape(API) + "(?!events|me$)"), answer)
    try:
        yield
    finally:
        page.unroute_all(behavior="ignoreErrors")  # some may still be open
