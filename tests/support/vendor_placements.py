"""Place a manifest on a vendor's node, and return the annotations that its plugin reads."""

from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from apportion.core.workloads.dialects.dialect import PlacedPod
from apportion.core.workloads.dialects.inventory import NodeFacts
from apportion.core.workloads.dialects.listing import render
from apportion.core.workloads.dialects.names import dialect_config
from apportion.core.workloads.dialects.node_annotations import registration
from apportion_schemas import DevicesRegistered
from tests.support.fleet import observed
from tests.support.ledger_of import Ledger
from tests.support.manifests import draft
from tests.support.pods import pod as submitted

SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "vendors"
NOW_S = 1_700_000_000
BOUND = {
    "hami.io/vgpu-node": "n1",
    "hami.io/vgpu-time": str(NOW_S),
    "hami.io/bind-phase": "allocating",
    "hami.io/bind-time": str(NOW_S),
}
"""The annotations that HAMi writes for pods of every vendor."""


def ledger(node: NodeFacts) -> Ledger:
    """Return a ledger with this node, whose devices Apportion may use."""
    found = registration(node)
    assert not found.problem
    event = DevicesRegistered(node="n1", plugin=found.plugin, devices=found.devices)
    return Ledger(observed("n1", labels={"apportion.dev/device-plugin": found.plugin}), event)


def place(here: Ledger, uid: str, document: dict[str, Any]) -> Ledger:
    """Submit the pod of this manifest, and decide until nothing changes."""
    found = draft(document)
    names = tuple(each["name"] for each in document["spec"]["containers"])
    wanted = submitted(uid, shape=found.shape, dialect=found.dialect)
    return here.submit(structs.replace(wanted, containers=names)).settle()


def annotations(node: NodeFacts, document: dict[str, Any]) -> dict[str, str]:
    """Return the annotations of the manifest's pod, placed on this node alone."""
    return written(place(ledger(node), "p", document), "p")


def written(here: Ledger, uid: str) -> dict[str, str]:
    """Return the annotations of a placed pod."""
    devices = {each.device.id: each.device for each in here.node().devices}
    wanted = here.pod(uid).submitted
    config = dialect_config(here.state.configuration)
    return render(PlacedPod(wanted, here.placement(uid), devices, NOW_S * 10**9, config))


def sample(name: str) -> dict[str, Any]:
    """Return a manifest of `examples/vendors`."""
    found: dict[str, Any] = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text("utf-8"))
    return found
