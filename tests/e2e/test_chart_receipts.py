"""The chart's hourly job that signs a receipt for the ledger: its rights, its key, its command."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from apportion.runtime.files.signing import make_key
from tests.support.facts import Facts
from tests.support.helm import documents, rendered
from tests.support.nats import running_bus


async def test_what_the_chart_runs_every_hour_signs(tmp_path: Path) -> None:
    """The hourly job's command signs a receipt for the ledger, stores it and prints it."""
    found = documents(rendered("--set", "receipts.enabled=true"))
    pod = found["CronJob", "receipts"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    key, receipts = tmp_path / "receipts.key", tmp_path / "receipts"
    make_key(key)
    words = " ".join(pod["containers"][0]["args"])
    words = words.replace("/key/receipts.key", str(key)).replace("=/receipts", f"={receipts}")
    async with running_bus(tmp_path / "nats") as bus:
        facts = Facts(bus)
        await facts.open()
        await facts.submit("a")  # and wait for the auditors' copy: the job signs what that has
        job = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apportion.cli.main", *words.split(),
            env=os.environ | {"APPORTION_NATS_URL": bus.server.url_for("auditor")},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await asyncio.wait_for(job.communicate(), 60)
    assert job.returncode == 0
    (path,) = receipts.glob("receipt-*.json")
    assert json.loads(said) == json.loads(path.read_text())


@pytest.mark.parametrize("callout", ["true", "false"])
def test_receipts_are_one_setting(callout: str) -> None:
    """One setting enables the job that signs receipts.

    The job has no rights in the cluster, and no other pod has its key."""
    made = {(kind, "receipts") for kind in ("CronJob", "PersistentVolumeClaim")}
    assert not {*made, ("ServiceAccount", "auditor")} & documents(rendered()).keys()
    found = documents(rendered("--set", f"receipts.enabled=true,callout.enabled={callout}"))
    assert {*made, ("ServiceAccount", "auditor")} <= found.keys()
    bound = (each["subjects"] for (kind, _), each in found.items() if kind.endswith("RoleBinding"))
    assert "auditor" not in {subject["name"] for subjects in bound for subject in subjects}
    pod = found["CronJob", "receipts"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    user = "$(POD_NAME)" if callout == "true" else "auditor:$(PASSWORD)"
    assert env["APPORTION_NATS_URL"] == f"tls://{user}@nats:4222"
    assert "APPORTION_LEDGER_KEY" not in env
    having = {
        name
        for (kind, name), each in found.items()
        if kind in {"Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob"}
        and "receipts-key" in str(each)
    }
    assert having == {"receipts"}
    words = "receipts.enabled=true,receipts.claim=mine,receipts.keySecret=k"
    found = documents(rendered("--set", words))
    assert ("PersistentVolumeClaim", "receipts") not in found
    pod = found["CronJob", "receipts"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    assert claims == {"mine"}
