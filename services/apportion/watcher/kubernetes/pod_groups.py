"""PodGroups of four APIs: which gangs they declare, and which gangs Volcano must still admit."""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator

from apportion.core.ledger.state import State
from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.pods.gangs import (
    COSCHEDULING,
    KAI,
    KUBERNETES,
    VERSIONS,
    api_of,
    unread,
)
from apportion.core.workloads.pods.gangs import VOLCANO as VOLCANO_API
from apportion.runtime.kube.watch import Kind
from apportion.watcher.kubernetes.kind import Marks, Problem, readable
from apportion.watcher.kubernetes.objects import ObjectReader
from apportion_schemas import GangPart, PodGroupGone, PodGroupObserved

GROUPS = "podgroups"
VOLCANO = "scheduling.volcano.sh/v1beta1"
# The kinds of PodGroups that a cluster may have, each with its API version. A server that serves
# several versions of one API lists each group once per version.
POD_GROUPS = {
    GROUPS: VOLCANO,
    f"{GROUPS}.{COSCHEDULING}": f"{COSCHEDULING}/v1alpha1",
    f"{GROUPS}.{KAI}": f"{KAI}/{VERSIONS[KAI][0]}",
    **{
        f"{GROUPS}.{version}.{KUBERNETES}": f"{KUBERNETES}/{version}"
        for version in VERSIONS[KUBERNETES]
    },
}


class PodGroupView(Marks):
    """The cluster's PodGroups, by gang name."""

    def __init__(
        self, reader: ObjectReader, state: State, stir: Callable[[], None], problem: Problem
    ) -> None:
        super().__init__(stir, (PodGroupObserved, PodGroupGone), ("group",))
        self._reader = reader
        self._state = state
        # The versions in which the server has an API group's PodGroups; None while that is unknown.
        self.served: Callable[[str], Collection[str] | None] = lambda _api: None
        # Adds the label keys of the levels that a PodGroup names.
        self.resolve: Callable[[PodGroupObserved], PodGroupObserved] = lambda group: group
        by_kind: dict[str, dict[str, PodGroupObserved]] = {kind: {} for kind in POD_GROUPS}
        self.declared = ChainMap(*by_kind.values())
        self.waiting: set[str] = set()  # Volcano creates no pods until these are admitted
        # gangs with pods whose PodGroup was deleted, with their age at that time
        self._ended: dict[str, int] = {}
        self.kinds = {
            kind: self._kind(POD_GROUPS[kind], groups, problem) for kind, groups in by_kind.items()
        }

    def unread(self, gang: str) -> ManifestError | None:
        """Return the error in the gang's PodGroup that keeps its pods from starting, if any."""
        known = self._state.groups.get(gang)
        if known is not None and known.observed is not None:
            return None
        served = self.served(api_of(gang) or VOLCANO_API)
        return None if served is None else unread(gang, served)

    def has_pod_grouper(self) -> bool:
        """Return True if KAI's PodGroups exist in the cluster, or if that is unknown."""
        return self.served(KAI) != ()

    def everything(self) -> dict[str, None]:
        """Return the names of all gangs in the cluster or in the ledger."""
        return dict.fromkeys((*self.declared, *self._state.groups, *self._state.gangs_left))

    def mark_levels(self) -> None:
        """Mark the gangs with topology levels, because a topology has changed."""
        for name, group in self.declared.items():
            levelled: list[PodGroupObserved | GangPart] = [group, *group.parts]
            if any(each.required_level or each.preferred_level for each in levelled):
                self.mark(name)

    def concerns_us(self, name: str) -> bool:
        """Return True if the ledger has the gang, Volcano waits for it, or it ended for good."""
        ended = name in self._state.gangs_left and name not in self.declared
        return ended or name in self._state.groups or name in self.waiting

    def differences(self, names: Iterable[str]) -> Iterator[PodGroupObserved | PodGroupGone]:
        """Yield events about gangs that the ledger lacks or has with other values."""
        for name in names:
            wanted, known = self.declared.get(name), self._state.groups.get(name)
            if wanted is not None:
                wanted = self.resolve(wanted)
            ended = self._ended.pop(name, None)
            if ended is not None and known is not None and known.pods and known.since == ended:
                self._ended[name] = ended  # until the ledger has it
                if wanted is not None:
                    self.mark(name)
                yield PodGroupGone(group=name)
            elif wanted is not None and (known is None or known.observed != wanted or ended):
                yield wanted
            elif wanted is None and known is not None and known.observed and not known.pods:
                yield PodGroupGone(group=name)
            elif wanted is None and known is None and name in self._state.gangs_left:
                yield PodGroupGone(group=name)  # so that a later gang of this name is a new one

    def _kind(
        self, api_version: str, groups: dict[str, PodGroupObserved], problem: Problem
    ) -> Kind[PodGroupObserved]:
        # Volcano's gangs have no API group in their names.
        api = "" if api_version == VOLCANO else api_version.partition("/")[0]

        def read(raw: bytes) -> PodGroupObserved:
            found, waits = self._reader.group(raw, api_version)
            (self.waiting.add if waits else self.waiting.discard)(found.group)
            return found

        return readable(
            "PodGroup",
            groups,
            read,
            self._changed,
            problem,
            expected=lambda: (
                name
                for name, group in self._state.groups.items()
                if group.observed is not None and api_of(name) == api
            ),
            key=lambda meta: "/".join(filter(None, (meta.namespace, api, meta.name))),
        )

    def _changed(self, name: str, before: object, now: object, _version: int) -> None:
        if now is None:
            self.waiting.discard(name)
            group = self._state.groups.get(name)
            if before is not None and group is not None and name not in self.declared:
                self._ended[name] = group.since
        self.mark(name)
