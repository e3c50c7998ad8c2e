"""Applying one configuration document changes the behaviour of every service without a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import wait_until
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow
FLEET = "node,devices\nmig-1,1xA100-40GB:mig\nshared-1,2xT4\n"
DOCUMENT = """
nvidia:
  resourceCountName: cards.example/gpu
  resourceMemoryName: cards.example/mem
  defaultMemory: 5000
  deviceSplitCount: 3
  deviceMemoryScaling: 2
  knownMigGeometries:
  - models: [A100-SXM4-40GB]
    allowedGeometries:
    - group: halves
      geometries: [{name: 3g.20gb, memory: 20480, count: 2}]
nodeconfig:
- {name: shared-1, devicesplitcount: 4, filterdevices: {index: [1]}}
- {name: shared-l, devicesplitcount: 4}
policy: {nodes: spread}
"""


def pod(name: str, *, mode: str = "hami-core", **limits: int) -> bytes:
    """Return a pod's manifest. Each keyword of `limits` becomes a resource name of this test's
    configuration: `gpu` becomes `cards.example/gpu`."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"nvidia.com/vgpu-mode": mode}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "limits": {f"cards.example/{key}": n for key, n in limits.items()}
                    },
                }
            ]
        },
    }
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Provide two nodes, without samples, for all tests of this module."""
    folder = tmp_path_factory.mktemp("configuration")
    (folder / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(folder / "fleet.csv"))
    with Standalone(folder / "data", *options) as running:
        yield running.up()
    running.nothing_left()


@pytest.fixture(scope="module")
def applied(up: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Apply the configuration document, and return it once it is in force."""
    file = tmp_path_factory.mktemp("document") / "cluster.yaml"
    file.write_text(DOCUMENT)
    before = up.json("config", "show")
    assert (before["configuration_revision"], before["configuration"]) == (0, {})
    assert "valid" in up.run("config", "check", str(file)).stdout
    done = up.run("config", "apply", str(file), "--reason", "test", "--json")
    assert (
        "nodeconfig[1].name: shared-l is not a node of the cluster yet; did you mean shared-1"
        in done.stderr
    )
    first = json.loads(done.stdout)
    again = up.json("config", "apply", str(file))
    assert (first["changed"], again["changed"]) == (True, False)
    assert again["revision"] == first["revision"]
    return dict(first)


def devices(up: Standalone, node: str) -> list[dict[str, Any]]:
    """Return the devices that the node offers."""
    return [item for item in up.json("get", "devices")["items"] if item["node"] == node]


def test_agents_offer_what_it_says(up: Standalone, applied: dict[str, Any]) -> None:
    """Agents offer the slots and memory that the configuration sets. A node's own entry overrides
    the general settings, and an excluded device is not offered."""
    assert applied["configuration"]["nvidia"]["deviceSplitCount"] == 3
    wait_until(lambda: len(devices(up, "shared-1")) == 1, "the second card to be off offer")
    (card,) = devices(up, "shared-1")
    assert (card["slots"], card["memory_mib"]) == (4, 2 * 15360)


def test_readers_and_the_scheduler_obey_it(up: Standalone, applied: dict[str, Any]) -> None:
    """`submit` and the scheduler use the configuration that was applied."""
    wait_until(lambda: len(devices(up, "shared-1")) == 1, "the agents to have read it")
    documents = [pod("filled", gpu=1), pod("half", mode="mig", gpu=1, mem=1000)]
    report = up.json("submit", "-f", "-", "--wait", stdin=b"\n---\n".join(documents))
    assert set(report["placed"]) == {"default/filled", "default/half"}
    shares = {item["name"]: item["shares"][0] for item in up.json("get", "pods")["items"]}
    assert shares["filled"]["memory_mib"] == 5000
    cut = shares["half"]["instance"]
    assert (cut["group"], cut["profile"]) == ("halves", "3g.20gb")
    assert up.json("policy", "get")["node_policy"] == "spread"
    assert applied["revision"] > 0


def test_what_is_shown_can_be_applied(
    up: Standalone, applied: dict[str, Any], tmp_path: Path
) -> None:
    """`config show` prints the applied document without default values. Applying that output again
    changes nothing."""
    shown = up.run("config", "show").stdout
    file = tmp_path / "shown.json"
    file.write_text(shown)
    assert json.loads(shown) == applied["configuration"]
    assert up.json("config", "apply", str(file))["changed"] is False


def test_a_wrong_document_changes_nothing(up: Standalone, tmp_path: Path) -> None:
    """An invalid document is refused with file, line, key and fix, and changes nothing."""
    file = tmp_path / "wrong.yaml"
    file.write_text("nvidia:\n  deviceSplitCount: 3\n  defaultMem: 5000\n")
    before = up.json("config", "show")["configuration_revision"]
    for verb in ("check", "apply"):
        done = up.run("config", verb, str(file))
        assert done.returncode == 1
        assert f"{file}, line 3: nvidia.defaultMem is not a known key" in done.stderr
        assert "write defaultMemory" in done.stderr
    assert up.json("config", "show")["configuration_revision"] == before
