"""What the binder does for DRA beside the claims of pods that it binds, as one thing to start.

Invariant: it starts only on an API server that has all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from apportion.binder.kubernetes.resource_claims import ClaimRelease
from apportion.binder.kubernetes.slices import Slices
from apportion.core.ledger.fold import Change
from apportion.core.ledger.state import State
from apportion.runtime.kube.client import KubeApi
from apportion.runtime.kube.dra import require_dra
from apportion.runtime.ledger.reader import Reader
from apportion.runtime.process.clock import Clock


class Dra:
    """The devices that are published, and the claims that are let go of; nothing unless `on`."""

    def __init__(self, api: KubeApi, state: State, clock: Clock, *, on: bool) -> None:
        self._on = on
        self._api = api
        self._clock = clock
        self._slices = Slices(api, state, clock)
        self._release = ClaimRelease(api, state, clock)

    def observe(self, change: Change) -> None:
        """Take note of what the fold changed; give this to the reader."""
        if self._on:
            self._slices.observe(change)
            self._release.observe(change)

    def not_ready(self) -> list[str]:
        """Why devices are not published as they are."""
        return self._slices.not_ready() if self._on else []

    def loops(self, reader: Reader[Change]) -> dict[str, Callable[[], Awaitable[None]]]:
        """What goes on until cancelled, by its name."""
        if not self._on:
            return {}
        return {
            "publish devices": partial(self._slices.run, reader),
            "let claims go": partial(self._release.run, reader),
        }

    async def require(self) -> None:
        """Return where the API server has all that it takes. Raises what `require_dra` does."""
        if self._on:
            await require_dra(self._api, self._clock)
            await self._slices.require()
