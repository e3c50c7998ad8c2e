"""The counterpart of watchers and binders: a folder of manifests, or a cluster.

Invariant: either side can list its differences to the ledger without using the services."""

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
    """The source of pods and the target of bindings in a simulation."""

    quiet_s: float
    """Longer than any service pauses between two tries."""
    deeds: dict[str, Callable[[], object]]
    """The faults that can happen there, by kind."""

    def access(self, name: str) -> KubeAccess | None:
        """Return a process's access to the API server, or None if there is no API server."""

    def watcher(self, access: KubeAccess | None) -> Body:
        """Return the body of a watcher for this side."""

    def binder(self, access: KubeAccess | None) -> Body:
        """Return the body of a binder for this side."""

    def stir(self) -> None:
        """Let users act."""

    def mend(self) -> None:
        """End every fault of this side."""

    def differences(self, state: State) -> Iterator[str]:
        """Yield every object that is missing from the ledger or differs from it."""


class Folder:
    """A side without a cluster: pods come from users' requests, and a binding has no effect."""

    quiet_s = 40.0

    def __init__(self, weather: Weather, *, pods_max: int) -> None:
        self.deeds: dict[str, Callable[[], object]] = {}
        self._wishes = Wishes(weather.stream("wishes"), pods_max=pods_max)
        self._target = FailingTarget(weather)

    def access(self, name: str) -> None:
        """Implement `Side.access`."""

    def watcher(self, _access: KubeAccess | None) -> Body:
        """Implement `Side.watcher`."""

        async def body(service: Service) -> None:
            await watcher.body(service, self._wishes)

        return body

    def binder(self, _access: KubeAccess | None) -> Body:
        """Implement `Side.binder`."""
        return lambda service: binder.body(service, self._target)

    def stir(self) -> None:
        """Implement `Side.stir`."""
        self._wishes.stir()

    def mend(self) -> None:
        """Implement `Side.mend`."""

    def differences(self, state: State) -> Iterator[str]:
        """Implement `Side.differences`."""
        wanted = set(self._wishes.wanted)
        live = {f"{pod.submitted.namespace}/{pod.submitted.name}" for pod in state.pods.values()}
        for key in sorted(wanted ^ live):
            yield f"pod {key} is {'not submitted' if key in wanted else 'not let go of'}"
