"""Binds pods for kube-scheduler: passes its choice to our schedulers and awaits the result.

A scheduler places the pod on the chosen node, a binder binds it, and the extender answers when the
ledger has the outcome. Invariant: an answer without an error means that the pod is bound to that
node in the ledger. Repeating a request is harmless."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from apportion.core.explain.text import event_text
from apportion.core.explain.why import event_words
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import Phase, PodState, State
from apportion.extender.wire import BindingArgs
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.ledger.starting import SUBJECT, Choice, Heard
from apportion_schemas.decoding import from_outside

# shorter than the extender's `httpTimeout` in kube-scheduler, which should be 30 s
BIND_TIMEOUT_S = 20.0
KNOWN_TIMEOUT_S = 5.0
HEARD_TIMEOUT_S = 3.0
AGAIN_S = 1.0  # send an undecided choice again: the scheduler may have been killed
DECIDED_TIMEOUT_S = 0.5  # longest wait of a filter for placements that are being decided

Request = Callable[[str, bytes, float], Awaitable[bytes]]
_encode = msgspec.json.Encoder().encode
_decode = from_outside(msgspec.json.Decoder(Heard).decode)


class ExtenderBinding:
    """Binds pods to nodes that kube-scheduler chose; `request` sends a choice to our schedulers."""

    def __init__(
        self,
        state: Callable[[], State],
        request: Request,
        *,
        timeout_s: float = BIND_TIMEOUT_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self._state = state
        self._request = request
        self._timeout_s = timeout_s
        self._again_s = again_s
        self._unheard: dict[str, str] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._open: set[str] = set()
        self._decided = asyncio.Event()
        self._decided.set()

    def observe(self, change: Change) -> None:
        """Wake the binding that waits for the pod of this change."""
        uid = change.pod.uid if change.pod else getattr(change.data, "uid", "")
        news = self._news.get(uid)
        if news is not None:
            news.set()
            self._close(uid)

    async def decided(self) -> None:
        """Wait until all earlier choices are placed or refused, or a timeout passes.

        kube-scheduler filters nodes for the next pod while it binds the previous pod. Without this
        wait, it could choose the same devices for both pods. The refused pod would then not be
        retried soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DECIDED_TIMEOUT_S):
                await self._decided.wait()

    def _close(self, uid: str) -> None:
        self._open.discard(uid)
        if not self._open:
            self._decided.set()

    async def bind(self, args: BindingArgs) -> str:
        """Place and bind the pod on the chosen node; return "" or the error."""
        uid = args.pod_uid
        if uid in self._news:
            return f"pod {args.pod_name} is already being bound"
        self._news[uid] = asyncio.Event()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bind(uid, args.node)
        except TimeoutError:
            return self._unheard.get(uid) or (
                f"not bound to {args.node} within {self._timeout_s:g} s; binding continues, and "
                "the next filter request sees its result"
            )
        finally:
            del self._news[uid]
            self._unheard.pop(uid, None)
            self._close(uid)

    async def _bind(self, uid: str, node: str) -> str:
        pod = await self._known(uid)
        if isinstance(pod, str):
            return pod
        if not pod.submitted.chooser:
            return (
                "Apportion schedules this pod itself: its schedulerName is not in "
                "extendedSchedulerNames"
            )
        attempt, refused_revision = pod.attempt, pod.refused_revision
        while True:
            outcome = self._outcome(uid, node, attempt, refused_revision)
            if outcome is not None:
                return outcome
            if pod.placement is None:
                error = await self._choose(uid, node)
                if error:
                    return error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._again_s):
                    await self._changed(uid)

    async def _known(self, uid: str) -> PodState | str:
        try:
            async with asyncio.timeout(KNOWN_TIMEOUT_S):
                while True:
                    pod = self._state().pods.get(uid)
                    if pod is not None:
                        return pod
                    rejected = self._state().rejected.get(uid)
                    if rejected is not None:
                        return event_text.rejection_words(rejected)
                    await self._changed(uid)
        except TimeoutError:
            return (
                f"no watcher reported pod {uid} within {KNOWN_TIMEOUT_S:g} s; check that a "
                "watcher is running"
            )

    async def _choose(self, uid: str, node: str) -> str:
        choice = _encode(Choice(pod=uid, node=node))
        self._open.add(uid)
        self._decided.clear()
        try:
            heard = _decode(await self._request(SUBJECT, choice, HEARD_TIMEOUT_S))
        except (LedgerError, msgspec.MsgspecError) as error:
            self._unheard[uid] = f"no Apportion scheduler accepted the choice: {error}"
            self._close(uid)
            return ""
        self._unheard.pop(uid, None)
        return heard.error

    def _outcome(self, uid: str, node: str, attempt: int, refused_revision: int) -> str | None:
        """Return "" once the pod is bound to `node`, or an error if that failed, else None."""
        pod = self._state().pods.get(uid)
        if pod is None:
            return "the pod no longer exists"
        if pod.placement is not None:
            if pod.placement.node != node:
                return f"its devices are already allocated on {pod.placement.node}"
            return "" if pod.phase in {Phase.BOUND, Phase.ALLOCATED} else None
        if pod.attempt > attempt:
            return f"placement on {node} failed: {pod.last_failure}"
        if pod.refusal is not None and pod.refused_revision > refused_revision:
            return event_words(self._state(), pod, pod.refusal)
        return None

    async def _changed(self, uid: str) -> None:
        news = self._news[uid]
        await news.wait()
        news.clear()
