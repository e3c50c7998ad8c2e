"""HTTP handlers for kube-scheduler's extender calls: filter, prioritize and bind.

Invariants: `filter` and `prioritize` change nothing. Every rejected node has a reason. Nodes are
returned in the form in which they were sent, as whole objects or as names."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from apportion.core.configuration import manifest_config
from apportion.core.explain.text import words
from apportion.core.ledger.state import State
from apportion.core.placement.fit_query import FilterResult, FitQuery
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.pods.template import devices_only
from apportion.core.workloads.reading import read_document
from apportion.core.workloads.schedulers import Chooser, scheduler_names
from apportion.extender.binding import ExtenderBinding
from apportion.extender.wire import BindingArgs, FilterArgs, decode_binding, decode_filter
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.limits import Limits
from apportion.runtime.service.own_machine import answering, read_body

PREFIXES = ("/scheduler", "")  # the URL prefixes of gpu-admission and of HAMi
SCORE_MAX = 10  # kube-scheduler's `MaxExtenderPriority`
# Room for a pod and 20,000 node names, or 300 nodes as whole objects of 25 KiB.
LIMITS = Limits(
    body_bytes=8 << 20, heavy_bytes=1 << 20, each_per_s=0, each_at_once=256
)  # fmt: skip
UNTOLD = "no Apportion agent reports devices of this node"
VERBS = ("filter", "predicates", "prioritize", "priorities", "bind")

_encode = msgspec.json.Encoder().encode


class Extender:
    """Answers the filter, prioritize and bind requests of kube-schedulers from the folded state."""

    def __init__(
        self,
        state: Callable[[], State],
        fit_query: FitQuery,
        binding: ExtenderBinding,
        *,
        unready: Callable[[], str],
        metrics: Metrics,
    ) -> None:
        self._state = state
        self._fit_query = fit_query
        self._binding = binding
        self._unready = unready
        self._requests = metrics.counter(
            "apportion_extender_requests_total", "Requests from kube-schedulers by verb.", ("verb",)
        )
        self._failed = metrics.counter(
            "apportion_extender_failed_nodes_total",
            "Nodes that the extender's filter excluded, by refusal code.",
            ("code",),
        )
        self._seconds = metrics.histogram(
            "apportion_extender_seconds",
            "Response time by verb; bind includes the binding itself.",
            ("verb",),
        )

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """Yield the routes of filter, prioritize and bind under each prefix."""
        for prefix in PREFIXES:
            for verb in VERBS:
                yield web.post(f"{prefix}/{verb}", self._answering(verb))

    def _answering(self, verb: str) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> bytes:
            body = await request.read()
            began = time.perf_counter()
            # kube-scheduler shows users the Error field, but only the number of an HTTP status.
            reason = self._unready()
            if reason:
                answered = _encode({"Error": f"the Apportion extender is not ready: {reason}"})
            elif verb == "bind":
                args = read_body(decode_binding, body, "ExtenderBindingArgs")
                answered = await self.bound(args)
            elif verb in {"filter", "predicates"}:
                await self._binding.decided()
                answered = self.filtered(read_body(decode_filter, body, "ExtenderArgs"))
            else:
                answered = self.prioritized(read_body(decode_filter, body, "ExtenderArgs"))
            self._requests.labels(verb).inc()
            self._seconds.labels(verb).observe(time.perf_counter() - began)
            return answered

        return answering(answer, lambda: "")

    def filtered(self, args: FilterArgs) -> bytes:
        """Return the `ExtenderFilterResult`: the nodes that can take the pod."""
        filter_result, reasons = self._look(args)
        kept = [name for name in args.names if name in filter_result.fits]
        for code in filter_result.refused.values():
            self._failed.labels(code.value if code else "Untold").inc()
        # The second map tells kube-scheduler not to preempt, because that need not free the right
        # devices. Older versions read only the first.
        answer = {"FailedNodes": reasons, "FailedAndUnresolvableNodes": reasons, "Error": ""}
        if args.objects is None:
            return _encode({"NodeNames": kept} | answer)
        nodes = zip(args.names, args.objects, strict=True)
        items = [raw for name, raw in nodes if name in filter_result.fits]
        return _encode({"Nodes": {"metadata": {}, "items": items}} | answer)

    def _look(self, args: FilterArgs) -> tuple[FilterResult, dict[str, str]]:
        names = args.names
        try:
            draft = self._read(args.pod)
        except ManifestError as error:
            return FilterResult({}, {}), dict.fromkeys(names, str(error))
        if not draft.shape.asks:
            return FilterResult(dict.fromkeys(names, 0), {}), {}
        metadata = args.pod.get("metadata")
        uid = metadata.get("uid", "") if isinstance(metadata, dict) else ""
        known = self._state().pods.get(uid) if isinstance(uid, str) else None
        if known is not None and known.placement:
            held = known.placement.node
            reasons = {
                name: f"the pod is already placed on {held}" for name in names if name != held
            }
            return FilterResult({name: 0 for name in names if name == held}, {}), reasons
        filter_result = self._fit_query.filter(draft.shape, names)
        # The same text for the same cause, because kube-scheduler counts equal texts.
        return filter_result, {
            name: words.phrase(code) if code is not None else UNTOLD
            for name, code in filter_result.refused.items()
        }

    def _read(self, pod: dict[str, Any]) -> PodDraft:
        configuration = self._state().configuration
        document = devices_only({**pod, "apiVersion": "v1", "kind": "Pod"})
        (draft,) = read_document(document, manifest_config(configuration)).pods
        names = scheduler_names(configuration)
        if draft.shape.asks and names.chooser(draft.scheduler_name) is not Chooser.EXTENDED:
            what = "is not a kube-scheduler that Apportion extends"
            fix = "add it to extendedSchedulerNames, and run `apportion config apply`"
            raise ManifestError("spec.schedulerName", draft.scheduler_name, what, fix)
        return draft

    def prioritized(self, args: FilterArgs) -> bytes:
        """Return the `HostPriorityList`, in which nodes have scores from 0 to 10 (best)."""
        filter_result, _ = self._look(args)
        scores = scaled(filter_result.fits)
        return _encode([{"Host": name, "Score": scores.get(name, 0)} for name in args.names])

    async def bound(self, args: BindingArgs) -> bytes:
        """Bind the pod to the chosen node; return an `ExtenderBindingResult`."""
        return _encode({"Error": await self._binding.bind(args)})


def scaled(points: dict[str, int]) -> dict[str, int]:
    """Scale points linearly to scores from 0 to 10; equal points all become 10."""
    if not points:
        return {}
    least, most = min(points.values()), max(points.values())
    if least == most:
        return dict.fromkeys(points, SCORE_MAX)
    half, span = (most - least) // 2, most - least
    return {name: ((each - least) * SCORE_MAX + half) // span for name, each in points.items()}
