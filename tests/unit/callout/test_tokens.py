"""Tests of how the callout checks a client's token with a TokenReview, and of its limits on such
reviews."""

import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from apportion.callout.tokens import (
    OPENED_BURST,
    OPENED_PER_S,
    REFUSED_BURST,
    REFUSED_KEPT_S,
    REVIEWS,
    Limited,
    NoToken,
    Reviewed,
    Tokens,
)
from apportion.core.identity.bearers import Bearer
from apportion.runtime.kube.client import KubeRefused, open_kube

NUMBERS = itertools.count()
AUDIENCE = "apportion-nats"
ENDS_S = 2_000_000_000


def token(payload: object) -> str:
    """Return a made-up JWT with this payload."""
    return token_of(json.dumps(payload).encode())


def token_of(payload: bytes) -> str:
    """Return a made-up JWT with these payload bytes."""
    text = base64.urlsafe_b64encode(payload).decode().rstrip("=")
    return f"e30.{text}.c2ln"


GOOD = token({"exp": ENDS_S})
DEEP = token_of(b'{"x":' + b"[" * 3_000 + b"]" * 3_000 + b"}")


class Answers:
    """The answers of a fake API server. By default the server answers like Kubernetes 1.29, whose
    TokenReview names no node."""

    def __init__(self) -> None:
        self.status = 201
        extra = {
            "authentication.kubernetes.io/pod-name": ["agent-x"],
            "authentication.kubernetes.io/pod-uid": ["u-1"],
        }
        name = "system:serviceaccount:apportion:agent"
        self.user: dict[str, Any] = {"username": name, "extra": extra}
        self.said: dict[str, Any] = {"authenticated": True, "audiences": [AUDIENCE]}
        self.pod: dict[str, Any] | None = {"metadata": {"uid": "u-1"}, "spec": {"nodeName": "n1"}}
        self.asked: list[Any] = []

    async def review(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json())["spec"])
        return web.json_response({"status": self.said | {"user": self.user}}, status=self.status)

    async def get_pod(self, _: web.Request) -> web.Response:
        """Answer a request for the pod, with 404 if there is none."""
        return web.json_response(self.pod or {}, status=200 if self.pod else 404)


@pytest.fixture
async def answers() -> Answers:
    """Provide the answers of an API server that accepts the token of one agent."""
    return Answers()


class Time:
    """A fake clock that a test sets."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
async def tokens(answers: Answers, clock: Time, tmp_path: Path) -> AsyncIterator[Tokens]:
    """Provide a token reviewer that calls the fake API server over HTTP."""
    app = web.Application()
    app.add_routes(
        [
            web.post(REVIEWS, answers.review),
            web.get("/api/v1/namespaces/apportion/pods/agent-x", answers.get_pod),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    named = [
        ("clusters", "cluster", {"server": url}),
        ("users", "user", {}),
        ("contexts", "context", {"cluster": "c", "user": "c"}),
    ]
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
    config |= {many: [{"name": "c", one: what}] for many, one, what in named}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    async with open_kube(path, None) as api:
        yield Tokens(api, AUDIENCE, now=clock)
    await runner.cleanup()


async def test_a_token_is_its_pods(tokens: Tokens, answers: Answers) -> None:
    """The callout takes the client's node from the TokenReview. If the review names no node, the
    callout uses the node of the token's pod."""
    agent = Bearer("apportion", "agent", "agent-x", "n1")
    assert await tokens.review(GOOD) == Reviewed(agent, ENDS_S)
    assert answers.asked == [{"token": GOOD, "audiences": [AUDIENCE]}]
    answers.user["extra"]["authentication.kubernetes.io/node-name"] = ["n2"]
    answers.pod = None
    assert (await tokens.review(GOOD)).bearer.node == "n2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"said": {"authenticated": False, "error": f"no: {GOOD}"}}, r"rejected .*no: \.\.\."),
        ({"said": {"authenticated": True}}, "does not have the audience"),
        ({"user": {"username": "system:node:n1"}}, "not belong to a ServiceAccount"),
        ({"user": {"username": "system:serviceaccount:x"}}, "not belong to a ServiceAccount"),
        ({"pod": None}, "the token's pod apportion/agent-x no longer exists"),
        ({"pod": {"metadata": {"uid": "u-2"}, "spec": {}}}, "was replaced"),
    ],
)
async def test_what_does_not_count_is_said_without_the_token(
    tokens: Tokens, answers: Answers, change: dict[str, Any], words: str
) -> None:
    """If a token is rejected, the error has the reason but never the token itself."""
    for name, value in change.items():
        setattr(answers, name, value)
    with pytest.raises(NoToken, match=words) as refused:
        await tokens.review(GOOD)
    assert GOOD not in str(refused.value)


@pytest.mark.parametrize(
    "shown", ["", "password", "a.b.c", token([]), token({}), DEEP, "x" * 20_000]
)
async def test_what_is_no_token_is_not_asked_about(
    tokens: Tokens, answers: Answers, shown: str
) -> None:
    """If a client sends text that is no token, the callout rejects it without asking the API
    server."""
    with pytest.raises(NoToken):
        await tokens.review(shown)
    assert answers.asked == []


async def test_an_api_server_that_forbids_to_ask_is_no_answer(
    tokens: Tokens, answers: Answers
) -> None:
    """If the API server does not permit the callout to review tokens, the error differs from that
    of a rejected token."""
    answers.status = 403
    with pytest.raises(KubeRefused):
        await tokens.review(GOOD)


async def show(tokens: Tokens, host: str, count: int, user: str = "") -> None:
    """Present `count` made-up tokens, and ignore the errors."""
    for _ in range(count):
        with contextlib.suppress(NoToken, Limited):
            await tokens.review(token({"exp": ENDS_S, "n": next(NUMBERS)}), host, user)


async def test_made_up_tokens_cost_a_review_a_second(
    tokens: Tokens, answers: Answers, clock: Time
) -> None:
    """The callout limits how many invalid tokens from one host it sends to the API server for
    review. Known clients and other hosts are not affected."""
    tokens.let_in("10.0.0.1", "agent-x")
    answers.said = {"authenticated": False}
    for count in (114, 114, 113, 113):
        await show(tokens, "10.0.0.1", count)
        clock.now_s += 1
    assert len(answers.asked) == REFUSED_BURST + 1 + 3
    clock.now_s -= 0.5
    answers.said = {"authenticated": True, "audiences": [AUDIENCE]}
    with pytest.raises(Limited):
        await tokens.review(GOOD, "10.0.0.1", "agent-y")
    await tokens.review(GOOD, "10.0.0.1", "agent-x")
    await tokens.review(GOOD, "10.0.0.2", "agent-y")
    clock.now_s += 60
    await tokens.review(GOOD, "10.0.0.1", "agent-y")


async def test_a_flood_under_a_known_name_is_limited_too(tokens: Tokens, answers: Answers) -> None:
    """If a client sends many invalid tokens under the name of a known client, the callout limits
    only the reviews under that name."""
    for name in ("agent-x", "agent-y"):
        tokens.let_in("10.0.0.1", name)
    answers.said = {"authenticated": False}
    await show(tokens, "10.0.0.1", 100, "agent-x")
    assert len(answers.asked) == REFUSED_BURST + 1
    answers.said = {"authenticated": True, "audiences": [AUDIENCE]}
    await tokens.review(GOOD, "10.0.0.1", "agent-y")
    await tokens.review(GOOD, "10.0.0.1", "agent-z")


async def test_a_refused_token_is_remembered_for_a_moment(
    tokens: Tokens, answers: Answers, clock: Time
) -> None:
    """For a short time after a token is refused, the callout refuses it without another review,
    whatever host sends it."""
    answers.said = {"authenticated": False}
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        with pytest.raises(NoToken, match="rejected the token"):
            await tokens.review(GOOD, host)
    assert len(answers.asked) == 1
    answers.said = {"authenticated": True, "audiences": [AUDIENCE]}
    clock.now_s += REFUSED_KEPT_S
    await tokens.review(GOOD, "10.0.0.1")


async def test_a_token_that_gets_nothing_counts_against_its_host(
    tokens: Tokens, answers: Answers
) -> None:
    """A valid token that has no role counts towards the limit of the host, or of the IPv6 network,
    that sent it."""
    for _ in range(100):
        try:
            await tokens.review(GOOD, "fd00::1:2")
        except Limited:
            continue
        tokens.charge("fd00::1:2", "")
    assert len(answers.asked) == REFUSED_BURST + 1
    with pytest.raises(Limited):
        await tokens.review(GOOD, "fd00::1:3")  # same network
    await tokens.review(GOOD, "fd00:0:0:1::1")


async def test_an_api_server_that_is_away_counts_against_nobody(
    tokens: Tokens, answers: Answers
) -> None:
    """If a TokenReview fails because of the API server, it does not count towards the client's
    limit."""
    answers.status = 500
    for _ in range(3 * int(REFUSED_BURST)):
        with pytest.raises(KubeRefused):
            await tokens.review(GOOD, "10.0.0.1")
    answers.status = 201
    await tokens.review(GOOD, "10.0.0.1")


async def test_a_token_opens_a_limited_number_of_connections(
    tokens: Tokens, answers: Answers, clock: Time
) -> None:
    """A single token can open only a limited number of connections, added up over all hosts. Other
    tokens are not affected."""
    for number in range(int(OPENED_BURST)):
        await tokens.review(GOOD, f"10.0.0.{number}")
    for _ in range(100):
        with pytest.raises(Limited):
            await tokens.review(GOOD, "10.0.1.1")
    assert len(answers.asked) == OPENED_BURST
    await tokens.review(token({"exp": ENDS_S, "n": next(NUMBERS)}), "10.0.1.1")
    clock.now_s += 1.01 / OPENED_PER_S
    await tokens.review(GOOD, "10.0.1.1")
    with pytest.raises(Limited):
        await tokens.review(GOOD, "10.0.1.1")
