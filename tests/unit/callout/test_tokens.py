"""What an API server says of a token, newer and older ones, and what is no answer."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from apportion.callout.tokens import REVIEWS, NoToken, Reviewed, Tokens
from apportion.core.identity.bearers import Bearer
from apportion.runtime.kube.client import KubeRefused, open_kube

AUDIENCE = "apportion-nats"
ENDS_S = 2_000_000_000


def token(payload: object) -> str:
    """A token with this in the middle."""
    return token_of(json.dumps(payload).encode())


def token_of(payload: bytes) -> str:
    """A token with these bytes in the middle."""
    text = base64.urlsafe_b64encode(payload).decode().rstrip("=")
    return f"e30.{text}.c2ln"


GOOD = token({"exp": ENDS_S})
DEEP = token_of(b'{"x":' + b"[" * 3_000 + b"]" * 3_000 + b"}")


class Answers:
    """What the API server answers; by default as Kubernetes 1.29 does, without a node."""

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
        """A TokenReview."""
        self.asked.append((await request.json())["spec"])
        return web.json_response({"status": self.said | {"user": self.user}}, status=self.status)

    async def get_pod(self, _: web.Request) -> web.Response:
        """The pod, or that there is none."""
        return web.json_response(self.pod or {}, status=200 if self.pod else 404)


@pytest.fixture
async def answers() -> Answers:
    """A server that knows one agent's token."""
    return Answers()


@pytest.fixture
async def tokens(answers: Answers, tmp_path: Path) -> AsyncIterator[Tokens]:
    """Reviews by that server, over HTTP."""
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
        yield Tokens(api, AUDIENCE)
    await runner.cleanup()


async def test_a_token_is_its_pods(tokens: Tokens, answers: Answers) -> None:
    """Where the API server does not say the node, the pod does; where it does, it is not asked."""
    agent = Bearer("apportion", "agent", "agent-x", "n1")
    assert await tokens.review(GOOD) == Reviewed(agent, ENDS_S)
    assert answers.asked == [{"token": GOOD, "audiences": [AUDIENCE]}]
    answers.user["extra"]["authentication.kubernetes.io/node-name"] = ["n2"]
    answers.pod = None
    assert (await tokens.review(GOOD)).bearer.node == "n2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"said": {"authenticated": False, "error": f"no: {GOOD}"}}, r"does not take .*no: \.\.\."),
        ({"said": {"authenticated": True}}, "not for the audience"),
        ({"user": {"username": "system:node:n1"}}, "no ServiceAccount's"),
        ({"user": {"username": "system:serviceaccount:x"}}, "no ServiceAccount's"),
        ({"pod": None}, "pod apportion/agent-x of the token is gone"),
        ({"pod": {"metadata": {"uid": "u-2"}, "spec": {}}}, "another has its name"),
    ],
)
async def test_what_does_not_count_is_said_without_the_token(
    tokens: Tokens, answers: Answers, change: dict[str, Any], words: str
) -> None:
    """Whatever the API server says, or a server of before audiences does not say."""
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
    """A password that somebody mistyped does not go to the API server."""
    with pytest.raises(NoToken):
        await tokens.review(shown)
    assert answers.asked == []


async def test_an_api_server_that_forbids_to_ask_is_no_answer(
    tokens: Tokens, answers: Answers
) -> None:
    """It is told apart from a token that does not count."""
    answers.status = 403
    with pytest.raises(KubeRefused):
        await tokens.review(GOOD)
