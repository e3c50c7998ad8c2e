"""The pages as a tenant has them: answers of a real gateway, through the lens that is his."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route

from apportion.core.explain.lens import namespaces_in
from apportion.gateway.access.redaction_rules import look_at

API = "/api/v1/"


@contextmanager
def seen_by_a_tenant(page: Page, *namespaces: str) -> Iterator[None]:
    """Within it the page is answered as somebody is who sees these namespaces alone."""

    def answer(route: Route) -> None:
        headers = {**route.request.headers, "accept": "application/json"}
        response = route.fetch(headers=headers)
        look = look_at(urlsplit(route.request.url).path.removeprefix(API))
        if look is None or not response.ok:
            route.fulfill(response=response)
            return
        whole = response.json()
        allowed = namespaces_in(whole) & {*namespaces}
        route.fulfill(response=response, json=look(whole, allowed.__contains__))

    page.route(re.compile(re.escape(API) + "(?!events|me$)"), answer)
    try:
        yield
    finally:
        page.unroute_all(behavior="ignoreErrors")  # some may be under way
