"""Moving what runs on a node of Kubernetes: the API server is asked to evict it.

It brings the client library, so it is imported only where a node is Kubernetes'. Invariants: a
budget's no is the API server's own, in the answer to the request that would evict; a pod that
nobody would make again is not ended unasked; of a gang nobody is evicted before the server has said
for each of its pods that it might be."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from apportion.cli.pods.resubmit import Blocked, Unit
from apportion.core.answers.reads import PodAnswer
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path

HTTP_GONE, HTTP_CONFLICT, HTTP_LATER, HTTP_TROUBLE = 404, 409, 429, 500
DAEMON = "DaemonSet/"


class Evicting:
    """Asks the API server to evict pods, which it does as far as disruption budgets allow."""

    def __init__(self, api: KubeApi, *, force: bool) -> None:
        self._api = api
        self._force = force

    async def move(self, unit: Unit) -> None:
        """All of it, each asked for in vain first where they are several.

        Raises Blocked: a budget does not allow it now, or nobody would make a pod of it again.
        Raises KubeRefused, KubeUnavailable."""
        for pod in unit.pods:
            if pod.owner.startswith(DAEMON):
                raise Blocked(f"{pod.owner} would put it back at once", lasting=True)
            if not pod.owner and not self._force:
                raise Blocked(
                    "no controller would make it again; --force ends it nevertheless", lasting=True
                )
        if len(unit.pods) > 1:
            for pod in unit.pods:
                await self._evict(pod, dry=True)
        for pod in unit.pods:
            await self._evict(pod, dry=False)

    async def _evict(self, pod: PodAnswer, *, dry: bool) -> None:
        options: dict[str, object] = {"preconditions": {"uid": pod.uid}}
        if dry:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        answer = await self._api.request(
            "POST", f"{pod_path(pod.namespace, pod.name)}/eviction", body=msgspec.json.encode(body)
        )
        if answer.status == HTTP_LATER:
            raise Blocked(answer.refusal().message or "a disruption budget does not allow it now")
        if not answer.ok and answer.status not in {HTTP_GONE, HTTP_CONFLICT}:
            raise answer.refusal()


async def evict_all(
    evicting: Evicting,
    units: Sequence[Unit],
    *,
    pause_s: float,
    asked: Callable[[Unit], None],
    blocked: Callable[[Unit, str], None],
) -> None:
    """Evict every unit, coming back to those that budgets hold up, until none is left to ask for.

    `asked` is told of each unit that was evicted, `blocked` of each that was not and why; for those
    that waiting does not help it is told once.

    Raises KubeRefused: the API server says no to us, which is told with what it says."""
    left = list(units)
    while left:
        later: list[Unit] = []
        for unit in left:
            try:
                await evicting.move(unit)
            except Blocked as error:
                blocked(unit, str(error))
                if not error.lasting:
                    later.append(unit)
            except KubeUnavailable as error:
                blocked(unit, str(error))
                later.append(unit)
            except KubeRefused as error:
                if error.status < HTTP_TROUBLE:
                    raise
                blocked(unit, str(error))
                later.append(unit)
            else:
                asked(unit)
        left = later
        if left:
            await asyncio.sleep(pause_s)
