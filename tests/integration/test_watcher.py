"""Real watcher processes read manifests from a folder, and record added, changed and removed pods
in a real ledger."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from apportion_schemas import PodGone, PodGroupObserved, PodSubmitted
from tests.support.facts import Facts
from tests.support.nats import Bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec: {{containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]}}
"""
GANG = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 2
  tasks:
  - {name: w, replicas: 2, template: {spec: {containers: [{name: c}]}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provide the folder of manifests that the watcher reads."""
    made = tmp_path / "manifests"
    made.mkdir()
    return made


def watcher_of(bus: Bus, folder: Path) -> ServiceProcess:
    """Return a watcher with a short polling interval."""
    options = ("--manifests", str(folder), "--interval", "0.1")
    return ServiceProcess("watcher", bus.server.url_for("watcher"), *options)


def live(facts: Facts) -> list[str]:
    """Return the sorted names of all pods that were submitted and have not ended. The list has a
    name twice if two pods have that name."""
    gone = {event.uid for event in facts.of(PodGone)}
    return sorted(event.name for event in facts.of(PodSubmitted) if event.uid not in gone)


async def until_live(facts: Facts, *names: str) -> None:
    """Wait until exactly these pods are live."""
    await facts.until(lambda: live(facts) == sorted(names), f"pods {names}")


async def test_pods_come_change_and_go_with_their_files(
    bus: Bus, facts: Facts, folder: Path
) -> None:
    """The watcher submits the pods of existing and added files. It replaces the pod of an edited
    file, and ends the pod of a removed file."""
    (folder / "a.yaml").write_text(POD.format(name="a", gpus=1))
    async with watcher_of(bus, folder) as watcher:
        await watcher.ready()
        await until_live(facts, "a")
        two = POD.format(name="b", gpus=1) + "---\n" + POD.format(name="c", gpus=1)
        (folder / "two.yaml").write_text(two)
        await until_live(facts, "a", "b", "c")
        (folder / "a.yaml").write_text(POD.format(name="a", gpus=2))
        await facts.count(PodSubmitted, 4)
        (folder / "two.yaml").write_text(POD.format(name="c", gpus=1))
        await until_live(facts, "a", "c")
        (folder / "a.yaml").unlink()
        await until_live(facts, "c")
        assert await watcher.stop() == 0
    reasons = {event.uid: event.reason for event in facts.of(PodGone)}
    a1, a2 = (pod for pod in facts.of(PodSubmitted) if pod.name == "a")
    assert (reasons[a1.uid], reasons[a2.uid]) == ("manifest changed", "manifest removed")


async def test_what_was_missed_is_found_on_return(bus: Bus, facts: Facts, folder: Path) -> None:
    """A restarted watcher records the files that were added, changed or removed while it was down.
    It repeats nothing else."""
    for name in ("stays", "goes", "changes"):
        (folder / f"{name}.yaml").write_text(POD.format(name=name, gpus=1))
    async with watcher_of(bus, folder) as watcher:
        await until_live(facts, "stays", "goes", "changes")
        await watcher.kill()
        (folder / "goes.yaml").unlink()
        (folder / "comes.yaml").write_text(POD.format(name="comes", gpus=1))
        (folder / "changes.yaml").write_text(POD.format(name="changes", gpus=2))
        await watcher.start()
        await watcher.ready()
        await until_live(facts, "stays", "changes", "comes")
    submitted = [event.name for event in facts.of(PodSubmitted)]
    assert sorted(submitted) == ["changes", "changes", "comes", "goes", "stays"]
    assert len(facts.of(PodGone)) == 2


async def test_two_watchers_on_one_folder(bus: Bus, facts: Facts, folder: Path) -> None:
    """Two watchers, of which one is killed and restarted, record each event once."""
    (folder / "gang.yaml").write_text(GANG)
    async with watcher_of(bus, folder) as one, watcher_of(bus, folder) as two:
        await asyncio.gather(one.ready(), two.ready())
        for number in range(20):
            (folder / f"p{number}.yaml").write_text(POD.format(name=f"p{number}", gpus=1))
            if number == 10:
                await one.kill()
                await one.start()
        pods = [f"p{number}" for number in range(20)]
        await until_live(facts, "train-w-0", "train-w-1", *pods)
        (folder / "p3.yaml").unlink()
        await until_live(facts, "train-w-0", "train-w-1", *(p for p in pods if p != "p3"))
        await one.ready()
    assert len(facts.of(PodSubmitted)) == 22
    assert len(facts.of(PodGone)) == 1
    assert len(facts.of(PodGroupObserved)) == 1


async def test_a_bad_file_is_named_and_the_others_go_on(
    bus: Bus, facts: Facts, folder: Path
) -> None:
    """The watcher logs and counts a bad file, and still submits the others. A correction clears the
    error."""
    (folder / "a.yaml").write_text(POD.format(name="a", gpus=1))
    (folder / "bad.yaml").write_text("---\n" + POD.format(name="bad", gpus=-4))
    async with watcher_of(bus, folder) as watcher:
        await until_live(facts, "a")
        line = await watcher.logged("bad.yaml")
        assert "document 1" in line["event"]
        assert "nvidia.com/gpu" in line["event"]

        async def counted(problems: int) -> bool:
            _, text = await watcher.get("/metrics")
            return f"apportion_watcher_problems {problems}.0" in text

        await until(partial(counted, 1), "the problem to be counted")
        (folder / "bad.yaml").write_text(POD.format(name="bad", gpus=4))
        await until_live(facts, "a", "bad")
        await until(partial(counted, 0), "no problem left")
        assert watcher.running


async def test_pods_from_elsewhere_are_left_alone(bus: Bus, facts: Facts, folder: Path) -> None:
    """The watcher does not touch pods that a user submitted. It submits a deleted pod again while
    the pod's manifest exists."""
    await facts.submit("by-hand")
    (folder / "a.yaml").write_text(POD.format(name="a", gpus=1))
    async with watcher_of(bus, folder) as watcher:
        await watcher.ready()
        await until_live(facts, "a", "by-hand")
        uid = facts.of(PodSubmitted)[-1].uid
        await facts.write(PodGone(uid=uid, reason="deleted by hand"), role="operator")
        await facts.count(PodSubmitted, 3)
        await until_live(facts, "a", "by-hand")


async def test_the_server_restarts(bus: Bus, facts: Facts, folder: Path) -> None:
    """A crash of the ledger's server delays a pod, but submits no pod twice."""
    (folder / "a.yaml").write_text(POD.format(name="a", gpus=1))
    async with watcher_of(bus, folder) as watcher:
        await until_live(facts, "a")
        await bus.crash()
        (folder / "b.yaml").write_text(POD.format(name="b", gpus=1))
        await bus.restart()
        await until_live(facts, "a", "b")
        await watcher.ready()
        assert watcher.running
    assert len(facts.of(PodSubmitted)) == 2


async def test_it_stops_while_the_ledger_is_away(bus: Bus, folder: Path) -> None:
    """The watcher obeys SIGTERM in time while the ledger is down, even with a pod left to
    submit."""
    async with watcher_of(bus, folder) as watcher:
        await watcher.ready()
        await bus.crash()
        (folder / "a.yaml").write_text(POD.format(name="a", gpus=1))
        await watcher.logged("waiting for the ledger")
        assert await watcher.stop() == 0
