"""Drain nodes without Kubernetes, by ending pods and submitting them again.

Invariant: a unit (a gang or a single pod) ends and restarts in one atomic batch, fenced by the last
event on each pod. So no pod is lost, runs twice, or is resubmitted after another client ended
it."""

from uuid import uuid4

import msgspec
from msgspec import Struct

from apportion.cli.pods.append import Dropped, Ended, Submission, Submitted, pods_of, submission_of
from apportion.cli.pods.local_process import Run
from apportion.core.answers.reads import PodAnswer
from apportion.core.workloads.kinds.drafts import of_folder
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.ledger.batching import GroupCommit
from apportion.runtime.ledger.port import FenceRefused
from apportion.runtime.ledger.publisher import Publisher
from apportion.runtime.process.clock import SystemClock
from apportion_schemas import PodGone

TRIES = 5  # how often a unit is read again after one of its pods has changed
UNIT_MAX = 500  # pods of a unit; each takes two events of one atomic batch


class Unit(Struct, frozen=True):
    """Pods that a drain moves together; `gang` is empty for a single pod."""

    pods: tuple[PodAnswer, ...]
    gang: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names of the pods as `namespace/name`, in order."""
        return [f"{pod.namespace}/{pod.name}" for pod in self.pods]


class Moved(Struct, frozen=True):
    """The result of moving a unit: the resubmitted pods, and names of pods that ended earlier."""

    submitted: list[Submitted]
    ended: list[str]


class Blocked(Exception):
    """Raised when a gang or single pod cannot be moved now. If `lasting`, a retry does not help."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class Anew:
    """Drains by ending pods and submitting them again in the same batch."""

    def __init__(self, ledger: JetStreamLedger, commit: GroupCommit, who: str, why: str) -> None:
        self._ledger = ledger
        self._commit = commit
        self._publisher = Publisher(f"cli/{who}", SystemClock(), commit.append)
        self._reason = why

    async def move(self, unit: Unit, *, basis: int) -> Moved:
        """Move the unit. Pods that a watcher will resubmit are only ended.

        Raises LedgerError, Blocked if a pod cannot be moved or keeps changing."""
        changed: FenceRefused | None = None
        for _ in range(TRIES):
            there, ended = await self._look(unit)
            again = [
                msgspec.structs.replace(each.data, uid=str(uuid4()))
                for each in there.values()
                if not of_folder(each.data.uid)
            ]
            # The new pods come first, because a gang is forgotten with its last pod.
            drafts = [
                self._publisher.draft(each, event_id=f"{each.uid}/submitted", basis=basis, expect=0)
                for each in again
            ]
            # A unique id, because another writer's end must not count as ours.
            drafts += [
                self._publisher.draft(
                    PodGone(uid=uid, reason=self._reason),
                    event_id=f"{uid}/gone/{uuid4()}", basis=basis, expect=each.revision,
                )
                for uid, each in there.items()
            ]  # fmt: skip
            try:
                appended = await self._commit.append_group(drafts)
            except FenceRefused as error:
                changed = error
                continue
            return Moved(pods_of(again, appended), ended)
        raise Blocked(f"one of its pods keeps changing: {changed}")

    async def _look(self, unit: Unit) -> tuple[dict[str, Submission], list[str]]:
        there: dict[str, Submission] = {}
        ended: list[str] = []
        for pod, name in zip(unit.pods, unit.names, strict=True):
            if Run.of_owner(pod.owner) is not None:
                raise Blocked(
                    f"{name} was started by `apportion run` on {pod.node}; end it there",
                    lasting=True,
                )
            try:
                there[pod.uid] = await submission_of(self._ledger, pod)
            except Dropped as error:
                raise Blocked(str(error), lasting=True) from None
            except Ended:
                ended.append(name)
        return there, ended
