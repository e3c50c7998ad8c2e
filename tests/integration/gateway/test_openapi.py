"""A real gateway answers every endpoint as the OpenAPI document specifies."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from apportion.gateway.api.endpoint import JSON, PREFIX, Endpoint
from apportion.gateway.main import ENDPOINTS
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.processes import ServiceProcess
from tests.support.tokens import people
from tools.openapi import document

NAMES = {"namespace": "default", "name": "a", "node": "n1", "device": "n1-g0", "revision": "1"}
QUERIES = {"who": "?node=n1&since=1", "diff": "?from=1", "moment": "?at=2"}
"""Parameters without which there is no answer."""
BODIES: dict[str, Any] = {
    "plan": {"lose": ["n1"]}, "defrag": {"free_nodes": 1}, "login": {"token": "olga"},
    "cordon": {"reason": "fan"}, "uncordon": {"reason": "mended"},
}  # fmt: skip
PRICES = 'currency = "EUR"\n[models]\n"*" = 1.0\n'


def closed(found: Any) -> Any:
    """Return a copy of the JSON schema that forbids unknown fields in all objects."""
    if isinstance(found, list):
        return [closed(each) for each in found]
    if not isinstance(found, dict):
        return found
    shut = {"additionalProperties": False} if found.get("type") == "object" else {}
    if "properties" not in found:
        shut = {}
    return shut | {name: closed(each) for name, each in found.items()}


DOCUMENT: dict[Any, Any] = document()
CLOSED = closed(DOCUMENT["components"])


def wrong(schema: dict[str, Any], answer: Any) -> list[str]:
    """Return the places at which an answer violates its schema."""
    validator = OAS31Validator({**schema, "components": CLOSED})
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(answer)]


def written(endpoint: Endpoint) -> str:
    """Return the endpoint's path and required query parameters, with names that exist in the test's
    ledger."""
    names = NAMES | ({"name": NAMES[endpoint.path.split("/")[0].removesuffix("s")]}
                     if endpoint.name in {"cordon", "uncordon"} else {})  # fmt: skip
    return f"{PREFIX}/{endpoint.path.format(**names)}{QUERIES.get(endpoint.path, '')}"


def schemas(endpoint: Endpoint) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schema of a successful answer for each media type, and then the schema of an error
    answer under the name "refusal"."""
    responses = DOCUMENT["paths"][f"{PREFIX}/{endpoint.path}"][endpoint.method.lower()]["responses"]
    for media, described in responses["200"]["content"].items():
        yield media, described["schema"]
    yield "refusal", responses["default"]["content"][JSON]["schema"]


def test_the_document_is_openapi() -> None:
    """The document conforms to the published schema of OpenAPI 3.1."""
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_a_document_that_is_not_openapi_is_found() -> None:
    """The check finds an invalid document, and an answer with an unknown field or a wrong type."""
    parameter = {"name": "limit", "in": "nowhere"}
    broken = DOCUMENT | {"paths": {"/x": {"get": {"parameters": [parameter], "responses": {}}}}}
    assert list(OpenAPIV31SpecValidator(broken).iter_errors())
    moment = {"$ref": "#/components/schemas/MomentAnswer"}
    assert wrong(moment, {"revision": 1, "time": ""}) == []
    assert wrong(moment, {"revision": "1", "time": ""})
    assert wrong(moment, {"revision": 1, "time": "", "more": 0})


class Asked:
    """A gateway queried by the user olga, who has all rights."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def answer(self, endpoint: Endpoint, query: str = "") -> tuple[int, str, str]:
        """Call an endpoint, and return the answer's status, media type and text.

        For a stream, the text is only its first line."""
        body = BODIES.get(endpoint.name) if endpoint.method == "POST" else None
        if endpoint.path == "logout":
            body = None
        asked = self.session.request(
            endpoint.method, f"{self.url}{written(endpoint)}{query}", json=body
        )
        async with asked as answer:
            stream = answer.content_type not in {JSON, "text/csv"}
            text = (await answer.content.readline()).decode() if stream else await answer.text()
            return answer.status, answer.content_type, text


@pytest.fixture
async def asked(bus: Bus, tmp_path: Path) -> AsyncIterator[Asked]:
    """Provide a gateway with tokens and prices. Its ledger has one node, a placed pod and a pending
    pod."""
    facts = Facts(bus)
    await facts.open()
    await facts.write(rack("n1", 2))
    await facts.submit("a", "b")
    await facts.place("a", "n1", "n1-g0")
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    options = ("--listen", "127.0.0.1:0", "--tokens", str(people(tmp_path)))
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, *options, "--prices", str(prices)) as process:
        await process.ready()
        line = await process.logged("answering")
        token = {"Authorization": "Bearer olga"}
        async with aiohttp.ClientSession(headers=token) as session:
            yield Asked(str(line["url"]).removesuffix(f"{PREFIX}/"), session)


async def test_every_endpoint_answers_as_the_document_says(asked: Asked) -> None:
    """Every endpoint answers as documented."""
    for endpoint in ENDPOINTS:
        status, media, text = await asked.answer(endpoint)
        assert status == 200, (endpoint.path, text)
        schema = dict(schemas(endpoint)).get(media)
        assert schema is not None, (endpoint.path, media)
        found = json.loads(text) if media == JSON else text
        assert wrong(schema, found) == [], endpoint.path


async def test_reads_of_a_moment_and_refusals_are_as_the_document_says(asked: Asked) -> None:
    """Reads of the past match the document, and every endpoint refuses an undeclared parameter in
    the documented format."""
    for endpoint in ENDPOINTS:
        if "at" in endpoint.query.__struct_fields__ and endpoint.path != "moment":
            asks = "&at=3" if endpoint.path in QUERIES else "?at=3"
            status, media, text = await asked.answer(endpoint, asks)
            assert status == 200, (endpoint.path, text)
            assert wrong(dict(schemas(endpoint))[media], json.loads(text)) == [], endpoint.path
        if endpoint.name in {"login", "me"}:
            continue  # they have no parameters, and look at none
        asks = "&colour=red" if endpoint.path in QUERIES else "?colour=red"
        status, media, text = await asked.answer(endpoint, asks)
        assert (status, media) == (400, JSON), (endpoint.path, text)
        assert wrong(dict(schemas(endpoint))["refusal"], json.loads(text)) == [], endpoint.path
        assert json.loads(text)["field"] == "colour"
