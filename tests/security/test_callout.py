"""The auth callout exchanges a ServiceAccount's token for a role in the ledger.

A token that is forged, expired or meant for another audience gets no role. A real API server
reviews the tokens, and a real nats-server calls the callout. The callout grants only the
permissions in the chart."""

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from apportion.callout.main import ISSUER_VARIABLE
from apportion.callout.tokens import OPENED_BURST
from apportion.core.identity.configuration import WITH_CALLOUT, configuration
from apportion.runtime.jetstream.client import JetStreamLedger, connect, create_stream
from apportion.runtime.jetstream.wire import LostReply
from apportion.runtime.ledger.port import (
    DuplicateRefused,
    LedgerError,
    LedgerUnavailable,
    NotPermitted,
    NotServed,
    OutcomeUnknown,
)
from apportion.runtime.process.reach import Reach
from apportion_schemas import PodPlaced
from tests.security.weakened import without
from tests.support.control_plane import NAMESPACE, ControlPlane
from tests.support.ended_tokens import a_day_later
from tests.support.facts import Facts
from tests.support.helm import rendered
from tests.support.nats import draft
from tests.support.nats_server import HOST, NatsServer
from tests.support.polling import until
from tests.support.processes import ServiceProcess

SECRET = "a-secret-of-the-chart-with-enough-letters"
AUDIENCE = "apportion-nats"
PASSWORDS = {role: f"p{role}" for role in ("bootstrap", "operator", "auditor", "callout")}
SOON_S = 20.0
MADE_UP, TOGETHER = 320, 32
OPENED = 160


class Cluster:
    """A cluster with nodes, and with pods that have Apportion's ServiceAccounts and tokens."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def prepare(self) -> None:
        """Create the callout's account and rights as in the chart, and two nodes."""
        chart = rendered(
            "--set", "callout.enabled=true", "--show-only", "templates/callout/rights.yaml"
        )
        await self._plane.user("apply", "-f", "-", stdin=chart)
        for name in ("node-a", "node-b"):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            await self._plane.apply(node)
        stranger = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}
        await self._plane.apply(stranger, namespace=NAMESPACE)

    async def pod(self, name: str, account: str, node: str = "node-a") -> None:
        """Create a pod with this ServiceAccount on this node."""
        spec = {
            "serviceAccountName": account,
            "nodeName": node,
            "containers": [{"name": "c", "image": "none"}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self._plane.apply(pod, namespace=NAMESPACE)

    async def delete(self, name: str) -> None:
        """Delete a pod without a grace period."""
        await self._plane.user(
            "delete", "pod", name, "-n", NAMESPACE, "--grace-period=0", "--force", "--wait=true"
        )

    async def token(self, account: str, pod: str, audience: str = AUDIENCE) -> str:
        """Return the token that the kubelet would mount into the pod."""
        found = await self._plane.get("pod", pod, namespace=NAMESPACE)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": found["metadata"]["uid"]}
        spec = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        answer = await self._plane.user(
            "create", "--raw", path, "-f", "-", stdin=json.dumps(request)
        )
        return str(json.loads(answer)["status"]["token"])


class Bus:
    """A NATS server, the callout that authenticates its clients, and the clients' connections."""

    def __init__(self, server: NatsServer, cluster: Cluster, callout: ServiceProcess) -> None:
        self.server = server
        self.cluster = cluster
        self.callout = callout
        self._open: list[JetStreamLedger] = []

    async def come(self, name: str, token: str, timeout_s: float = SOON_S) -> JetStreamLedger:
        """Connect with this name and token; the connection closes with the bus."""
        path = self.server.folder / f"{name}.token"
        path.write_text(token)
        reach = Reach(f"nats://{name}@{HOST}:{self.server.port}", token=path)
        ledger = await connect(reach, name=f"test {name}", timeout_s=timeout_s)
        self._open.append(ledger)
        return ledger

    async def start(self, role: str, *, node: str = "node-a", name: str = "") -> JetStreamLedger:
        """Create a pod of this role on this node, and connect with the pod's token. The user name
        is `name`, or the pod's name."""
        pod = f"{role}-x1"
        await self.cluster.pod(pod, role, node)
        return await self.come(name or pod, await self.cluster.token(role, pod))

    async def connect(self, role: str) -> JetStreamLedger:
        """Connect with the role's password, or as a service if the role has none."""
        if role not in PASSWORDS:
            return await self.start(role)
        ledger = await connect(self.server.url(role), name=f"test {role}")
        self._open.append(ledger)
        return ledger

    async def service(self, verb: str, *options: str) -> ServiceProcess:
        """Return a real service that uses its pod's token. It is not started yet."""
        pod = f"{verb}-x1"
        await self.cluster.pod(pod, verb)
        path = self.server.folder / f"{pod}.token"
        path.write_text(await self.cluster.token(verb, pod))
        url = f"nats://{pod}@{HOST}:{self.server.port}"
        return ServiceProcess(verb, url, "--nats-token", str(path), *options)

    async def refused(self, name: str, token: str, reason: str) -> None:
        """Check that this token is refused, and that the log has the reason but not the token."""
        already = len(self.callout.log)
        with pytest.raises(LedgerError):
            await self.come(name, token, timeout_s=SOON_S)

        async def told() -> bool:
            return any(reason in str(each.get("reason")) for each in self.callout.log[already:])

        await until(told, f"{reason!r} in {self.callout.log[already:]}")
        assert not token or token not in str(self.callout.log) + self.server.log

    async def close(self) -> None:
        for ledger in self._open:
            await ledger.close()


@pytest.fixture
async def bus(
    request: pytest.FixtureRequest,
    control_plane: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Bus]:
    """Yield a ledger whose users are authenticated by the callout. The test's parameter names a
    guard to remove."""
    first = without(getattr(request, "param", ""))
    monkeypatch.setenv(ISSUER_VARIABLE, SECRET)
    cluster = Cluster(control_plane)
    await cluster.prepare()
    server = NatsServer(tmp_path / "nats", configuration(WITH_CALLOUT), PASSWORDS)
    issuer = server.folder / "issuer" / "issuer.conf"
    issuer.parent.mkdir(parents=True)
    command = ["apportion.cli.main", "callout", "--write-issuer", str(issuer)]
    done = await asyncio.create_subprocess_exec(sys.executable, "-m", *command)
    assert await done.wait() == 0
    try:
        async with server:
            boot = await connect(server.url("bootstrap"), name="test")
            await create_stream(boot)
            await boot.close()
            kube = ("--kubeconfig", str(control_plane.kubeconfig_of("callout")))
            # A session expires during each test but one, in which nothing renews it.
            life = ("--life", "120" if "without_the_callout" in request.node.name else "5")
            async with ServiceProcess(
                "callout", server.url("callout"), *kube, *life, first=first
            ) as callout:
                await callout.ready()
                await callout.logged("answering")
                made = Bus(server, cluster, callout)
                yield made
                await made.close()
    finally:
        await control_plane.remove_everything()


async def _may(ledger: JetStreamLedger, subject: str) -> bool:
    """Return True if the client may append on this subject."""
    try:
        await _append(ledger, subject)
    except NotPermitted:
        return False
    return True


async def _append(ledger: JetStreamLedger, subject: str = "workload.pod1") -> None:
    """Append exactly once, reconnecting if the session expires in the meantime."""
    event = draft(subject)

    async def appended() -> bool:
        try:
            await ledger.append([event])
        except DuplicateRefused:
            return True  # its answer was lost
        except (LedgerUnavailable, OutcomeUnknown):
            return False
        return True

    await until(appended, f"an event on {subject} to be appended")


async def test_each_account_gets_its_role(bus: Bus) -> None:
    """Each ServiceAccount gets exactly the permissions of its role."""
    watcher, scheduler = await bus.start("watcher"), await bus.start("scheduler")
    binder = await bus.start("binder")
    appends = {watcher: "workload.p", scheduler: "placement.n", binder: "binding.p"}
    for ledger in appends:
        for owner, subject in appends.items():
            assert await _may(ledger, subject) is (ledger is owner), subject
    gateway = await bus.start("gateway")
    assert await gateway.last_revision() == len(appends)
    assert not await _may(gateway, "workload.p")
    taken = [each["role"] for each in bus.callout.log if each.get("event") == "taken"]
    # Each at least once: a client with an expired session has reconnected.
    assert list(dict.fromkeys(taken)) == ["watcher", "scheduler", "binder", "gateway"]


async def test_real_services_work_by_tokens(bus: Bus) -> None:
    """Agent, intake and scheduler work with tokens, even after their sessions expire."""
    facts = Facts(bus)  # type: ignore[arg-type] # it connects, and does nothing else with it
    await facts.open()
    async with AsyncExitStack() as running:
        for verb, options in (
            ("intake", ()),
            ("agent", ("--node", "node-a", "--simulate", "2xT4")),
            ("scheduler", ()),
        ):
            process = await running.enter_async_context(await bus.service(verb, *options))
            await process.ready()
        await facts.submit("first")
        (placed,) = await facts.count(PodPlaced, 1)
        assert placed.node == "node-a"

        async def again() -> bool:
            users = [each.get("user") for each in bus.callout.log if each.get("event") == "taken"]
            return min(users.count(f"{verb}-x1") for verb in ("agent", "scheduler")) > 1

        await until(again, "the end of their time, and another")
        await facts.submit("second")
        await facts.count(PodPlaced, 2)


def attacked(guard: str) -> pytest.MarkDecorator:
    """Return a pytest marker that runs a test twice: with the named guard and without it."""
    return pytest.mark.parametrize("bus", [guard, ""], indirect=True, ids=["weak", "guarded"])


async def _heard(ledger: JetStreamLedger, subject: str) -> bool:
    """Return True if the NATS server lets this client send requests on the subject."""
    for _ in range(20):
        await ledger.wire.wait_connected(SOON_S)
        try:
            await ledger.wire.request(subject, b"{}", timeout_s=2, headers={})
        except NotPermitted:
            return False
        except (LostReply, NotServed):
            return True
        except LedgerUnavailable:
            continue  # the time of its session has ended
        raise AssertionError("no intake runs that could answer")
    raise AssertionError(f"{subject}: never connected for long enough")


@attacked("knows the node of a token")
async def test_an_agent_speaks_for_the_node_of_its_pod(
    bus: Bus, request: pytest.FixtureRequest
) -> None:
    """An agent may report only for the node of its own pod."""
    weak = "weak" in request.node.callspec.id
    agent = await bus.start("agent", node="node-a")
    assert await _heard(agent, "apportion.intake.node-a")
    assert await _heard(agent, "apportion.intake.node-b") is weak
    token = await bus.cluster.token("agent", "agent-x1")
    await bus.cluster.pod("agent-x2", "agent", "node-b")
    await bus.refused("agent-x2", token, "connects as agent-x1")


@attacked("asks for its audience")
async def test_a_token_for_somebody_else_is_none(bus: Bus, request: pytest.FixtureRequest) -> None:
    """A pod's token for another audience is rejected."""
    await bus.cluster.pod("scheduler-x1", "scheduler")
    foreign = await bus.cluster.token("scheduler", "scheduler-x1", audience="vault")
    if "weak" in request.node.callspec.id:
        scheduler = await bus.come("scheduler-x1", foreign)
        assert await _may(scheduler, "placement.n")
    else:
        await bus.refused("scheduler-x1", foreign, "the API server rejected the token")


@attacked("reviews few of a host")
async def test_made_up_tokens_cost_few_reviews_and_delay_nobody(
    bus: Bus, control_plane: ControlPlane, request: pytest.FixtureRequest
) -> None:
    """While one host sends many invented tokens, a watcher on another host still connects.

    The API server reviews few of the tokens."""
    await bus.cluster.pod("watcher-x1", "watcher")
    token = await bus.cluster.token("watcher", "watcher-x1")
    before = await _reviews(control_plane)
    made_up = [_made_up(number) for number in range(MADE_UP)]
    async with asyncio.TaskGroup() as group:
        for share in range(TOGETHER):
            group.create_task(_show(bus.server.port, made_up[share::TOGETHER]))
        watcher = await bus.come("watcher-x1", token)
    cost = await _reviews(control_plane) - before
    assert cost >= MADE_UP if "weak" in request.node.callspec.id else cost < MADE_UP / 2
    assert await _may(watcher, "workload.p")


async def _reviews(plane: ControlPlane) -> int:
    """Return the number of tokens that the API server has reviewed."""
    metrics = await plane.user("get", "--raw", "/metrics")
    lines = [each for each in metrics.splitlines() if 'resource="tokenreviews"' in each]
    counts = (each for each in lines if each.startswith("apiserver_request_total{"))
    return sum(int(float(each.rpartition(" ")[2])) for each in counts)


def _made_up(number: int) -> str:
    payload = json.dumps({"exp": 2_000_000_000, "n": number}).encode()
    return f"e30.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.c2ln"


async def _show(port: int, tokens: list[str]) -> None:
    """Connect with each token in turn from an otherwise unused IP address."""
    for token in tokens:
        reader, writer = await asyncio.open_connection(HOST, port, local_addr=("127.0.0.9", 0))
        hello = json.dumps({"verbose": False, "user": "watcher-x9", "pass": token})
        writer.write(f"CONNECT {hello}\r\nPING\r\n".encode())
        with contextlib.suppress(ConnectionError):
            await reader.read(-1)
        writer.close()


@attacked("a token opens few connections")
async def test_a_stolen_token_opens_few_connections_and_delays_no_other_agent(
    bus: Bus, request: pytest.FixtureRequest
) -> None:
    """A stolen pod's token opens only a few connections, so another node's agent still connects."""
    for pod, node in (("agent-x1", "node-a"), ("agent-x2", "node-b")):
        await bus.cluster.pod(pod, "agent", node)
    stolen = await bus.cluster.token("agent", "agent-x1")
    async with AsyncExitStack() as stack:
        opened = await asyncio.gather(
            *(_held(stack, bus.server.port, "agent-x1", stolen) for _ in range(OPENED))
        )
        await bus.come("agent-x2", await bus.cluster.token("agent", "agent-x2"))
    if "weak" in request.node.callspec.id:
        assert sum(opened) == OPENED
    else:
        assert OPENED_BURST <= sum(opened) <= OPENED_BURST + TOGETHER


async def _held(stack: AsyncExitStack, port: int, user: str, token: str) -> bool:
    """Open a connection that stays open until `stack` closes. Return True if the server accepted
    it."""
    reader, writer = await asyncio.open_connection(HOST, port)
    stack.callback(writer.close)
    hello = json.dumps({"verbose": False, "user": user, "pass": token})
    writer.write(f"CONNECT {hello}\r\nPING\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b"PONG"):
            return True
    return False


async def test_a_token_that_does_not_count_is_refused(bus: Bus) -> None:
    """The callout refuses missing and forged tokens, and tokens of ended pods or of other pods.

    It also refuses a token of an account without a role."""
    await bus.cluster.pod("scheduler-x1", "scheduler")
    good = await bus.cluster.token("scheduler", "scheduler-x1")
    head, claims, signature = good.split(".")
    stranger = json.loads(base64.urlsafe_b64decode(claims + "=="))
    stranger["sub"] = "system:serviceaccount:apportion:binder"
    forged = base64.urlsafe_b64encode(json.dumps(stranger).encode()).decode().rstrip("=")
    await bus.refused("scheduler-x1", f"{head}.{forged}.{signature}", "rejected the token")
    await bus.refused("scheduler-x1", "guessed", "an expiring ServiceAccount token")
    await bus.refused("scheduler-x2", good, "connects as scheduler-x1")
    await bus.cluster.pod("other-x1", "stranger")
    other = await bus.cluster.token("stranger", "other-x1")
    await bus.refused("other-x1", other, "ServiceAccount apportion/stranger has no role")
    await bus.cluster.pod("scheduler-x3", "scheduler")
    gone = await bus.cluster.token("scheduler", "scheduler-x3")
    await bus.cluster.delete("scheduler-x3")
    await bus.refused("scheduler-x3", gone, "the API server rejected the token")


async def test_a_token_that_has_ended_is_refused_and_told_so(
    bus: Bus, control_plane: ControlPlane
) -> None:
    """An expired token is rejected with the API server's reason; a current one is accepted."""
    await bus.cluster.pod("scheduler-x1", "scheduler")
    token = await bus.cluster.token("scheduler", "scheduler-x1")
    ended = a_day_later(token, control_plane.accounts_key)
    await bus.refused("scheduler-x1", ended, "token has expired")
    assert await _may(await bus.come("scheduler-x1", token), "placement.n")


async def test_without_the_callout_who_is_there_goes_on_and_others_wait(bus: Bus) -> None:
    """While the callout is down, existing sessions continue. New clients wait until the callout is
    back."""
    await bus.cluster.pod("scheduler-x1", "scheduler")
    token = await bus.cluster.token("scheduler", "scheduler-x1")
    there = await bus.start("watcher")  # for a few seconds, and then it waits too
    await bus.callout.kill()
    await there.append([draft()])
    coming: asyncio.Task[Any] = asyncio.create_task(_insists(bus, "scheduler-x1", token))
    await there.append([draft()])
    assert not coming.done()
    await bus.callout.start()
    scheduler = await coming
    assert await scheduler.last_revision() == 2
    await _append(there)


async def test_who_was_let_in_for_a_time_comes_back_with_the_token_of_then(bus: Bus) -> None:
    """A client whose session expires reconnects with the renewed token, and loses no append."""
    watcher = await bus.start("watcher")
    renewed = await bus.cluster.token("watcher", "watcher-x1")
    (bus.server.folder / "watcher-x1.token").write_text(renewed)

    async def twice() -> bool:
        return [each.get("event") for each in bus.callout.log].count("taken") > 1

    await until(twice, "the watcher to come back")

    await _append(watcher)
    await bus.cluster.delete("watcher-x1")
    reason = "the API server rejected the token"

    async def shut_out() -> bool:
        return bool([each for each in bus.callout.log if reason in str(each.get("reason"))])

    await until(shut_out, "the watcher whose pod is gone to be refused")


async def _insists(bus: Bus, name: str, token: str) -> JetStreamLedger:
    while True:
        try:
            return await bus.come(name, token)
        except LedgerError:
            continue
