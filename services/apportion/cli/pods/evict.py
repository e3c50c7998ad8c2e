"""Drain Kubernetes nodes by requesting evictions from the API server.

Invariants: the API server enforces disruption budgets; a pod without a controller is ended only
with --force; no pod of a gang is evicted before a dry run has succeeded for all pods of the
gang."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from apportion.cli.client.ledger import to_its_end
from apportion.cli.pods.resubmit import Blocked, Unit
from apportion.core.answers.reads import PodAnswer
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path

HTTP_GONE, HTTP_CONFLICT, HTTP_LATER, HTTP_TROUBLE = 404, 409, 429, 500
DAEMON = "DaemonSet/"


class Evicting:
    """Evicts pods through the API server, which may refuse because of a disruption budget."""

    def __init__(self, api: KubeApi, *, force: bool) -> None:
        self._api = api
        self._force = force

    async def move(self, unit: Unit) -> None:
        """Evict the pods of `unit`. If there are several, first try every eviction in a dry run.

        Raises Blocked (a budget, or no controller), KubeRefused, KubeUnavailable."""
        await self.try_out(unit, alone=False)
        for pod in unit.pods:
            await self._evict(pod, dry=False)

    async def try_out(self, unit: Unit, *, alone: bool = True) -> None:
        """Try the evictions of `unit` in a dry run; of a single pod only if `alone`.

        Raises as `move` does."""
        for pod in unit.pods:
            if pod.owner.startswith(DAEMON):
                raise Blocked(f"{pod.owner} would recreate the pod at once", lasting=True)
            if not pod.owner and not self._force:
                raise Blocked(
                    "the pod has no controller to recreate it; use --force to evict it anyway",
                    lasting=True,
                )
        if alone or len(unit.pods) > 1:
            for pod in unit.pods:
                await self._evict(pod, dry=True)

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
            raise Blocked(
                answer.refusal().message or "a disruption budget blocks the eviction at the moment"
            )
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
    """Evict the pods of every unit. Retry blocked units every `pause_s` seconds.

    Calls `asked` after a unit's evictions are accepted, else `blocked`. A unit that has begun is
    evicted as a whole, even if this is cancelled. Raises KubeRefused."""

    async def move(unit: Unit) -> None:
        await evicting.move(unit)
        asked(unit)

    left = list(units)
    while left:
        later: list[Unit] = []
        for unit in left:
            try:
                await to_its_end(move(unit))
            except Blocked as error:
                blocked(unit, str(error))
                if not error.lasting:
                    later.append(unit)
            except (KubeUnavailable, KubeRefused) as error:
                if isinstance(error, KubeRefused) and error.status < HTTP_TROUBLE:
                    raise
                blocked(unit, str(error))
                later.append(unit)
        left = later
        if left:
            await asyncio.sleep(pause_s)
