"""The setup of a cluster that a replay uses instead of the recorded one: its configuration
document, queues, quotas and topologies.

Manifests apply as if they had been applied when the recorded span began. Invariant: a recorded
event never undoes a part of the setup; all other recorded settings stay in force."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from apportion.core.configuration import manifest_config
from apportion.core.explain.text.event_text import limit_name
from apportion.core.explain.text.words import listed
from apportion.core.ledger.state import State
from apportion.core.placement.limits.tree import ROOT
from apportion.core.workloads.document import ManifestError, cleaned, errors_below, items_of
from apportion.core.workloads.kinds.limits import LIMITS, limit_of
from apportion.core.workloads.kinds.topologies import (
    ANY_TIER,
    HYPER_NODES,
    KAI,
    TIER,
    HyperNode,
    HyperNodes,
    Topology,
    read_hyper_node,
    read_topology,
    resolved,
)
from apportion.core.workloads.lint.typo_checks import Suspect, suspects
from apportion.core.workloads.reading import called, passed_over_words
from apportion.lab.changes import WHO
from apportion.lab.team_meter import TeamKey
from apportion.runtime.files.manifests import Document, Problem
from apportion_schemas import (
    Configuration,
    ConfigurationChanged,
    GangPart,
    NodeObserved,
    PodGroupObserved,
    PolicyChanged,
    QueueObserved,
    QuotaGone,
    QuotaObserved,
)
from apportion_schemas.quantities import Payload

OBJECTS_MAX: Final = 10_000  # queues, quotas and topologies of one setup
_HYPER_NODE: Final = (f"{HYPER_NODES}/v1alpha1", "HyperNode")
_TOPOLOGY: Final = (f"{KAI}/v1alpha1", "Topology")
_KINDS: Final = (*LIMITS, _HYPER_NODE, _TOPOLOGY)
_VERSIONS: Final = {
    kind: [version for version, other in _KINDS if other == kind] for _, kind in _KINDS
}


class SetupInvalid(ValueError):
    """Raised for manifests that are no setup; the message has a line for each problem."""


class Setup(Struct, frozen=True, kw_only=True):
    """The settings that replace recorded ones. An empty setup changes nothing.

    With any HyperNode, the recorded HyperNodes of the cluster do not count."""

    configuration: Configuration | None = None
    limits: tuple[QueueObserved | QuotaObserved, ...] = ()
    hyper_nodes: dict[str, HyperNode] = {}
    topologies: dict[str, Topology] = {}

    def __bool__(self) -> bool:
        named = self.limits or self.hyper_nodes or self.topologies
        return self.configuration is not None or bool(named)

    @property
    def teams(self) -> set[TeamKey]:
        """Return the queues that the setup names, also as parents, and the namespaces."""
        queues = [each for each in self.limits if isinstance(each, QueueObserved)]
        quotas = [each for each in self.limits if isinstance(each, QuotaObserved)]
        names = {name for each in queues for name in (each.queue, each.parent)} - {ROOT, ""}
        return {TeamKey("queue", name) for name in names} | {
            TeamKey("namespace", each.namespace) for each in quotas
        }

    @property
    def words(self) -> tuple[str, ...]:
        """Return a text for each kind of setting, such as `with queue ml from the manifests`."""
        named = (
            [limit_name(each) for each in self.limits],
            [f"HyperNode {name}" for name in self.hyper_nodes],
            [f"Topology {name}" for name in self.topologies],
        )
        said = tuple(f"with {listed(names)} from the manifests" for names in named if names)
        return (("with another configuration",) if self.configuration is not None else ()) + said


class Effect:
    """Applies a setup to a state, and to the recorded events that follow."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._tree = HyperNodes(setup.hyper_nodes)
        self._limits = {_named(each) for each in setup.limits}

    def facts(self, state: State) -> list[Payload]:
        """Return the events that put the setup in force."""
        nodes = (node.observed for node in state.nodes.values() if node.present)
        groups = (group.observed for group in state.groups.values())
        levels = [
            now for each in (*nodes, *groups)
            if each is not None and (now := self.of_topology(each)) is not each
        ]  # fmt: skip
        configuration = self._setup.configuration
        changed = [] if configuration is None else [
            ConfigurationChanged(by=WHO, configuration=configuration)
        ]  # fmt: skip
        return [*changed, *self._setup.limits, *levels]

    def altered(self, data: Payload) -> Payload | None:
        """Return a recorded event as it is with the setup; None if the setup replaces it."""
        configuration = self._setup.configuration
        if isinstance(data, QueueObserved | QuotaObserved | QuotaGone):
            return None if _named(data) in self._limits else data
        if isinstance(data, ConfigurationChanged):
            return None if configuration is not None else data
        if isinstance(data, PolicyChanged) and configuration is not None:
            policy = configuration.policy
            return structs.replace(
                data,
                node_policy=policy.nodes or data.node_policy,
                device_policy=policy.devices or data.device_policy,
                node_weights=policy.weights or data.node_weights,
            )
        return self.of_topology(data)

    def of_topology(self, data: Payload) -> Payload:
        """Return an event of a node or group with the labels and levels of the setup."""
        if isinstance(data, PodGroupObserved):
            group = data
            if self._tree.tiers:  # the ledger has the tier that was the lowest in the recording
                parts = tuple(structs.replace(part, **_preferred(part)) for part in data.parts)
                group = structs.replace(data, parts=parts, **_preferred(data))
            found = resolved(group, self._setup.topologies, self._tree)
            return data if found == data else found
        if not self._tree.tiers or not isinstance(data, NodeObserved):
            return data
        labels = self._tree.labels(data.node, data.labels)
        return structs.replace(data, labels=labels) if labels != data.labels else data


def _preferred(each: PodGroupObserved | GangPart) -> dict[str, Any]:
    return {"preferred_level": ANY_TIER} if each.preferred_level.startswith(TIER) else {}


def _named(limit: QueueObserved | QuotaObserved | QuotaGone) -> tuple[str, ...]:
    if isinstance(limit, QueueObserved):
        return (limit.queue,)
    return limit.namespace, limit.quota


class Noted(NamedTuple):
    """A field of a manifest that is probably a mistake, as in `apportion check`."""

    source: str
    line: int
    note: Suspect


class SetupFiles(NamedTuple):
    """The setup that manifests describe, a text about skipped documents, or "", and warnings."""

    setup: Setup
    skipped: str = ""
    notes: tuple[Noted, ...] = ()


def read_setup(
    found: Iterable[Document | Problem], configuration: Configuration, *, replaces: bool
) -> SetupFiles:
    """Read queues, quotas, HyperNodes and Topologies, with the names of this configuration.

    If `replaces`, this configuration replaces the recorded one, as a part of the setup. Raises
    SetupInvalid if a document is invalid, has an unknown version or repeats an object, or if no
    document is of these kinds."""
    reader = _Reader(configuration)
    documents = list(found)
    for document in documents:
        if isinstance(document, Problem):
            reader.problems.append(str(document))
        else:
            reader.read(document)
    tree = HyperNodes(reader.hyper_nodes)
    problems = [*reader.problems, *([f"HyperNodes: {tree.problem}"] if tree.problem else [])]
    objects = (*reader.limits, *reader.hyper_nodes, *reader.topologies)
    if documents and not objects and not problems:
        problems.append("no queue, ResourceQuota, HyperNode or Topology is in these files; add one")
    if problems:
        raise SetupInvalid("\n".join(problems))
    setup = Setup(
        configuration=configuration if replaces else None,
        limits=tuple(reader.limits.values()),
        hyper_nodes=reader.hyper_nodes,
        topologies=reader.topologies,
    )
    skipped = passed_over_words(reader.skipped) if reader.skipped else ""
    return SetupFiles(setup, skipped, tuple(reader.notes))


class _Reader:
    def __init__(self, configuration: Configuration) -> None:
        self._dialects = manifest_config(configuration).dialects
        self.limits: dict[Sequence[str], QueueObserved | QuotaObserved] = {}
        self.hyper_nodes: dict[str, HyperNode] = {}
        self.topologies: dict[str, Topology] = {}
        self.skipped: list[str] = []
        self.problems: list[str] = []
        self.notes: list[Noted] = []
        self._objects = 0

    def read(self, document: Document) -> None:
        items, error = items_of(document.content)
        for prefix, item in items:
            try:
                with errors_below(prefix):
                    taken = self._take(item)
                for note in suspects(item, self._dialects, placed=True) if taken else ():
                    at = document.parsed.line_of(field := prefix + note.field)
                    self.notes.append(Noted(document.source, at, note._replace(field=field)))
            except ManifestError as wrong:
                self.problems.append(str(document.problem(wrong)))
        if error is not None:
            self.problems.append(str(document.problem(error)))

    def _take(self, item: object) -> bool:
        kind = (item.get("apiVersion"), item.get("kind")) if isinstance(item, dict) else None
        if isinstance(item, dict) and kind == _HYPER_NODE:
            hyper_node = read_hyper_node(cleaned(item))
            self._add(self.hyper_nodes, hyper_node.name, hyper_node)
        elif isinstance(item, dict) and kind == _TOPOLOGY:
            topology = read_topology(cleaned(item))
            self._add(self.topologies, topology.name, topology)
        elif (limit := limit_of(item, self._dialects)) is not None:
            self._add(self.limits, _named(limit), limit)
        elif kind is not None and (versions := _VERSIONS.get(str(kind[1]))) is not None:
            fix = f"use {' or '.join(versions)}, or remove this document"
            raise ManifestError("apiVersion", kind[0], f"is no known version of {kind[1]}", fix)
        else:
            self.skipped.append(called(item))
            return False
        return True

    def _add(self, known: dict[Any, Any], name: object, found: object) -> None:
        self._objects += 1
        if self._objects > OBJECTS_MAX:
            fix = f"use at most {OBJECTS_MAX:,}"
            raise ManifestError("metadata.name", None, "is one object too many", fix)
        if known.setdefault(name, found) is not found:
            problem = "is described twice"
            raise ManifestError("metadata.name", str(name), problem, "remove one of them")
