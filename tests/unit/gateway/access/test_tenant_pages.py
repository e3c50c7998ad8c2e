"""Tests that a tenant can page through lists that hide most of their items, and gets each item
once."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from apportion.core.answers.visibility import NOT_TOLD, OTHERS
from apportion.gateway.access.gate import SEALED_MAX, Cursors, Gate
from apportion.gateway.access.people import READ_ALL, Person, Remembered, Wish
from apportion.gateway.api.answering import guarded, json_response
from apportion.gateway.api.endpoint import PREFIX, Handler
from apportion.gateway.api.measures import Measures
from apportion.gateway.api.query import RequestRefused
from apportion.gateway.api.reads import READS, Read
from apportion.gateway.feed import Feed
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import PodRejected, QueueObserved, QuotaObserved
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, gang, member, pod

GANGS = ("ops/secret-a", "ops/secret-b", "ml/mine", "ops/secret-c")
NODES = ("n1", "n2", "n3")
SECRET = b"a key that all gateways of this cluster have"
Client = TestClient[web.Request, web.Application]


class Register:
    """A fake login: mei may read the namespace `ml`, and olga may read everything."""

    async def person(self, token: str) -> Person | None:
        """Return the person whose name is the token, or None if the name is unknown."""
        return Person(token)

    async def may(self, person: Person, wish: Wish) -> bool:
        return person.name == "olga" or (wish != READ_ALL and wish.namespace == "ml")


def rejected(number: int, namespace: str) -> PodRejected:
    """Return a rejected pod whose uid and name are secret."""
    return PodRejected(
        uid=f"secret-uid-{number}", namespace=namespace, name=f"secret-{number}", field="spec.x",
        value="-1", problem="is negative", fix="write a number from 1",
    )  # fmt: skip


def application(cursors: Cursors) -> web.Application:
    """Return a gateway's read API with a login, over a cluster that belongs mostly to the namespace
    `ops`."""
    ledger = Ledger(*(rack(name, 2) for name in NODES))
    for name in GANGS:
        ledger.play(gang(name, 1, queue="his-queue" if name.startswith("ml/") else "secret-queue"))
    ledger.submit(member("m0", ask(1000), group="ml/mine", namespace="ml"))
    ledger.submit(pod("p0", ask(1000), namespace="ops", name="secret-pod"))
    ledger.play(*(rejected(number, "ops") for number in range(3)))
    ledger.play(
        QueueObserved(queue="shared", capability={"nvidia.com/gpu": 4}),
        *(
            QuotaObserved(namespace=name, quota="secret-quota" if name == "ops" else "mine")
            for name in ("ml", "ops")
        ),
    )
    feed = Feed(ledger.settle().state)
    gate, measures = Gate(Remembered(Register()), cursors, READS), Measures(Metrics())

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await gate.guard(request, handler)

    made = web.Application(middlewares=[guard])
    for read in READS:

        async def handle(request: web.Request, read: Read = read) -> web.StreamResponse:
            return json_response(read.of(feed, request))

        made.router.add_routes([read.route(guarded(measures, read.name, handle))])
    return made


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with TestClient(TestServer(application(Cursors(SECRET)))) as made:
        yield made


async def page(client: Client, who: str, path: str, **query: str) -> tuple[int, str, Any]:
    """Request one page of a list as this person. Return its status, text and decoded answer."""
    sent = {"Authorization": f"Bearer {who}"}
    async with client.get(f"{PREFIX}/{path}", params=query, headers=sent) as answer:
        return answer.status, await answer.text(), await answer.json()


async def walk(client: Client, who: str, path: str, most: int) -> tuple[list[Any], list[str], str]:
    """Read the list to its end, in at most `most` pages of one item each. Return all items, all
    cursors, and the text of all pages."""
    items: list[Any] = []
    cursors, texts = [""], ""
    for _ in range(most):
        asked = {"limit": "1", **({"continue": cursors[-1]} if cursors[-1] else {})}
        status, text, answer = await page(client, who, path, **asked)
        assert status == 200, text
        items += answer["items"]
        texts += text
        if not answer["continue"]:
            return items, cursors[1:], texts
        cursors.append(answer["continue"])
    raise AssertionError(f"{path} has no end: {cursors}")


async def test_gangs_come_once_each_and_of_others_without_whose(client: Client) -> None:
    """A tenant who pages through the gangs gets each gang once. Gangs of other namespaces have no
    name."""
    items, _, texts = await walk(client, "mei", "gangs", len(GANGS))
    assert [each["group"] for each in items] == ["ml/mine", *[NOT_TOLD] * 3]
    assert items[0]["queue"] == "his-queue", "his own in full"
    assert {each["queue"] for each in items[1:]} == {NOT_TOLD}
    assert {each["namespace"] for each in items[1:]} == {OTHERS}
    assert {each["min_available"] for each in items} == {1}, "how much is told"
    assert not [word for word in ("secret", "ops/", '"ops"') if word in texts]
    whole, _, _ = await walk(client, "olga", "gangs", len(GANGS))
    assert sorted(each["group"] for each in whole) == sorted(GANGS)


async def test_pods_go_on_without_a_uid_of_another(client: Client) -> None:
    """A tenant can page past other namespaces' rejected pods. Neither the items nor the cursors
    reveal their uids."""
    items, cursors, texts = await walk(client, "mei", "pods", 5)
    assert [each["phase"] for each in items[2:]] == ["rejected"] * 3
    assert len(items) == 5
    assert len(cursors) == 4
    assert "secret" not in texts


async def test_quotas_of_others_are_not_there(client: Client) -> None:
    """A tenant sees all queues, but only the quotas of its own namespaces."""
    items, _, texts = await walk(client, "mei", "quotas", 2)
    assert [(each["namespace"], each["quota"]) for each in items] == [("ml", "mine")]
    assert "secret" not in texts
    whole, _, _ = await walk(client, "olga", "quotas", 2)
    assert len(whole) == 2
    queues, _, _ = await walk(client, "mei", "queues", 1)
    assert queues[0]["capability"] == {"nvidia.com/gpu": 4}


async def test_nodes_go_on_as_before(client: Client) -> None:
    """A tenant sees all nodes with their names."""
    items, _, _ = await walk(client, "mei", "nodes", len(NODES))
    assert [each["node"] for each in items] == list(NODES)


@pytest.mark.parametrize(
    "made_up", ["ops/secret-a", "rejected:secret-uid-1", "zz9", "ä", "gAAAAA=="]
)
async def test_what_a_tenant_makes_up_is_refused(client: Client, made_up: str) -> None:
    """The gateway refuses a cursor that it did not issue, because a tenant could use made-up
    cursors to guess names."""
    for path in ("gangs", "pods"):
        status, text, answer = await page(client, "mei", path, **{"continue": made_up})
        assert (status, answer["field"]) == (400, "continue")
        assert "continue" in answer["fix"]
        assert made_up not in text


async def test_what_one_list_gave_is_refused_by_another(client: Client) -> None:
    """The gateway refuses a cursor that it issued for another list."""
    _, cursors, _ = await walk(client, "mei", "pods", 5)
    status, text, answer = await page(client, "mei", "placements", **{"continue": cursors[-1]})
    assert (status, answer["field"]) == (400, "continue")
    assert "secret" not in text


async def test_every_gateway_of_the_cluster_goes_on_where_one_has_ended(client: Client) -> None:
    """A cursor is valid at every gateway that has the same key. A gateway with another key refuses
    the cursor and reports that the key has changed."""
    _, cursors, _ = await walk(client, "mei", "gangs", len(GANGS))
    asked = {"continue": cursors[1]}
    async with TestClient(TestServer(application(Cursors(SECRET)))) as other:
        status, _, answer = await page(other, "mei", "gangs", **asked)
        assert (status, len(answer["items"])) == (200, len(GANGS) - 2)
    async with TestClient(TestServer(application(Cursors()))) as stranger:
        status, text, answer = await page(stranger, "mei", "gangs", **asked)
        assert (status, answer["field"]) == (400, "continue")
        assert "key has changed" in text


def test_a_seal_has_a_limit() -> None:
    """The gateway refuses overlong cursors. A cursor that contains the longest possible name is
    within the limit."""
    cursors = Cursors()
    longest = cursors.seal("gangs", f"{'n' * 63}/{'g' * 253}")
    assert len(longest) < SEALED_MAX
    assert cursors.open("gangs", longest).endswith("g")
    with pytest.raises(RequestRefused, match="continue"):
        cursors.open("gangs", "A" * (SEALED_MAX + 1))
