"""The objects of one kind that a watch reports, and how they differ from the ledger."""

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from apportion.core.workloads.document import ManifestError
from apportion.runtime.kube.watch import Kind, number, skipping
from apportion_schemas.quantities import Payload

V = TypeVar("V")
# called with an object's name and the error; empty if it is resolved
Problem = Callable[[str, str], None]


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that every object has: its name, its namespace if any, and its revision."""

    name: str
    namespace: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """Return the object's key: `namespace/name`, or only its name without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def version(self) -> int:
        """Return the API server's revision of the object as a number."""
        return number(self.resource_version)


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


_decode = skipping(msgspec.json.Decoder(_Object).decode)


def metadata_of(raw: bytes) -> Metadata:
    """Decode an object's metadata, even if the rest of the object is unreadable."""
    return _decode(raw).metadata


class Marks(ABC):
    """The objects of one kind to compare with the ledger."""

    def __init__(
        self, stir: Callable[[], None], reports: tuple[type[Payload], ...], key: tuple[str, ...]
    ) -> None:
        self._stir = stir
        self.reports = reports  # the events about these objects
        self.key = key  # the fields that form an object's key
        self._marked: dict[str, None] = {}

    @abstractmethod
    def everything(self) -> dict[str, None]:
        """Return the keys of all objects that are in the cluster or in the ledger."""

    def mark(self, key: str) -> None:
        """Mark an object for comparison with the ledger."""
        self._marked[key] = None
        self._stir()

    def take(self) -> dict[str, None]:
        """Return the keys of all marked objects, and unmark them."""
        marked, self._marked = self._marked, {}
        return marked


def readable(
    title: str,
    entries: dict[str, V],
    read: Callable[[bytes], V | None],
    changed: Callable[[str, V | None, V | None, int], None],
    problem: Problem,
    *,
    expected: Callable[[], Iterable[str]] = tuple,
    key: Callable[[Metadata], str] = lambda meta: meta.key,
    keeps: bool = True,  # keep the last readable version
) -> Kind[V]:
    """Return a Kind that reports unreadable objects to `problem`."""

    def read_named(raw: bytes) -> tuple[str, V | None, int]:
        meta = metadata_of(raw)
        name = key(meta)
        try:
            found = read(raw)
        except (ManifestError, msgspec.MsgspecError) as error:
            problem(f"{title} {name}", str(error))
            return name, entries.get(name) if keeps else None, meta.version
        problem(f"{title} {name}", "")
        return name, found, meta.version

    def forgotten(name: str) -> None:
        problem(f"{title} {name}", "")

    return Kind(entries, read_named, changed, expected=expected, forgotten=forgotten)


def known_as(has: Mapping[str, Any], key: str) -> Any:
    """Return the ledger's entry for the key, which is a name or `namespace/name`."""
    namespace, _, name = key.rpartition("/")
    return has.get(namespace, {}).get(name) if namespace else has.get(name)


def keys_of(has: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the ledger's objects of one kind."""
    for key, known in has.items():
        yield from (f"{key}/{name}" for name in known) if isinstance(known, dict) else (key,)


def is_news(wanted: Any, known: Any) -> bool:
    """Return True if the cluster's values differ from the ledger's and are not older."""
    version = getattr(known, "version", None)
    if version is None:
        return bool(wanted != known)
    same: bool = msgspec.structs.replace(wanted, version=version) == known
    return not same and bool(version <= wanted.version)


class Source(NamedTuple):
    """One kind of Kubernetes objects that a `Mirror` copies: its title, and how to read it."""

    title: str
    read: Callable[[bytes], Any]


class Mirror(Marks, Generic[V]):
    """The cluster's objects of one kind, which the watcher copies to the ledger.

    The objects may come from several kinds of Kubernetes objects (`sources`). If two objects have
    the same key, the object of the first source counts, and the other object is passed to
    `problem`."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        has: Callable[[], Mapping[str, Any]],  # returns the ledger's objects
        reports: tuple[type[Payload], ...],
        key: tuple[str, ...],
        *,
        stir: Callable[[], None],
        problem: Problem,
        keeps: bool = True,
        minor: Callable[[V, V], bool] = lambda _before, _now: False,
    ) -> None:
        super().__init__(stir, reports, key)
        self._has = has
        self._minor = minor  # True for changes that need no comparison
        self._problem = problem
        self._titles = [source.title for source in sources.values()]
        by_source: dict[str, dict[str, V]] = {kind: {} for kind in sources}
        self.entries = ChainMap(*by_source.values())
        self.kinds = {
            kind: readable(
                sources[kind].title, entries, sources[kind].read, self._changed, problem,
                expected=lambda: keys_of(has()), keeps=keeps,
            )
            for kind, entries in by_source.items()
        }  # fmt: skip

    def everything(self) -> dict[str, None]:
        """Return the keys of all objects of this kind that are in the cluster or in the ledger."""
        return dict.fromkeys((*self.entries, *keys_of(self._has())))

    def differences(self, names: Iterable[str]) -> Iterator[Payload]:
        """Yield an event for each object in `names` whose values differ from the ledger's."""
        for name in names:
            wanted: Any = self.entries.get(name)
            known = known_as(self._has(), name)
            if wanted is not None and is_news(wanted, known):
                yield wanted
            elif wanted is None and known is not None and len(self.reports) > 1:
                # The second of the reports is the event that an object is gone.
                yield self.reports[1](**dict(zip(self.key, name.split("/"), strict=True)))

    def _changed(self, name: str, before: V | None, now: V | None, _version: int) -> None:
        if len(self._titles) > 1:
            titles = [
                title
                for title, found in zip(self._titles, self.entries.maps, strict=True)
                if name in found
            ]
            why = ""
            if titles[1:]:
                why = f"a {titles[0]} and a {titles[1]} have this name, and only the first counts"
                why += "; rename one of them"
            self._problem(f"{self._titles[0]}s {name}", why)
        if before is None or now is None or not self._minor(before, now):
            self.mark(name)
