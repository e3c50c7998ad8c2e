"""Tests of a gateway that authenticates and authorises its users with a real API server."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apportion.core.answers.visibility import OTHERS
from apportion.gateway.access.kube_login import AUDIENCE
from apportion_schemas import NodeCordoned
from tests.support.control_plane import ControlPlane
from tests.support.ended_tokens import a_day_later
from tests.support.fleet import rack
from tests.support.kube_world import KubeWorld
from tests.support.pods import ask, pod
from tests.support.ports import free_port

PEOPLE = """
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: mei, namespace: team-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: olga, namespace: team-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: nobody, namespace: team-a}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mei, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: apportion-tenant}
subjects: [{kind: ServiceAccount, name: mei, namespace: team-a}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: olga}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: apportion-operator}
subjects: [{kind: ServiceAccount, name: olga, namespace: team-a}]
"""


def token(plane: ControlPlane, name: str, *audiences: str) -> str:
    """Return a token for this user. Without `audiences` it is a token for the API server itself."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    spec |= {"audiences": audiences} if audiences else {}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/team-a/serviceaccounts/{name}/token"
    answer = plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(request))
    return str(json.loads(answer)["status"]["token"])


@pytest.fixture
def people(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Provide a tenant, an operator, and a user without any right."""
    control_plane.kubectl("apply", "-f", "-", stdin=PEOPLE)
    yield control_plane
    control_plane.kubectl("delete", "clusterrolebinding", "olga")
    control_plane.kubectl("delete", "rolebinding", "mei", "-n", "team-a")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def begun(world: KubeWorld, kubeconfig: Path) -> str:
    """Start a gateway that authenticates users at this API server, on a ledger with pods of two
    namespaces. Return the gateway's URL."""
    await world.facts.write(rack("n1", 2))
    await world.facts.write(
        pod("u1", ask(), namespace="team-a", name="mine"),
        pod("u2", ask(), namespace="team-b", name="theirs"),
        role="operator",
    )
    options = ("--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig))
    gateway = await world.start("gateway", *options)
    return str((await gateway.logged("answering"))["url"])


async def get(session: aiohttp.ClientSession, url: str, bearer: str) -> tuple[int, Any]:
    """Send a GET request with this bearer token, and return the status and the JSON answer."""
    async with session.get(url, headers={"Authorization": f"Bearer {bearer}"}) as answer:
        return answer.status, await answer.json()


async def test_the_api_server_says_who_asks_and_what_he_may(
    world: KubeWorld, people: ControlPlane, session: aiohttp.ClientSession
) -> None:
    """A tenant sees its own pods, an operator sees all pods, and a user without rights gets no
    pod's name."""
    url = await begun(world, people.kubeconfig_of("gateway"))
    mei, olga, nobody = (token(people, name, AUDIENCE) for name in ("mei", "olga", "nobody"))
    for bearer, names in (
        (mei, [("team-a", "mine"), (OTHERS, "-")]),
        (olga, [("team-a", "mine"), ("team-b", "theirs")]),
        (nobody, [(OTHERS, "-"), (OTHERS, "-")]),
    ):
        status, page = await get(session, f"{url}pods", bearer)
        assert status == 200, page
        assert [(item["namespace"], item["name"]) for item in page["items"]] == names
    assert (await get(session, f"{url}pods/team-b/theirs/why", mei))[0] == 403
    assert (await get(session, f"{url}doctor", mei))[0] == 403
    assert (await get(session, f"{url}doctor", olga))[0] == 200
    _, me = await get(session, f"{url}me", olga)
    assert (me["name"], me["cordons"]) == ("system:serviceaccount:team-a:olga", True)


async def test_a_token_for_somebody_else_is_nobodys(
    world: KubeWorld, people: ControlPlane, session: aiohttp.ClientSession
) -> None:
    """The gateway rejects a token that was issued for the API server or for another service."""
    url = await begun(world, people.kubeconfig_of("gateway"))
    for bearer in (token(people, "olga"), token(people, "olga", "vault"), "x", ""):
        status, error = await get(session, f"{url}pods", bearer)
        assert status == 401, error
        assert "token" in error["fix"]


async def test_a_token_that_has_ended_is_refused_and_told_so(
    world: KubeWorld, people: ControlPlane, session: aiohttp.ClientSession
) -> None:
    """The gateway rejects an expired token, and its error names the token as the problem."""
    url = await begun(world, people.kubeconfig_of("gateway"))
    today = token(people, "olga", AUDIENCE)
    ended = a_day_later(today, people.accounts_key)
    status, error = await get(session, f"{url}pods", ended)
    assert (status, "token" in error["error"]) == (401, True)
    assert (await get(session, f"{url}pods", today))[0] == 200


async def test_the_event_of_an_act_has_the_name_that_the_api_server_knows(
    world: KubeWorld, people: ControlPlane, session: aiohttp.ClientSession
) -> None:
    """The event of a cordon has the user name that the API server knows. A user without the right
    to cordon is refused."""
    url = await begun(world, people.kubeconfig_of("gateway"))
    body = {"reason": "fan"}
    for name, expected in (("mei", 403), ("olga", 200)):
        headers = {"Authorization": f"Bearer {token(people, name, AUDIENCE)}"}
        act = session.post(f"{url}nodes/n1/cordon", json=body, headers=headers)
        async with act as answer:
            said = await answer.json()
            assert answer.status == expected, said
        assert expected == 200 or "cordon nodes n1" in said["error"]
    [cordoned] = await world.facts.count(NodeCordoned, 1)
    assert cordoned.by == "system:serviceaccount:team-a:olga"


async def test_without_the_api_server_nobody_is_let_in(
    world: KubeWorld, people: ControlPlane, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """While the API server is unreachable the gateway answers 503 with the reason."""
    away = tmp_path / "away.kubeconfig"
    text = people.kubeconfig_of("gateway").read_text()
    away.write_text(text.replace(people.url, f"https://127.0.0.1:{free_port()}"))
    url = await begun(world, away)
    status, error = await get(session, f"{url}pods", token(people, "olga", AUDIENCE))
    assert status == 503
    assert "API server" in error["error"]


async def test_a_gateway_that_may_not_review_says_what_it_lacks(
    world: KubeWorld, people: ControlPlane, session: aiohttp.ClientSession
) -> None:
    """A gateway whose account may not review tokens answers 503 and names the missing right."""
    url = await begun(world, people.kubeconfig_of("scheduler"))
    status, error = await get(session, f"{url}pods", token(people, "olga", AUDIENCE))
    assert status == 503
    assert "review" in error["error"]
