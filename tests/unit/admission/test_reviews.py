"""Tests of the admission webhook's wire format: a valid review gets an answer, and anything else
gets an error."""

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.admission.main import checked
from apportion.admission.reviews import LIMITS, PATH, Reviews
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.http import HttpServer
from apportion_schemas import Configuration
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.golden import Golden
from tests.support.kube_claims import claiming_pod
from tests.support.kube_objects import kube_pod, share

WRITER = "system:serviceaccount:apportion:binder"


class Webhook:
    """An admission webhook that the tests reach over HTTP. Setting `reason` makes the webhook not
    ready."""

    def __init__(self, *, dra: bool = False) -> None:
        self.configuration = Configuration()
        self.reason = ""
        self.metrics = Metrics()
        self.url = ""
        self.reviews = Reviews(
            lambda: self.configuration,
            unready=lambda: self.reason,
            metrics=self.metrics,
            schedulers=("apportion",),
            scheduler="apportion",
            writer=WRITER,
            dra=dra,
        )

    async def post(self, body: bytes) -> tuple[int, Any]:
        return await asyncio.to_thread(self._post, body)

    def _post(self, body: bytes) -> tuple[int, Any]:
        request = urllib.request.Request(self.url, data=body, method="POST")  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    async def ask(self, pod: Any, **fields: Any) -> Any:
        """Ask the webhook to review the creation of `pod`, and return its response."""
        status, answer = await self.post(review(pod, **fields))
        assert status == 200, answer
        return answer["response"]


@pytest.fixture(params=[False])
async def webhook(request: pytest.FixtureRequest) -> AsyncIterator[Webhook]:
    """Yield a listening webhook. The test parameter decides whether DRA is enabled."""
    made = Webhook(dra=request.param)
    server = HttpServer(
        Address("127.0.0.1", 0),
        metrics=made.metrics,
        not_ready=list,
        routes=made.reviews.routes(),
        limits=LIMITS,
    )
    made.url = f"http://{await server.start()}{PATH}"
    yield made
    await server.stop()


def review(pod: Any, *, version: str = "v1", **fields: Any) -> bytes:
    """Return an AdmissionReview request as JSON, in the form that an API server sends."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": True,
    } | fields
    api_version = f"admission.k8s.io/{version}"
    return json.dumps(
        {"apiVersion": api_version, "kind": "AdmissionReview", "request": request}
    ).encode()


def unnamed(limits: dict[str, str]) -> dict[str, Any]:
    """Return a pod that has these limits and uses Kubernetes' default scheduler."""
    return kube_pod("p", limits, schedulerName="default-scheduler")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_review_is_answered_in_its_own_version(webhook: Webhook, version: str) -> None:
    """The webhook answers a review in the review's API version. The answer has the review's uid and
    a base64 patch."""
    status, answer = await webhook.post(review(unnamed(share()), version=version))
    assert status == 200
    assert answer["apiVersion"] == f"admission.k8s.io/{version}"
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == (
        "u-1", True, "JSONPatch",
    )  # fmt: skip
    (patch,) = json.loads(base64.b64decode(response["patch"]))
    assert patch == {"op": "add", "path": "/spec/schedulerName", "value": "apportion"}


async def test_a_rejection_says_why(webhook: Webhook) -> None:
    """A rejection has status code 400 and a message with the fix."""
    response = await webhook.ask(unnamed({"tencent.com/vcuda-core": "150"}))
    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert "write 100 or 200" in response["status"]["message"]


async def test_it_judges_by_the_newest_configuration(webhook: Webhook) -> None:
    """After a configuration change, the webhook judges the next pod by the new configuration."""
    pod = unnamed({"a.b/gpu": "1"})
    assert await webhook.ask(pod) == {"uid": "u-1", "allowed": True}
    nvidia = NvidiaConfiguration(resource_count_name="a.b/gpu")
    webhook.configuration = Configuration(nvidia=nvidia)
    assert "patch" in await webhook.ask(pod)


async def test_the_scheduler_that_is_filled_in_is_one_that_is_taken(webhook: Webhook) -> None:
    """The webhook sets a pod's scheduler name to the first scheduler name in the configuration,
    even if the webhook's own default is different."""
    webhook.configuration = Configuration(scheduler_names=("theirs", "more"))
    (patch,) = json.loads(base64.b64decode((await webhook.ask(unnamed(share())))["patch"]))
    assert patch["value"] == "theirs"


async def test_what_is_no_pod_goes_through(webhook: Webhook) -> None:
    """The webhook allows every request that does not create or update a pod: other resources,
    subresources and deletions."""
    deployments = {"group": "apps", "version": "v1", "resource": "deployments"}
    assert (await webhook.ask({}, resource=deployments))["allowed"]
    assert (await webhook.ask(unnamed({"a": "b"}), subResource="binding"))["allowed"]
    assert (await webhook.ask(None, operation="DELETE"))["allowed"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is not an AdmissionReview"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{", "the body is not an AdmissionReview"),
        (b"\xff\xfe", "the body is not an AdmissionReview"),
        (b"[" * 100_000, "the body is not an AdmissionReview"),
        (b'{"apiVersion":"v1","kind":"AdmissionReview","request":{}}', "apiVersion"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "request"),
        (review({}, uid=""), "uid"),
        (review({}, userInfo={"username": 7}), "username"),
    ],
)
async def test_a_review_that_cannot_be_read_is_an_error_that_says_so(
    webhook: Webhook, body: bytes, words: str
) -> None:
    """The webhook answers an unreadable review with status 400 and a suggested fix. It still
    answers the next review."""
    status, answer = await webhook.post(body)
    assert (status, words in answer["error"]) == (400, True), answer
    assert answer["fix"]
    assert (await webhook.ask(unnamed(share())))["allowed"]


async def test_a_deeply_nested_pod_is_rejected_and_not_crashed_on(
    golden: Golden, webhook: Webhook
) -> None:
    """The webhook rejects a pod whose fields are nested 300 levels deep, instead of crashing."""
    pod = unnamed(share())
    for _ in range(300):
        pod["spec"]["affinity"] = {"x": pod["spec"].get("affinity")}
    response = await webhook.ask(pod)
    golden({"300 levels": response["status"]["message"]})


async def test_a_body_over_the_limit_is_refused(webhook: Webhook) -> None:
    """The webhook refuses a body over the size limit with status 413 and names a fix."""
    status, answer = await webhook.post(b" " * (LIMITS.body_bytes + 1))
    assert status == 413
    assert answer["fix"]


async def test_who_does_not_know_the_configuration_judges_nobody(webhook: Webhook) -> None:
    """While the webhook has no current configuration, it answers 503. The API server then applies
    its own failure policy."""
    webhook.reason = "reading"
    status, answer = await webhook.post(review(unnamed(share())))
    assert (status, webhook.reason in answer["error"]) == (503, True)


async def test_outcomes_are_counted(webhook: Webhook) -> None:
    """The metrics count accepted and rejected reviews separately. An operator can thus see if the
    webhook never accepts a pod."""
    await webhook.ask(unnamed(share()))
    await webhook.ask(unnamed({"tencent.com/vcuda-core": "150"}))
    told = webhook.metrics.render().decode()
    for outcome in ("taken", "rejected"):
        assert f'apportion_admission_reviews_total{{outcome="{outcome}"}} 1.0' in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_cert": None}, "--tls-cert and --tls-key together"),
        ({"tls_cert": None, "tls_key": None}, "--tls-cert is not set"),
        ({"scheduler": "else"}, "use a name given with --scheduler-name"),
        ({"listen": "nowhere"}, "write host:port"),
        ({"schedulers": ("apportion", *map(str, range(32)))}, "at most 32"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: dict[str, Any], words: str) -> None:
    """The admission service refuses contradictory options with an error that names the fix."""
    given = {
        "listen": "127.0.0.1:0", "scheduler": "apportion", "schedulers": ("apportion",),
        "namespace": "apportion", "tls_cert": Path("crt"), "tls_key": Path("key"),
        "tls_client_ca": None, "dra": False,
    } | options  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        checked(given)


@pytest.mark.parametrize("webhook", [False, True], indirect=True)
async def test_a_pod_with_claims_goes_through_where_they_are_read(
    webhook: Webhook, request: pytest.FixtureRequest
) -> None:
    """The webhook allows a pod with ResourceClaims if DRA is enabled. Otherwise it rejects the pod
    and names `spec.resourceClaims`."""
    on = request.node.callspec.params["webhook"]
    answer = await webhook.ask(claiming_pod("p", "mine"))
    assert answer["allowed"] is on
    assert on or "spec.resourceClaims" in answer["status"]["message"]


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"spec": {"containers": [{}] * 600}}, "600 containers; the limit is 512"),
        ({"spec": {"containers": [{}] * 300, "initContainers": [{}] * 300}}, "600 containers"),
        ({"metadata": {"annotations": {"a": "x" * 1_600_000}}}, "bytes; the limit is 1600000"),
    ],
)
async def test_a_pod_that_is_larger_than_pods_are_is_not_looked_at(
    webhook: Webhook, pod: Any, said: str
) -> None:
    """The webhook rejects a new pod over the size limits if the pod requests devices. It allows
    oversized pods that request no devices, and updates of existing pods."""
    assert (await webhook.ask(pod))["allowed"]
    asking = pod | {"metadata": pod.get("metadata", {}) | {"labels": {"a": "nvidia.com/gpu"}}}
    answer = await webhook.ask(asking)
    assert not answer["allowed"]
    assert said in answer["status"]["message"]
    assert (await webhook.ask(asking, operation="UPDATE"))["allowed"]
