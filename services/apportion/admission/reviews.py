"""Answers AdmissionReviews of the API server; the rules are in `core.admission`.

Invariants: every readable review gets an answer with its uid. An unreadable review gets an error
that names the cause. No review is answered until the configuration has been read, or while the
configuration is known to be outdated."""

import base64
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct

from apportion.core.admission import CREATE, Admitted, Asked, Rejected, Rules, admit
from apportion.core.configuration import manifest_config
from apportion.core.workloads.adoption.placement_annotations import PREFIX
from apportion.core.workloads.dialects.listing import claimed
from apportion.core.workloads.document import ManifestError
from apportion.core.workloads.lint.typo_checks import suspects
from apportion.core.workloads.schedulers import scheduler_names
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.limits import Limits
from apportion.runtime.service.own_machine import PodTooLarge, answering, read_body, read_pod
from apportion_schemas import Configuration
from apportion_schemas.decoding import from_outside

PATH = "/admission"
# An update contains the pod twice, and etcd stores up to 1.5 MiB per object.
LIMITS = Limits(
    body_bytes=3_200_000, heavy_bytes=1 << 20, each_per_s=0, each_at_once=256
)  # fmt: skip
# Verdicts after which we warn of misspelt names; a pod without a device may have meant one.
OURS = ("taken", "read", "no device")
WARNINGS_MAX = 5
WARNING_CHARS_MAX = 240
_REJECTED = 400

_encode = msgspec.json.Encoder().encode
ShortText = Annotated[str, Meta(max_length=1024)]
_NULL = Raw(b"null")


class _Kube(Struct, frozen=True, rename="camel"): ...


class _User(_Kube, frozen=True):
    username: str = ""


class _Resource(_Kube, frozen=True):
    group: ShortText = ""
    resource: ShortText = ""


class _Request(_Kube, frozen=True, kw_only=True):
    uid: Annotated[str, Meta(min_length=1, max_length=256)]
    operation: ShortText
    resource: _Resource = _Resource()
    sub_resource: ShortText = ""
    namespace: ShortText = ""
    user_info: _User = _User()
    object: Raw = _NULL
    old_object: Raw = _NULL


class _Review(_Kube, frozen=True):
    api_version: Literal["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]
    kind: Literal["AdmissionReview"]
    request: _Request


_decode = from_outside(msgspec.json.Decoder(_Review).decode)


class Reviews:
    """Answers admission reviews by the configuration in force.

    `unready` returns why no review can be answered yet, or "". New pods get the scheduler
    `scheduler`, one of `schedulers`. Only the user `writer` may write our annotations."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        *,
        unready: Callable[[], str],
        metrics: Metrics,
        schedulers: Iterable[str],
        scheduler: str,
        writer: str,
        dra: bool = False,
    ) -> None:
        self._dra = dra
        self._configuration = configuration
        self._unready = unready
        self._schedulers = frozenset(schedulers)
        self._scheduler = scheduler
        self._writer = writer
        self._reviews = metrics.counter(
            "apportion_admission_reviews_total", "Checked pods by outcome.", ("outcome",)
        )
        self._seconds = metrics.histogram(
            "apportion_admission_seconds", "Time to check one pod, from request to response."
        )

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """Yield the route to which the API server posts its reviews."""

        async def reviewed(request: web.Request) -> bytes:
            body = await request.read()
            began = time.perf_counter()
            answer = self.answer(body)
            self._seconds.observe(time.perf_counter() - began)
            return answer

        yield web.post(PATH, answering(reviewed, self._unready))

    def answer(self, body: bytes) -> bytes:
        """Answer an encoded AdmissionReview. Raises BadBody if it cannot be read."""
        review = read_body(_decode, body, "an AdmissionReview of admission.k8s.io/v1")
        request = review.request
        about = (request.resource.group, request.resource.resource, request.sub_resource)
        slips: list[str] = []
        verdict: Admitted | Rejected = Admitted("not a pod")
        if about == ("", "pods", ""):
            try:
                asked = Asked(
                    operation=request.operation,
                    pod=read_pod(request.object),
                    before=read_pod(request.old_object),
                    namespace=request.namespace or "default",
                    user=request.user_info.username,
                )
            except PodTooLarge as error:
                pod = bytes(request.object)
                ours = claimed(manifest_config(self._configuration()).dialects)
                verdict = Admitted("too large")
                if request.operation == CREATE and any(n.encode() in pod for n in (PREFIX, *ours)):
                    what = f"is too large: {error}"
                    wrong = ManifestError("pod", "all of it", what, "split it into several pods")
                    verdict = Rejected(wrong)
            else:
                configuration = self._configuration()
                names, scheduler = scheduler_names(configuration, self._schedulers), self._scheduler
                if scheduler not in names.ours:
                    # The configuration replaces our names: use its first.
                    scheduler = configuration.scheduler_names[0]
                config = manifest_config(configuration)
                rules = Rules(
                    config=msgspec.structs.replace(config, resource_claims=self._dra),
                    names=names,
                    scheduler=scheduler,
                    writer=self._writer,
                    overwrite_env=configuration.nvidia.overwrite_env,
                    disable_core_limit=configuration.nvidia.disable_core_limit,
                )
                verdict = admit(asked, rules)
                if isinstance(verdict, Admitted) and verdict.why in OURS:
                    found = suspects(asked.pod, config.dialects, placed=True)
                    slips = [
                        f"{each.field} {each.said}"[:WARNING_CHARS_MAX]
                        for each in itertools.islice(found, WARNINGS_MAX)
                    ]
        self._reviews.labels("rejected" if isinstance(verdict, Rejected) else verdict.why).inc()
        response = {"uid": request.uid} | _response(verdict)
        if slips:
            response["warnings"] = slips
        kind = {"apiVersion": review.api_version, "kind": "AdmissionReview"}
        return _encode({**kind, "response": response})


def _response(verdict: Admitted | Rejected) -> dict[str, Any]:
    if isinstance(verdict, Rejected):
        status = {"code": _REJECTED, "reason": "BadRequest", "message": str(verdict.error)}
        return {"allowed": False, "status": status}
    if not verdict.patches:
        return {"allowed": True}
    patch = base64.b64encode(_encode(verdict.patches)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": patch}
