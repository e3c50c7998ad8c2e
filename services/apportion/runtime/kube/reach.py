"""Whether the API server answers: for services that ask it only when there is something to do.

A watch tells by itself when it breaks. Who only writes would not know before it is too late to say.
"""

from __future__ import annotations

from apportion.runtime.kube.client import KubeApi, KubeRefused, KubeUnavailable
from apportion.runtime.process.clock import Clock

EVERY_S = 5.0
VERSION = "/version"
"""What anybody with credentials may read (the ClusterRole `system:discovery`)."""


class Reach:
    """Asks now and then; `problem` is why the server is out of reach, or empty."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self.problem = "the API server has not answered yet"

    def not_ready(self) -> list[str]:
        """Why the service is not ready; empty in reach of the API server."""
        return [self.problem] if self.problem else []

    async def run(self) -> None:
        """Ask the server for its version every few seconds, until cancelled."""
        while True:
            try:
                await self._api.get(VERSION)
            except (KubeUnavailable, KubeRefused) as error:
                self.problem = f"the API server is out of reach: {error}"
            else:
                self.problem = ""
            await self._clock.pause(EVERY_S)
