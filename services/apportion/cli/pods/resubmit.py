"""Moving what runs on a node where there is no Kubernetes: it ends and is submitted anew.

What is moved together (a gang) is a `Unit`. Invariant: a unit ends and begins again in one atomic
batch, fenced by what the ledger says last of each of its pods; so whatever happens to us none of it
is lost, and none runs twice or comes back that somebody else has ended.

Moving what runs on a node of Kubernetes: the API server is asked to evict it.

It brings the client library, so it is imported only where a node is Kubernetes'. Invariants: a
budget's no is the API server's own, in the answer to the request that would evict; a pod that
nobody would make again is not ended unasked; of a gang nobody is evicted before the server has said
for each of its pods that it might be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct

from apportion.cli.pods.append import Submitted
from apportion.cli.pods.local_process import Run
from apportion.cli.pods.submissions import Dropped, Ended, Submission, submission_of
from apportion.core.explain.answers import PodAnswer
from apportion.core.workloads.kinds.drafts import of_folder
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable, pod_path
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import FenceRefused
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import (
    PodGone,
)

TRIES = 5
"""So often a unit is looked at anew when one of its pods has changed under our hands."""
UNIT_MAX = 500
"""Pods of one unit: each is an end and a beginning in one atomic batch."""


class Unit(Struct, frozen=True):
    """Pods that are moved together; `gang` is empty for one by itself."""

    pods: tuple[PodAnswer, ...]
    gang: str = ""

    @property
    def names(self) -> list[str]:
        """What people call its pods: `namespace/name`, in the order of `pods`."""
        return [f"{pod.namespace}/{pod.name}" for pod in self.pods]


class Moved(Struct, frozen=True):
    """What became of a unit: what was submitted anew, and the names of pods that had ended."""

    submitted: tuple[Submitted, ...]
    ended: tuple[str, ...] = ()


class Blocked(Exception):
    """The unit cannot be moved now; `lasting`: waiting would not help."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class Anew:
    """Ends pods and submits them again in the same batch, so that none is lost in between."""

    def __init__(self, ledger: JetStreamLedger, commit: GroupCommit, who: str, why: str) -> None:
        self._ledger = ledger
        self._commit = commit
        self._publisher = Publisher(f"cli/{who}", SystemClock(), commit.append)
        self._reason = why

    async def move(self, unit: Unit, *, basis: int) -> Moved:
        """The pods under their new uids; those that a watcher submits anew are only ended.

        Raises:
            Blocked: a pod of it can start nowhere else, nobody knows any more what it asked for, or
                one changes all the time.
            LedgerError: nothing was ended.
        """
        changed: FenceRefused | None = None
        for _ in range(TRIES):
            there, ended = await self._look(unit)
            try:
                return Moved(await self._begin_anew(there, basis=basis), ended)
            except FenceRefused as error:
                changed = error
        raise Blocked(f"a pod of it changes all the time: {changed}")

    async def _look(self, unit: Unit) -> tuple[dict[str, Submission], tuple[str, ...]]:
        """What those of the unit that are live asked for, by uid, and the names of the others."""
        there: dict[str, Submission] = {}
        ended: list[str] = []
        for pod, name in zip(unit.pods, unit.names, strict=True):
            if Run.of_owner(pod.owner) is not None:
                raise Blocked(
                    f"{name} is a command of `apportion run` on {pod.node}; end it there",
                    lasting=True,
                )
            try:
                there[pod.uid] = await submission_of(self._ledger, pod)
            except Dropped as error:
                raise Blocked(str(error), lasting=True) from None
            except Ended:
                ended.append(name)
        return there, tuple(ended)

    async def _begin_anew(
        self, there: dict[str, Submission], *, basis: int
    ) -> tuple[Submitted, ...]:
        again = [
            msgspec.structs.replace(each.data, uid=str(uuid4()))
            for each in there.values()
            if not of_folder(each.data.uid)
        ]
        # The new ones first: a gang is forgotten with the last of its pods.
        drafts = [
            self._publisher.draft(each, event_id=f"{each.uid}/submitted", basis=basis, expect=0)
            for each in again
        ]
        # An id of its own: the end that somebody else wrote is another event than ours.
        drafts += [
            self._publisher.draft(
                PodGone(uid=uid, reason=self._reason),
                event_id=f"{uid}/gone/{uuid4()}", basis=basis, expect=each.revision,
            )
            for uid, each in there.items()
        ]  # fmt: skip
        appended = await self._commit.append_group(drafts)
        return tuple(
            Submitted(each.namespace, each.name, each.uid, at.revision or 0)
            for each, at in zip(again, appended, strict=False)
        )


HTTP_GONE, HTTP_CONFLICT, HTTP_LATER, HTTP_TROUBLE = 404, 409, 429, 500
DAEMON = "DaemonSet/"


class Evicting:
    """Asks the API server to evict pods, which it does as far as disruption budgets allow."""

    def __init__(self, api: KubeApi, *, force: bool) -> None:
        self._api = api
        self._force = force

    async def move(self, unit: Unit) -> None:
        """All of it, each asked for in vain first where they are several.

        Raises:
            Blocked: a budget does not allow it now, or nobody would make a pod of it again.
            KubeRefused, KubeUnavailable.
        """
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
            "POST",
            f"{pod_path(pod.namespace, pod.name)}/eviction",
            body=msgspec.json.encode(body),
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

    `asked` is told of each unit that was evicted, `blocked` of each that was not and why; for
    those that waiting does not help it is told once.

    Raises:
        KubeRefused: the API server says no to us, which is told with what it says.
    """
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
