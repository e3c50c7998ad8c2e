"""Tests of submitting the same objects again, of limits and of dry runs, with a real `apportion
up`."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.polling import wait_until
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow
POD = """
apiVersion: v1
kind: Pod
metadata: {name: trainer, labels: {team: TEAM}}
spec:
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "MEMORY"}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: COUNT
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: x
        resources: {limits: {nvidia.com/gpu: "1", nvidia.com/gpumem: "1000"}}
"""
LIMITS = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: ml}
spec: {weight: 2, capability: {cpu: "4", memory: 8Gi, nvidia.com/gpu: 1}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: devices, namespace: small}
spec: {hard: {requests.nvidia.com/gpu: 1}}
"""
GANG = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: band}
spec: {minMember: 1}
"""
SERVICE = b"""
apiVersion: v1
kind: Service
metadata: {name: web}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Provide a fleet of one node with four GPUs."""
    folder = tmp_path_factory.mktemp("submitting")
    with Standalone(folder / "data", "--no-samples", "--fleet", "4xA100-80GB") as running:
        yield running.up()
    running.nothing_left()


def pod(memory: int, team: str = "a") -> bytes:
    """Return the manifest of the test's pod, with `memory` and the label `team` filled in."""
    return POD.replace("MEMORY", str(memory)).replace("TEAM", team).encode()


def web(count: int) -> bytes:
    """Return the manifest of the Deployment `web` with `count` replicas."""
    return DEPLOYMENT.replace("COUNT", str(count)).encode()


def pods(up: Standalone) -> dict[str, Any]:
    """Return the live pods by name."""
    return {each["name"]: each for each in up.json("get", "pods")["items"]}


def test_a_changed_spec_is_told_and_replaced_on_request(up: Standalone) -> None:
    """If a live pod is submitted with a changed spec, `submit` prints the changes and exits with 1.
    With --replace it replaces the pod, except in a dry run."""
    up.json("submit", "-f", "-", "--wait", stdin=pod(1000))
    before = pods(up)["trainer"]
    same = up.json("submit", "-f", "-", stdin=pod(1000))
    assert (same["unchanged"], same["changed"]) == (["default/trainer"], {})

    told = up.json("submit", "-f", "-", stdin=pod(2000, "b"), code=1)
    assert told["submitted"] == []
    [asks, label] = told["changed"]["default/trainer"]
    assert re.findall("[0-9,]+ MiB", asks) == ["1,000 MiB", "2,000 MiB"]
    assert label == "labels.team: a → b"
    assert "--replace" in up.run("submit", "-f", "-", stdin=pod(2000)).stdout

    dry = up.json("submit", "-f", "-", "--replace", "--dry-run", stdin=pod(2000))
    assert dry["replaced"] == ["default/trainer"]
    assert pods(up)["trainer"]["uid"] == before["uid"]

    done = up.json("submit", "-f", "-", "--replace", "--wait", stdin=pod(2000))
    assert (done["replaced"], list(done["placed"])) == (["default/trainer"],) * 2
    after = pods(up)["trainer"]
    assert (after["asks"][0]["memory_mib"], after["uid"] == before["uid"]) == (2000, False)
    assert up.json("submit", "-f", "-", stdin=pod(2000))["unchanged"] == ["default/trainer"]


def test_a_pod_that_runs_is_the_same_still(up: Standalone) -> None:
    """Resubmitting a running pod leaves it unchanged: its allocation is not part of its request."""
    up.json("submit", "-f", "-", "--wait", "--replace", stdin=pod(1000))
    wait_until(lambda: pods(up)["trainer"]["phase"] == "allocated", "it to run")
    assert up.json("submit", "-f", "-", stdin=pod(1000))["unchanged"] == ["default/trainer"]


def test_a_deployment_is_scaled_down(up: Standalone) -> None:
    """Resubmitting a Deployment with fewer replicas, even with zero, ends only the surplus pods."""
    up.json("submit", "-f", "-", "--wait", stdin=web(3))
    dry = up.json("submit", "-f", "-", "--dry-run", stdin=web(1))
    assert sorted(dry["ended"]) == ["default/web-1", "default/web-2"]
    done = up.json("submit", "-f", "-", stdin=web(1))
    assert sorted(done["ended"]) == ["default/web-1", "default/web-2"]
    assert done["unchanged"] == ["default/web-0"]
    wait_until(lambda: set(pods(up)) == {"web-0", "trainer"}, "the surplus to be gone")
    up.json("submit", "-f", "-", stdin=web(0))
    wait_until(lambda: set(pods(up)) == {"trainer"}, "the last one to be gone")


TRAINING = b"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      template:
        spec:
          containers:
          - name: pytorch
            image: x
            resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}
    Worker: *role
"""


def test_a_training_job_is_planned_submitted_and_deleted(up: Standalone) -> None:
    """The pods of a PyTorchJob are planned, submitted and deleted as a gang."""
    names = ["default/train-master-0", "default/train-worker-0"]
    planned = up.json("plan", "-f", "-", stdin=TRAINING)
    assert sorted(f"{each['namespace']}/{each['name']}" for each in planned["pods"]) == names
    assert all(each["placed"] for each in planned["pods"])
    done = up.json("submit", "-f", "-", "--wait", stdin=TRAINING)
    assert sorted(done["placed"]) == names
    assert any("PyTorchJob" in each for each in done["warnings"])
    (gang,) = up.json("get", "gangs")["items"]
    assert (gang["group"], gang["min_available"]) == ("default/train", 2)
    up.run("delete", "-f", "-", stdin=TRAINING)
    wait_until(lambda: not {"train-master-0", "train-worker-0"} & set(pods(up)), "its end")


def test_a_changed_deployment_is_changed_whole_or_not_at_all(up: Standalone) -> None:
    """Without --replace a changed Deployment stays unchanged, and the output says what --replace
    would do."""
    up.json("submit", "-f", "-", "--wait", stdin=web(3))
    fewer, more = (web(count).replace(b'"1000"', b'"2000"') for count in (1, 4))
    told = up.json("submit", "-f", "-", stdin=fewer, code=1)
    assert (list(told["changed"]), told["ended"]) == (["default/web-0"], {})
    assert told["held"] == {"default/web-1": "ended", "default/web-2": "ended"}
    dry = up.json("submit", "-f", "-", "--dry-run", stdin=more, code=1)
    assert (dry["submitted"], dry["held"]) == ([], {"default/web-3": "submitted"})
    said = up.run("submit", "-f", "-", stdin=fewer).stdout
    assert "2 held back" in said
    assert re.search(r"--replace .*\b1\b.*\b2\b", said)
    assert {"web-0", "web-1", "web-2"} <= set(pods(up))
    done = up.json("submit", "-f", "-", "--replace", "--wait", stdin=fewer)
    assert (done["replaced"], len(done["ended"])) == (["default/web-0"], 2)
    up.json("submit", "-f", "-", stdin=web(0).replace(b'"1000"', b'"2000"'))


def test_who_waits_already_is_waited_for(up: Standalone) -> None:
    """If a pending pod is submitted again with `--wait`, `submit` waits for that pod. It fails with
    the same reasons as the first time."""
    large = pod(90_000).replace(b"name: trainer", b"name: large")
    first = up.json("submit", "-f", "-", "--wait", stdin=large, code=1)
    again = up.json("submit", "-f", "-", "--wait", stdin=large, code=1)
    assert again["unchanged"] == list(again["refused"]) == ["default/large"]
    assert again["refused"] == first["refused"]
    assert again["causes"] == first["causes"]
    assert sum(again["causes"].values()) == 1
    assert up.json("submit", "-f", "-", stdin=large)["unchanged"] == ["default/large"]
    said = up.run("submit", "-f", "-", "--wait", stdin=large).stdout
    assert "1 pending, 1 unchanged" in said
    assert "already live" not in said
    up.json("delete", "-f", "-", stdin=large)


def test_of_whom_nobody_looks_at_the_reason_is_told_at_once(up: Standalone) -> None:
    """`submit --wait` reports at once why no scheduler considers a pod: the pod has a scheduling
    gate, or its PodGroup is missing."""
    document = pod(1000).replace(b"name: trainer", b"name: NAME")
    gated = document.replace(b"NAME", b"gated").replace(
        b"containers:", b"schedulingGates: [{name: example.com/hold}]\n  containers:"
    )
    lone = document.replace(b"NAME", b"lone").replace(
        b"labels: {", b"annotations: {scheduling.k8s.io/group-name: nowhere}, labels: {"
    )
    said = up.json(
        "submit", "-f", "-", "--wait", "--timeout", "3600", stdin=gated + b"---" + lone, code=1
    )  # fmt: skip
    why = {
        "default/gated": "until its scheduling gates are removed: example.com/hold",
        "default/lone": "its gang default/nowhere has no PodGroup yet",
    }
    assert (said["refused"], said["undecided"]) == (why, [])
    assert said["causes"] == dict.fromkeys(why.values(), 1)
    listed = pods(up)
    assert {f"default/{name}": listed[name]["cause"] for name in ("gated", "lone")} == why
    again = up.json("submit", "-f", "-", "--wait", stdin=gated, code=1)
    assert again["refused"] == {"default/gated": why["default/gated"]}
    up.run("delete", "gated", "lone")


def test_queues_and_quotas_are_obeyed(up: Standalone) -> None:
    """`submit` stores queues and quotas, and reports them as unchanged the second time. A
    ResourceQuota limits the pods of its namespace."""
    said = up.json("submit", "-f", "-", stdin=LIMITS.encode())
    assert sorted(said["limits"]) == ["queue ml", "quota small/devices"]
    again = up.json("submit", "-f", "-", stdin=LIMITS.encode())
    assert (again["limits"], again["limits_unchanged"]) == ({}, sorted(said["limits"]))
    told = up.run("submit", "-f", "-", stdin=LIMITS.encode()).stdout.splitlines()
    assert ["  unchanged: " in line for line in told[1:3]] == [True] * 2
    assert told[-1].endswith("2 limits unchanged")
    small = web(2).replace(b"name: web}", b"name: web, namespace: small}", 1)
    waited = up.json("submit", "-f", "-", "--wait", stdin=small, code=1)
    assert (len(waited["placed"]), len(waited["refused"])) == (1, 1)
    assert "ResourceQuota" in next(iter(waited["refused"].values()))
    wrong = LIMITS.replace('cpu: "4"', "cpu: lots").encode()
    problem = up.json("submit", "-f", "-", stdin=wrong, code=1)["problems"]
    assert "spec.capability" in problem[0]
    assert up.json("verify")["ok"]


def test_keys_that_decide_nothing_are_not_in_force(up: Standalone) -> None:
    """`submit` warns of every key of a Queue that has no effect. `get queues` does not list such
    keys."""
    dead = {"extendClusters": "[{name: a}]", "type": "x"}
    keys = "".join(f"{name}: {value}, " for name, value in dead.items())
    said = up.json("submit", "-f", "-", stdin=LIMITS.replace("{weight", f"{{{keys}weight").encode())
    told = {field: [each for each in said["warnings"] if f"spec.{field}" in each] for field in dead}
    assert {field: len(each) for field, each in told.items()} == dict.fromkeys(dead, 1)
    (queue,) = up.json("get", "queues")["items"]
    assert not dead.keys() & queue.keys()
    assert queue["capability"] == {"cpu": 4000, "memory": 8192, "nvidia.com/gpu": 1}


def test_limits_are_listed_and_end_by_name(up: Standalone) -> None:
    """Queues and quotas are listed and deleted by name. If a limit cannot be deleted, the reply
    gives the reason."""
    limits = LIMITS.replace("devices", "ends").replace("small", "empty").encode()
    since = str(up.json("submit", "-f", "-", stdin=limits)["limits"]["quota empty/ends"])
    (queue,) = up.json("get", "queues")["items"]
    assert queue["capability"] == {"cpu": 4000, "memory": 8192, "nvidia.com/gpu": 1}
    listed = up.run("get", "quotas", "-n", "empty", "--at-least", since).stdout
    assert " 0/1 of requests.nvidia.com/gpu" in listed
    done = up.json("delete", "-f", "-", stdin=limits, code=1)
    revision = done["limits"]["quota empty/ends"]
    assert ["queue ml was not deleted" in problem for problem in done["problems"]] == [True]
    left = up.json("get", "quotas", "-n", "empty", "--at-least", str(revision))
    assert left["items"] == []
    again = up.json("delete", "-f", "-", stdin=limits, code=1)
    assert "empty/ends" in again["problems"][1]


def test_a_gang_ends_by_its_pod_group_once_it_has_no_pod(up: Standalone) -> None:
    """Deleting a PodGroup deletes its gang if the gang has no pods. Otherwise nothing is deleted,
    and the reply names the pods."""
    gang, of_none = GANG.encode(), web(0)
    member = pod(1000).replace(
        b"name: trainer,", b"name: member, annotations: {scheduling.k8s.io/group-name: band},"
    )
    up.json("submit", "-f", "-", stdin=gang + b"---" + member)
    (problem,) = up.json("delete", "-f", "-", stdin=gang, code=1)["problems"]
    assert problem.startswith("gang default/band was not deleted")
    assert problem.endswith(" 1 pod: default/member")
    both = up.json("delete", "-f", "-", stdin=gang + b"---" + member)
    assert (list(both["deleted"]), both["gangs"]) == (["default/member"], {})
    up.json("submit", "-f", "-", stdin=gang)
    alone = up.run("delete", "-f", "-", stdin=gang)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.startswith("gang default/band deleted")
    (problem,) = up.json("delete", "-f", "-", stdin=gang, code=1)["problems"]
    assert "default/band" in problem
    (problem,) = up.json("delete", "-f", "-", stdin=of_none, code=1)["problems"]
    assert "Deployment default/web" in problem


def test_a_gang_that_alone_has_changed_is_declared_anew(up: Standalone) -> None:
    """Submitting a changed PodGroup updates its gang and leaves the gang's pods unchanged. A dry
    run changes nothing."""
    gang = GANG.replace("band", "trio").encode()
    more = gang.replace(b"minMember: 1", b"minMember: 2")
    member = pod(1000).replace(
        b"name: trainer,", b"name: alto, annotations: {scheduling.k8s.io/group-name: trio},"
    )

    def least() -> list[int]:
        found = up.json("get", "gangs")["items"]
        return [each["min_available"] for each in found if each["group"] == "default/trio"]

    up.json("submit", "-f", "-", "--wait", stdin=gang + b"---" + member)
    assert up.json("submit", "-f", "-", stdin=gang + b"---" + member)["gangs"] == {}
    dry = up.json("submit", "-f", "-", "--dry-run", stdin=more + b"---" + member)
    assert (dry["gangs"], least()) == ({"default/trio": 2}, [1])
    done = up.run("submit", "-f", "-", stdin=more + b"---" + member)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gang default/trio" in done.stdout
    assert "declared: at least 2" in done.stdout
    wait_until(lambda: least() == [2], "the gang as it is declared now")
    up.json("delete", "-f", "-", stdin=more + b"---" + member)
    wait_until(lambda: least() == [], "the gang to be gone")
    assert up.json("submit", "-f", "-", stdin=more)["gangs"] == {"default/trio": 2}
    up.json("delete", "-f", "-", stdin=more)


def test_what_is_none_of_ours_is_passed_over_by_name(up: Standalone) -> None:
    """Every verb that takes manifests skips kinds that Apportion does not use, such as a Service,
    and names each skipped object. A file that has nothing else is an error."""
    both = pod(1000) + b"---" + SERVICE
    tried = up.run("submit", "-f", "-", "--dry-run", stdin=both)
    assert (tried.stderr.count("\n"), "Service web" in tried.stderr) == (1, True)
    assert up.json("plan", "-f", "-", stdin=both)["passed_over"] == ["Service web"]
    up.json("submit", "-f", "-", stdin=both)
    told = up.json("submit", "-f", "-", stdin=SERVICE, code=1)
    assert told["passed_over"] == ["Service web"]
    assert "use Pod" in told["problems"][0]
    ended = up.run("delete", "-f", "-", stdin=both)
    assert (ended.returncode, ended.stderr) == (0, tried.stderr)


def test_what_would_be_left_to_another_scheduler_is_told(up: Standalone) -> None:
    """`submit` warns on stderr and in JSON about a pod that names another scheduler, and submits
    the pod."""
    other = pod(1000).replace(b"spec:\n", b"spec:\n  schedulerName: x\n")
    said = up.json("submit", "-f", "-", "--dry-run", stdin=other)["warnings"]
    assert ["spec.schedulerName: x " in each for each in said] == [True]
    done = up.run("submit", "-f", "-", "--dry-run", stdin=other)
    assert (done.returncode, done.stderr) == (0, f"warning: {said[0]}\n")
