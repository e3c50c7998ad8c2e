"""What of a Kubernetes object reaches the ledger."""

import json

from apportion.core.manifests import ManifestConfig
from apportion.watcher.kubernetes_objects import ObjectReader
from tests.support.kube_objects import kube_node


def test_unhealthy_devices_are_read_from_the_annotation() -> None:
    """C8: Volcano's plugin names them on the node."""
    document = kube_node("n1")
    document["metadata"]["annotations"] = {"volcano.sh/gpu-unhealthy-ids": "1,3"}
    reader = ObjectReader(frozenset({"apportion"}), ManifestConfig())
    assert reader.node(json.dumps(document).encode()).unhealthy_indexes == (1, 3)
