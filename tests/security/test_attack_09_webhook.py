"""Attack 9: a client floods the webhook until the API server admits pods without asking it."""

import asyncio
import io
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.security.weakened import without
from tests.support.certificates import HOST
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.policies import holding
from tests.support.policies import without as left_out
from tests.support.polling import until
from tests.support.webhook import running_webhook

POSTS, POST_BYTES, PODS, REFUSED = 30, 6_000_000, 3, 400
FORGED = {"apportion.dev/shares": "[]"}


def weak(webhooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one webhook for all new pods. If it times out, the API server admits the pod."""
    found = [each for each in webhooks if each["name"] == "pods.admission.apportion.dev"]
    return hasty([{key: each[key] for key in each if key != "matchConditions"} for each in found])


def hasty(webhooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the webhooks with a timeout of one second instead of five, to make the test faster."""
    return [each | {"timeoutSeconds": 1} for each in webhooks]


def review() -> bytes:
    """Return an admission review of 6 MB, for a pod of many containers with device requests."""
    one = {"name": "c12345", "image": "i", "resources": {"limits": share()}}
    pod, count = kube_pod("bomb", share()), POST_BYTES // len(json.dumps(one))
    pod["spec"]["containers"] = [one | {"name": f"c{at}"} for at in range(count)]
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {"uid": "u", "operation": "CREATE", "resource": resource, "object": pod}
    about = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(about).encode()


@asynccontextmanager
async def flooded(port: int) -> AsyncIterator[Counter[str]]:
    """While the block runs, send bodies of 6 MB to the webhook, thirty at a time. Yield a counter
    of the outcomes."""
    body, outcomes = review(), Counter[str]()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    url = f"https://{HOST}:{port}/admission"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:

        async def post() -> None:
            while True:
                try:
                    async with session.post(url, data=io.BytesIO(body), ssl=trusting) as answer:
                        outcomes["refused" if answer.status >= REFUSED else "read"] += 1
                except (aiohttp.ClientError, TimeoutError, OSError):
                    outcomes["hung up on"] += 1

        posting = [asyncio.create_task(post()) for _ in range(POSTS)]
        try:
            yield outcomes
        finally:
            for task in posting:
                task.cancel()
            await asyncio.gather(*posting, return_exceptions=True)


async def forge(world: KubeWorld, turn: int, *, ok: bool | None) -> list[str]:
    """Create three pods with forged device annotations, and return the API server's replies."""
    pods = [kube_pod(f"forged-{turn}-{at}", annotations=FORGED) for at in range(PODS)]
    told = ("create", "-f", "-")
    return [await world.plane.user(*told, stdin=json.dumps(pod), ok=ok) for pod in pods]


@pytest.mark.parametrize("guard", ["weak", "guarded"])
async def test_a_flooded_webhook_lets_a_forged_pod_pass(world: KubeWorld, guard: str) -> None:
    """A forged pod is refused even while the webhook is flooded.

    The API server itself checks the annotations that only Apportion may write. The webhook rejects
    oversized bodies before it reads them. Without the guard the API server gives up on the flooded
    webhook, and admits forged pods."""
    await world.plane.apply(kube_node("n1"))
    if guard == "weak":
        first = without("limits of the webhook")
        async with (
            running_webhook(world, change=weak, first=first) as webhook,
            flooded(webhook.port),
        ):
            passed = 0
            for turn in range(60):  # some come while it answers, and it refuses these
                passed += sum(map(bool, await forge(world, turn, ok=None)))
                if passed >= PODS:
                    return
        pytest.fail(f"{passed} of {PODS} forged pods were taken")
    async with (
        holding(world.plane, left_out()),
        running_webhook(world, change=hasty) as webhook,
        flooded(webhook.port) as outcomes,
    ):
        for said in await forge(world, 0, ok=False):
            assert "set only by Apportion" in said or "failed calling webhook" in said
        await webhook.in_force()  # another user's pod is reviewed in the meantime

        async def answered() -> bool:
            return outcomes.total() > POSTS

        await until(answered, "answers to the flood")
        assert not outcomes["read"]


def patient(webhooks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the webhooks with the longest timeout: five seconds are too short on a busy
    machine."""
    return [webhook | {"timeoutSeconds": 30} for webhook in webhooks]


async def test_a_pod_of_thousands_of_containers_is_refused_by_name(world: KubeWorld) -> None:
    """The webhook rejects a pod with too many containers, and its message has the limit."""
    bomb = kube_pod("bomb", share())
    one = bomb["spec"]["containers"][0]
    bomb["spec"]["containers"] = [one | {"name": f"c{at}"} for at in range(2_000)]
    noted = kube_pod("noted", share(), annotations={f"a.b/{at}": "" for at in range(5_000)})
    async with running_webhook(world, change=patient):
        told = ("create", "--dry-run=server", "-f", "-")
        said = await world.plane.user(*told, stdin=json.dumps(bomb), ok=False)
        assert ("2000" in said, "512" in said) == (True, True)
        assert "created" in await world.plane.user(*told, stdin=json.dumps(noted))
