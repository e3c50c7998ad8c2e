"""The labels of namespaces, by which terms of affinity may mean pods (`namespaceSelector`).

Invariant: the ledger is told of namespaces with labels of their own, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from apportion.core.ledger.state import State
from apportion.runtime.kube.watch import number
from apportion.watcher.kubernetes.kind import Kind
from apportion_schemas import NamespaceGone, NamespaceObserved
from apportion_schemas.decoding import from_outside

NAME_LABEL = "kubernetes.io/metadata.name"
"""Of every namespace, so that nobody has to be told."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resource_version: str = ""
    labels: dict[str, str] = {}


class _Namespace(msgspec.Struct, frozen=True):
    metadata: _Meta


_decode = from_outside(msgspec.json.Decoder(_Namespace).decode)


class NamespaceView:
    """Namespaces by name, with what is to be told of them; `stir` is called when any changes."""

    def __init__(self, state: State, stir: Callable[[], None]) -> None:
        self._state = state
        self._stir = stir
        self._marked: dict[str, None] = {}
        self._seen: dict[str, NamespaceObserved] = {}
        self.kinds: dict[str, Kind[Any]] = {
            "namespaces": Kind(self._seen, _read, self._changed, expected=lambda: state.namespaces)
        }

    def mark(self, name: str) -> None:
        """The namespace is to be compared again."""
        self._marked[name] = None
        self._stir()

    def take(self) -> dict[str, None]:
        """The namespaces to compare; they are marked no longer."""
        marked, self._marked = self._marked, {}
        return marked

    def everything(self) -> dict[str, None]:
        """All namespaces with labels, here or in the ledger."""
        return dict.fromkeys((*self._seen, *self._state.namespaces))

    def differences(self, names: Iterable[str]) -> Iterable[NamespaceObserved | NamespaceGone]:
        """What the ledger does not know of these namespaces, or knows otherwise."""
        for name in names:
            wanted, known = self._seen.get(name), self._state.namespaces.get(name)
            if wanted is None and known is not None:
                yield NamespaceGone(namespace=name)
            elif wanted is not None and (
                known is None or (known.labels != wanted.labels and known.version <= wanted.version)
            ):
                yield wanted

    def _changed(self, name: str, before: object, now: object, _version: int) -> None:
        if before != now:
            self.mark(name)


def _read(raw: bytes) -> tuple[str, NamespaceObserved | None, int]:
    meta = _decode(raw).metadata
    labels = {key: value for key, value in meta.labels.items() if key != NAME_LABEL}
    version = number(meta.resource_version)
    seen = NamespaceObserved(namespace=meta.name, labels=labels, version=version)
    return meta.name, seen if labels else None, version
