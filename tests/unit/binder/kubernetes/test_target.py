"""Tests of how the binder binds a pod if the API server is busy, slow or failing, or if the pod has
changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio import client

from apportion.binder.binding import Bound, Failed, Outcome
from apportion.binder.kubernetes import target as kubernetes_target
from apportion.binder.kubernetes.target import FIRST, KubernetesTarget, Pace
from apportion.core.workloads.adoption.placement_annotations import ATTEMPT, SHARES, UID
from apportion.runtime.kube.client import KubeApi
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import NodeGone, PodGone
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

LEFT = "node n1 was removed from the cluster"
CREATED = (201, {"kind": "Status", "status": "Success"})
Reply = tuple[int, dict[str, Any]]


class Server:
    """An API server with one pod. It answers binding requests with the replies in `script`, and
    then with 201."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.found: Reply = (404, {"kind": "Status", "reason": "NotFound", "message": "not found"})
        self.bindings: list[dict[str, Any]] = []
        self.retry_after = ""
        self.url = ""

    async def bind(self, request: web.Request) -> web.Response:
        """Answer a binding request with the next reply. If the reply's status is 0, break the
        connection instead."""
        self.bindings.append(await request.json())
        status, body = self.script.pop(0) if self.script else CREATED
        if not status:
            assert request.transport is not None
            request.transport.close()
            await asyncio.sleep(0)
        headers = {"Retry-After": self.retry_after} if self.retry_after else {}
        return web.json_response(body, status=status or 500, headers=headers)

    async def get(self, _request: web.Request) -> web.Response:
        """Answer a request for the pod with the reply that the test has set in `found`."""
        status, body = self.found
        return web.json_response(body, status=status)


def refusal(status: int, reason: str = "", message: str = "no") -> Reply:
    """Return a reply that refuses the request with a Kubernetes Status."""
    return status, {"kind": "Status", "reason": reason, "message": message, "code": status}


def there(on: str = "", *, attempt: str = "1", **meta: Any) -> Reply:
    """Return a reply with the pod. If `on` is given, the pod is bound to that node."""
    metadata = {"uid": "p1", "annotations": {ATTEMPT: attempt}, **meta}
    return 200, {"metadata": metadata, "spec": {"nodeName": on} if on else {}}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    serving = Server()
    app = web.Application()
    app.router.add_post("/api/v1/namespaces/default/pods/p1/binding", serving.bind)
    app.router.add_get("/api/v1/namespaces/default/pods/p1", serving.get)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    serving.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield serving
    await runner.cleanup()


@pytest.fixture
def ledger() -> Ledger:
    """Return a ledger in which one pod is placed on node n1."""
    placed = Ledger(node("n1", gpu("g0"))).submit(pod("p1", ask(3000, cores=30)))
    return placed.settle()


async def bind(server: Server, ledger: Ledger, pace: Pace | None = None) -> Outcome:
    """Bind the ledger's pod to its node through this API server."""
    configuration = client.Configuration()
    configuration.host = server.url
    api = KubeApi(configuration)
    clock = SystemClock()
    target = KubernetesTarget(api, ledger.state, pace or Pace(clock), clock)
    placed = ledger.events[-1]
    try:
        return await asyncio.wait_for(target.bind(placed), 20)  # type: ignore[arg-type]
    finally:
        await api.close()


async def test_one_call_says_it_all(server: Server, ledger: Ledger) -> None:
    """The binder binds a pod with a single request, which has the node, the pod's uid and all
    annotations."""
    assert await bind(server, ledger) == Bound()
    (said,) = server.bindings
    assert said["target"]["name"] == "n1"
    assert (said["metadata"]["uid"], said["metadata"]["name"]) == ("p1", "p1")
    notes = said["metadata"]["annotations"]
    assert {SHARES, ATTEMPT, UID} <= notes.keys()


async def test_a_busy_server_is_asked_again_and_less(server: Server, ledger: Ledger) -> None:
    """If the API server is busy, the binder retries the binding and lowers its limit of concurrent
    requests."""
    pace = Pace(SystemClock())
    server.script = [refusal(429, "TooManyRequests"), refusal(500, "InternalError")]
    assert await bind(server, ledger, pace) == Bound()
    assert len(server.bindings) == 3
    assert pace.limit < FIRST


async def test_a_lost_answer_is_looked_up(server: Server, ledger: Ledger) -> None:
    """If the answer to a binding is lost and the retry gets a conflict, the binder reads the pod.
    The binding counts as successful if this placement attempt bound the pod."""
    server.script = [(0, {}), refusal(409, "Conflict")]
    server.found = there("n1")
    assert await bind(server, ledger) == Bound(earlier=True)


@pytest.mark.parametrize(
    ("found", "final", "message"),
    [
        (there("n2"), True, "already bound to n2"),
        (there("n1", attempt="7"), True, "by attempt 7"),
        (there(uid="other"), False, "another pod has this name now"),
        (there(deletionTimestamp="2026-01-01T00:00:00Z"), False, "being deleted"),
        (refusal(404, "NotFound", 'pods "p1" not found'), False, "not found"),
    ],
)
async def test_a_conflict_is_what_the_pod_is(
    server: Server, ledger: Ledger, found: Reply, message: str, *, final: bool
) -> None:
    """After a conflict, the binding fails for good if another node or attempt has bound the pod.
    The failure is temporary if the pod is being deleted or was replaced."""
    server.script = [refusal(409, "Conflict", "already assigned")]
    server.found = found
    outcome = await bind(server, ledger)
    assert isinstance(outcome, Failed)
    assert (outcome.final, message in outcome.message) == (final, True), outcome


async def test_a_conflict_that_was_another_write_is_tried_again(
    server: Server, ledger: Ledger
) -> None:
    """If the pod is still unbound after a conflict, the binder retries the binding."""
    server.script = [refusal(409, "Conflict")]
    server.found = there()
    assert await bind(server, ledger) == Bound()
    assert len(server.bindings) == 2


@pytest.mark.parametrize(
    ("status", "final"), [(403, False), (401, False), (404, False), (400, True), (422, True)]
)
async def test_a_refusal_is_final_unless_somebody_may_mend_it(
    server: Server, ledger: Ledger, status: int, *, final: bool
) -> None:
    """A binding fails for good if the API server rejects the request as malformed. A missing
    permission is a temporary failure, since an operator can grant it."""
    server.script = [refusal(status, "Reason", "why")]
    outcome = await bind(server, ledger)
    assert outcome == Failed(f"{status} Reason: why", final=final)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (there("n1"), Bound(earlier=True)),
        (there(), Failed(LEFT, final=False)),
        (there("n2"), Failed(f"already bound to n2: {LEFT}", final=True)),
        (refusal(404, "NotFound"), Failed("404 NotFound: no", final=False)),
        (refusal(429, "TooMany"), Failed("429 TooMany: no", final=False, unknown=True)),
        (refusal(503, "Away"), Failed("503 Away: no", final=False, unknown=True)),
        (refusal(403, "Forbidden"), Failed("403 Forbidden: no", final=False, unknown=True)),
    ],
)
async def test_a_pod_of_a_node_that_left_is_given_up_only_where_it_cannot_be_bound(
    server: Server, ledger: Ledger, found: Reply, expected: Outcome
) -> None:
    """If the node has left the cluster, the binder reads the pod and derives the outcome from the
    pod's state. If the pod cannot be read, the outcome is unknown."""
    placed = ledger.events[-1]
    ledger.play(NodeGone(node="n1"))
    ledger.events.append(placed)
    server.found = found
    assert await bind(server, ledger) == expected
    assert not server.bindings


@pytest.mark.parametrize("status", [403, 429, 503])
async def test_a_conflict_that_cannot_be_looked_up_is_unknown(
    server: Server, ledger: Ledger, status: int
) -> None:
    """If the binder cannot read the pod after a conflict, the outcome is unknown and the placement
    is kept."""
    server.script = [refusal(409, "Conflict")]
    server.found = refusal(status, "Reason")
    assert await bind(server, ledger) == Failed(f"{status} Reason: no", final=False, unknown=True)


async def test_a_pod_that_is_gone_needs_no_call(server: Server, ledger: Ledger) -> None:
    """If the pod is gone from the ledger, the binder sends no request."""
    placed = ledger.events[-1]
    ledger.play(PodGone(uid="p1"))
    ledger.events.append(placed)
    outcome = await bind(server, ledger)
    assert isinstance(outcome, Failed)
    assert (outcome.final, outcome.unknown) == (False, False)
    assert not server.bindings


async def test_a_server_that_never_answers_is_left(
    server: Server, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that gets no answer times out, and the next attempt can succeed."""
    monkeypatch.setattr(kubernetes_target, "TRY_TIMEOUT_S", 0.2)
    hang = asyncio.Event()
    answer = server.bind

    async def slow(request: web.Request) -> web.Response:
        if not server.bindings:
            server.bindings.append({})
            await hang.wait()
        return await answer(request)

    monkeypatch.setattr(server, "bind", slow)
    app = web.Application()
    app.router.add_post("/api/v1/namespaces/default/pods/p1/binding", slow)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    assert await bind(server, ledger) == Bound()
    hang.set()
    await runner.cleanup()
