"""Test helper: a fake cluster as the watcher sees it, with a ledger and the events that the watcher
would append ("facts")."""

from typing import Any

import msgspec

from apportion.core.ledger.handlers.change import Change
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.watcher.kubernetes.facts import Adoption, Fact, Facts, Revisions
from apportion.watcher.kubernetes.objects import ObjectReader
from apportion.watcher.kubernetes.topologies import TOPOLOGY_PATHS
from apportion.watcher.kubernetes.view import KAI_QUEUES, ClusterView
from apportion_schemas import subject_of
from apportion_schemas.quantities import Payload
from tests.support.kube_objects import kube_pod, managed_fields, share
from tests.support.ledger_of import Ledger

OF_NO_NAMESPACE = frozenset(
    (
        "csidrivers",
        "csinodes",
        "namespaces",
        "nodes",
        "persistentvolumes",
        "queues",
        KAI_QUEUES,
        *TOPOLOGY_PATHS,
    )
) | {"storageclasses"}


class Followed(Ledger):
    """A ledger that passes each folded event on to the watcher."""

    view: ClusterView | None = None

    def take(self, data: Payload) -> Change:
        """Fold the event, and pass the change on to the watcher."""
        change = super().take(data)
        if self.view is not None:
            self.view.volumes.observe(change)
            self.view.claims.observe(change)
        return change


class Cluster:
    """A fake cluster with a ledger, and the events ("facts") that the watcher would append."""

    def __init__(self) -> None:
        self.ledger = Followed()
        pods = self.ledger.state.pods
        self.reader = ObjectReader(
            frozenset({"apportion"}), ManifestConfig(), knows=lambda uid: uid in pods
        )
        self.view = self.ledger.view = ClusterView(self.reader, self.ledger.state)
        self.revisions = Revisions(self.ledger.state)
        self.facts = Facts(self.view, self.ledger.state, self.revisions)

    def see(self, kind: str, document: dict[str, Any], version: int = 1, uid: str = "") -> None:
        """Let the watcher see an object of this kind from the API server."""
        meta = {"uid": uid, "resourceVersion": str(version)}
        meta |= {} if kind in OF_NO_NAMESPACE else {"namespace": "default"}
        document["metadata"] = meta | document["metadata"]
        self.view.audiences[kind].seen(msgspec.json.encode(document))

    def pod(self, uid: str, version: int = 1, **fields: Any) -> None:
        """Let the watcher see a pod from the API server. With `made`, the pod was created with its
        node and annotations. Otherwise both were added when the pod was bound."""
        node_name, made = fields.pop("on", ""), fields.pop("made", False)
        limits = fields.pop("limits", share())
        phase = fields.pop("phase", "Pending")
        deleted = fields.pop("deleted", False)
        document = kube_pod(uid, limits, **fields)
        bare = document | {"metadata": {}}
        document["spec"] |= {"nodeName": node_name} if node_name else {}
        plain = {key: value for key, value in document["spec"].items() if key != "nodeName"}
        source = document if made else bare | {"spec": plain}
        if deleted:
            document["metadata"]["deletionTimestamp"] = "2026-03-01T09:30:00Z"
        document["metadata"]["managedFields"] = managed_fields(source)
        document["status"] = {"phase": phase}
        self.see("pods", document, version, uid)

    def node_facts(self) -> list[Fact]:
        """Return the events about nodes that the watcher would append."""
        return list(self.facts.nodes(self.view.take().nodes))

    def pod_facts(self) -> list[Fact]:
        """Return the events about pods that the watcher would append."""
        marked = self.view.take().pods
        facts = self.facts
        return [*facts.ends(marked), *facts.changes(marked), *facts.arrivals(marked)]

    def adoptions(self) -> list[Adoption]:
        """Return the pods that the watcher would adopt: those that run without a placement in the
        ledger."""
        return list(self.facts.adoptions(self.view.take().pods))

    def write(self, facts: list[Fact]) -> None:
        """Append these events to the ledger, and let the watcher know their revisions."""
        for fact in facts:
            self.ledger.play(fact.data)
            self.revisions.note(subject_of(fact.data), self.ledger.state.revision)
