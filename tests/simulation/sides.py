"""The source of a simulation's pods: a folder of manifests, or a cluster.

Invariant: a folder and a cluster do not use the services to find differences from the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from apportion.binder import main as binder
from apportion.core.ledger.state import State
from apportion.runtime.service.lifecycle import Service
from apportion.watcher import main as watcher
from tests.simulation.kube_network import KubeAccess
from tests.simulation.processes import Body
from tests.simulation.target import FailingTarget
from tests.simulation.weather import Weather
from tests.simulation.wishes import Wishes


class Side(Protocol):
    """The source of a simulation's pods: a folder of manifests, or a cluster."""

    quiet_s: float
    """The system is settled after this time without events. No service pauses longer to retry."""
    deeds: dict[str, Callable[[], object]]
    """A function for each kind of fault that can happen in the folder or cluster."""

    def access(self, name: str) -> KubeAccess | None:
        """Return the named process's access to the API server, or None if there is no API
        server."""

    def watcher(self, access: KubeAccess | None) -> Body:
        """Return the function that a simulated watcher process runs."""

    def binder(self, access: KubeAccess | None) -> Body:
        """Return the function that a simulated binder process runs."""

    def stir(self) -> None:
        """Let simulated users make a few changes."""

    def mend(self) -> None:
        """End all faults."""

    def differences(self, state: State) -> Iterator[str]:
        """Yield every object of the cluster that the ledger lacks or describes differently."""


class Folder:
    """The pods of a simulation without an API server: they come from a folder of manifests."""

    quiet_s = 40.0

    def __init__(self, weather: Weather, *, pods_max: int) -> None:
        self.deeds: dict[str, Callable[[], object]] = {}
        self._wishes = Wishes(weather.stream("wishes"), weather.stream("queues"), pods_max=pods_max)
        self._target = FailingTarget(weather)

    def access(self, name: str) -> None:
        """Return None, because a folder has no API server."""

    def watcher(self, _access: KubeAccess | None) -> Body:
        async def body(service: Service) -> None:
            await watcher.body(service, self._wishes)

        return body

    def binder(self, _access: KubeAccess | None) -> Body:
        return lambda service: binder.body(service, self._target)

    def stir(self) -> None:
        self._wishes.stir()

    def mend(self) -> None:
        """Do nothing, because a folder has no faults."""

    def differences(self, state: State) -> Iterator[str]:
        wanted = set(self._wishes.wanted)
        live = {f"{pod.submitted.namespace}/{pod.submitted.name}" for pod in state.pods.values()}
        for key in sorted(wanted ^ live):
            yield f"pod {key} is {'not submitted' if key in wanted else 'not let go of'}"
