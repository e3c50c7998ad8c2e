"""No event of a real ledger contains the private data in a pod's spec."""

import asyncio
from pathlib import Path

from tests.support.facts import Facts
from tests.support.nats import running_bus
from tests.support.processes import ServiceProcess

SECRET = "hunter2-in-the-clear"
POD = f"""
apiVersion: v1
kind: Pod
metadata:
  name: teller
  annotations: {{note: "{SECRET}"}}
spec:
  imagePullSecrets: [{{name: "{SECRET}"}}]
  volumes: [{{name: v, secret: {{secretName: "{SECRET}"}}}}]
  containers:
  - name: main
    image: "registry.example/{SECRET}"
    command: [run, "--password={SECRET}"]
    args: ["{SECRET}"]
    env:
    - {{name: PASSWORD, value: "{SECRET}"}}
    - {{name: TOKEN, valueFrom: {{secretKeyRef: {{name: "{SECRET}", key: k}}}}}}
    envFrom: [{{secretRef: {{name: "{SECRET}"}}}}]
    workingDir: "/{SECRET}"
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


async def test_nothing_of_it_reaches_the_ledger_or_a_log(tmp_path: Path) -> None:
    """A pod's environment, commands, images and volumes appear in no event and no log."""
    manifests = tmp_path / "manifests"
    await asyncio.to_thread(manifests.mkdir)
    await asyncio.to_thread((manifests / "pod.yaml").write_text, POD)
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        watcher = ServiceProcess(
            "watcher", bus.server.url_for("watcher"), "--manifests", str(manifests)
        )
        async with watcher:
            await facts.until(lambda: facts.events, "the pod")
            written = [event for _, event in facts.events]
            assert [event.data.name for event in written] == ["teller"]
            assert SECRET not in str(written)
            assert SECRET not in str(watcher.log)
