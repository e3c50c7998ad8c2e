"""Tests of `apportion check`, which reads manifest files without a cluster or a ledger."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from apportion.cli.verbs.predict.check import command
from tests.support.golden import Golden
from tests.tidy.tree import ROOT

SHARE = "resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}"
POD = f"containers: [{{name: main, image: x, {SHARE}}}]"
SET = f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: web, namespace: team}}
spec:
  template:
    metadata: {{annotations: {{volcano.sh/revocable-zone: "true"}}}}
    spec:
      os: {{name: linux}}
      {POD}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
"""
CLAIM = f"""
apiVersion: batch/v1
kind: CronJob
metadata: {{name: nightly}}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          resourceClaims: [{{name: gpu}}]
          {POD}
"""


def check(*arguments: object, text: str = "") -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments], input=text)


def report(*arguments: object, text: str = "") -> Any:
    """Return the decoded output of `check --json` with these arguments."""
    return json.loads(check(*arguments, "--json", text=text).stdout)


def test_every_example_would_be_taken() -> None:
    """`check` accepts all our example manifests, including those in subfolders."""
    done = check("-f", ROOT / "examples")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith("accepted, 0 rejected")
    assert "cambricon-mlu.yaml" in done.stdout


def test_what_a_controller_would_make_is_looked_at(tmp_path: Path) -> None:
    """For a workload, `check` reports the pod template's family of resource names ("dialect"),
    requests and ignored fields. It skips other kinds of objects."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "set.yaml").write_text(SET)
    found = report("-f", tmp_path)
    (row,) = found["documents"]
    assert (row["name"], row["pods"], row["dialect"]) == ("StatefulSet team/web", 1, "hami")
    assert ["3,000 MiB" in ask for ask in row["asks"]] == [True]
    assert [note["field"] for note in row["notes"]] == [
        "spec.template.spec.os",
        'spec.template.metadata.annotations["volcano.sh/revocable-zone"]',
    ]
    assert [each["name"] for each in found["skipped"]] == ["Service web"]


def test_what_would_be_refused_has_its_place_and_its_fix(tmp_path: Path) -> None:
    """For a rejected document, `check` prints the line and the field and exits with 1. It still
    checks the other documents."""
    (tmp_path / "a.yaml").write_text(CLAIM)
    (tmp_path / "b.yaml").write_text(SET)
    done = check("-f", tmp_path / "a.yaml", "-f", tmp_path / "b.yaml")
    assert done.exit_code == 1
    assert f"{tmp_path}/a.yaml:10  CronJob default/nightly" in done.stdout
    field = "spec.jobTemplate.spec.template.spec.resourceClaims"
    assert f"rejected  {field}" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 accepted, 1 rejected, 1 skipped"


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("", "spec.jobTemplate.spec.template"),
        ("{spec: {containers: []}}", "spec.jobTemplate.spec.template.spec.containers"),
    ],
)
def test_a_template_that_is_none(template: str, field: str) -> None:
    """`check` rejects a missing or empty pod template and names its full path."""
    head = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: n}, spec: "
    text = f"{head}{{jobTemplate: {{spec: {{template: {template}}}}}}}}}"
    (row,) = report("-f", "-", text=text)["documents"]
    assert row["refused"].startswith(f"{field} ")


VOLCANO_JOB = f"""
spec:
  schedulerName: volcano
  priorityClassName: urgent
  minAvailable: 2
  tasks:
    - {{name: work, replicas: 2, topologyPolicy: best-effort, template: {{spec: {{{POD}}}}}}}
"""


@pytest.mark.parametrize(
    ("kind", "below", "spec"),
    [
        (
            "{apiVersion: batch.volcano.sh/v1alpha1, kind: CronJob",
            "spec.jobTemplate.",
            "spec:\n  schedule: '* * * * *'\n  jobTemplate:" + VOLCANO_JOB.replace("\n", "\n    "),
        ),
        ("{apiVersion: flow.volcano.sh/v1alpha1, kind: JobTemplate", "", VOLCANO_JOB),
    ],
)
def test_what_makes_jobs_of_volcano_is_looked_at(kind: str, below: str, spec: str) -> None:
    """`check` reads all pods of a Volcano CronJob or JobTemplate, with priority classes from the
    same file. It prints complete field paths."""
    head = kind[1:].replace(", ", "\n") + "\nmetadata: {name: n}\n"
    made = (
        "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n"
        "metadata: {name: urgent}\nvalue: 7\n"
    )
    found = report("-f", "-", text=f"{head}{spec}\n{made}")
    (row,) = found["documents"]
    assert (row["refused"], row["pods"], found["skipped"]) == ("", 2, [])
    assert [note["field"] for note in row["notes"]] == [f"{below}spec.tasks[0].topologyPolicy"]
    (row,) = report("-f", "-", text=f"{head}{spec}")["documents"]
    assert row["refused"].startswith(f'{below}spec.priorityClassName: "urgent"')


UNKNOWN = f"""
apiVersion: example.com/v1
kind: Training
metadata: {{name: train}}
spec: {{roles: {{Worker: {{template: {{spec: {{{POD}}}}}}}}}}}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"


def test_each_skipped_document_is_named() -> None:
    """For each skipped document, `check` prints its file, number, line and name, and whether it
    contains pods."""
    found = report("-f", "-", text=f"{SERVICE}---{UNKNOWN}")
    keys = ("source", "document", "line", "name", "holds_pods")
    assert [tuple(each[key] for key in keys) for each in found["skipped"]] == [
        ("standard input", 1, 1, "Service web", False),
        ("standard input", 2, 4, "Training default/train", True),
    ]
    assert found["documents"] == []


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (UNKNOWN, (1, 1)),
        (SERVICE, (1, 1)),
        (f"{SERVICE}---{UNKNOWN}", (1, 1)),
        (f"{SET.partition('---')[0]}---\n{SERVICE}", (0, 1)),
        (f"{SET.partition('---')[0]}---{UNKNOWN}", (0, 1)),
        (SET.partition("---")[0], (0, 0)),
    ],
)
def test_skipped_documents_decide_the_exit_code(text: str, codes: tuple[int, int]) -> None:
    """If `check` accepts no document, it fails. With `--strict` it fails if it skips any
    document."""
    plain, strict = check("-f", "-", text=text), check("-f", "-", "--strict", text=text)
    assert (plain.exit_code, strict.exit_code) == codes


def test_a_template_of_helm_is_called_one(tmp_path: Path) -> None:
    """`check` rejects a Helm template with an error that calls it a Helm template."""
    (tmp_path / "pod.yaml").write_text("{{- if .Values.on }}\nkind: Pod\n{{- end }}\n")
    done = check("-f", tmp_path)
    assert done.exit_code == 1
    assert "Helm" in done.stdout


def test_names_of_the_cluster_by_its_configuration(tmp_path: Path) -> None:
    """Given a cluster's configuration, `check` recognizes the resource names in it."""
    (tmp_path / "cluster.yaml").write_text("nvidia: {resourceCountName: team.io/gpu}")
    pod = (
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: x, "
    )
    text = pod + "resources: {limits: {team.io/gpu: 1}}}]}}"
    assert report("-f", "-", text=text)["documents"][0]["dialect"] == "none"
    found = report("-f", "-", "--config", tmp_path / "cluster.yaml", text=text)
    assert ["nvidia" in ask for ask in found["documents"][0]["asks"]] == [True]


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    """`check` reads no file outside a given folder through a symbolic link."""
    outside, folder = tmp_path / "outside.yaml", tmp_path / "folder"
    outside.write_text(SET)
    folder.mkdir()
    (folder / "link.yaml").symlink_to(outside)
    done = check("-f", folder)
    assert (done.exit_code, "no manifest" in done.output) == (2, True)


def pod_of(name: str, limits: str, spec: str = "") -> str:
    """Return a manifest of a pod whose only container has these limits."""
    container = f"{{name: c, image: x, resources: {{limits: {{{limits}}}}}}}"
    head = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n"
    return f"{head}spec: {{{spec}containers: [{container}]}}\n"


QUEUE_SLIP = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: q}
spec: {capability: {volcano.sh/vgpu-numbr: 1}}
"""
QUOTA_SLIP = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: q}
spec: {hard: {limits.nvidia.com/gpumen: 1}}
"""


def test_what_decides_everything_is_not_called_without_effect() -> None:
    """`check` lists warnings before ignored fields. With `--strict`, warnings make it fail."""
    text = pod_of("a", "nvidia.com/gpus: 1, nvidia.com/gpucores: 150", "os: {name: linux}, ")
    done = check("-f", "-", text=text)
    lines = [line.split("  ")[1] for line in done.stdout.splitlines()[1:-1]]
    assert lines[-3:] == ["warning", "warning", "ignored"]
    assert done.stdout.splitlines()[-1] == "1 accepted, 0 rejected, 2 warnings"
    notes = report("-f", "-", text=text)["documents"][0]["notes"]
    assert sorted(note["doubtful"] for note in notes) == [False, True, True]
    assert (done.exit_code, check("-f", "-", "--strict", text=text).exit_code) == (0, 1)


@pytest.mark.parametrize(
    ("text", "is_doubtful"),
    [
        (pod_of("a", "nvidia.com/gpu: 1"), False),
        (pod_of("a", "nvidia.com/gpu: 0"), False),
        (pod_of("a", "nvidia.com/gpu: 1", "os: {name: linux}, "), False),
        (pod_of("a", "nvidia.com/gpu: 0, nvidia.com/gpumem: 3000"), True),
        (pod_of("a", "nvidia.com/gpu: 1", "schedulerNam: x, "), True),
        (pod_of("a", "nvidia.com/gpu: 1", "schedulerName: x, "), True),
        (QUEUE_SLIP, True),
        (QUOTA_SLIP, True),
    ],
)
def test_strict_minds_what_is_doubtful_alone(text: str, is_doubtful: bool) -> None:
    """`check --strict` fails because of warnings, but not because of ignored fields."""
    assert check("-f", "-", "--strict", text=text).exit_code == int(is_doubtful)


def test_no_device_is_said_with_the_amount_that_says_so() -> None:
    """If a pod requests zero GPUs, `check` prints a note with the name of that field."""
    (note,) = report("-f", "-", text=pod_of("a", "nvidia.com/gpu: 0"))["documents"][0]["notes"]
    assert note["field"] == 'spec.containers[0].resources.limits["nvidia.com/gpu"]'
    assert (note["why"][:2], note["doubtful"]) == ("0 ", False)


def test_every_example_is_meant_as_it_is_written() -> None:
    """`check` prints no warning about any manifest in `examples/`."""
    assert check("-f", ROOT / "examples", "--strict").exit_code == 0


def test_what_is_asked_of_the_node_is_said_beside_the_devices(golden: Golden) -> None:
    """Next to the requested devices, `check` lists the requested CPU, memory and other node
    resources."""
    text = pod_of("a", "nvidia.com/gpu: 1, cpu: 500, memory: 16Gi, example.com/nic: 2")
    (row,) = report("-f", "-", text=text)["documents"]
    [said] = row["node"]
    assert said in check("-f", "-", text=text).stdout
    golden({"cpu: 500, memory: 16Gi, example.com/nic: 2": said})
    (row,) = report("-f", "-", text=pod_of("a", "nvidia.com/gpu: 1"))["documents"]
    assert row["node"] == []


def test_documents_are_said_as_they_stand_in_the_file() -> None:
    """`check` reports accepted, skipped and rejected documents in the order of the file."""
    unknown = (
        "apiVersion: example.com/v1\nkind: Training\nmetadata: {name: t}\n"
        "spec: {template: {spec: {containers: [{name: c, image: x}]}}}\n"
    )
    parts = [pod_of("a", ""), unknown, pod_of("b", "nvidia.com/gpu: one"), pod_of("c", "")]
    said = check("-f", "-", text="---\n".join(parts)).stdout.splitlines()
    heads = [line for line in said if line.startswith("standard input:")]
    assert [line.split()[-1] for line in heads] == [
        "default/a", "default/t", "default/b", "default/c"
    ]  # fmt: skip
    lines = [int(line.split(":")[1].split()[0]) for line in heads]
    assert lines == sorted(lines)


LIMITLESS = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: few}
spec: {hard: {cpu: 4, pods: 10}}
"""


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (pod_of("a", "").replace("name: a", "labels: {}"), "metadata.name"),
        (pod_of("a", "") + "kind: Pod\n", "duplicate key"),
        (pod_of("a", "").replace("name: c", "name: C"), "spec.containers[0].name"),
    ],
)
def test_I5_what_kubernetes_refuses(text: str, field: str) -> None:
    """`check` rejects what Kubernetes refuses, and names the field or the key."""
    assert field in report("-f", "-", text=text)["documents"][0]["refused"]


def test_I6_a_quota_without_devices() -> None:
    """`check` rejects a ResourceQuota that limits no devices."""
    (row,) = report("-f", "-", text=LIMITLESS)["documents"]
    assert row["refused"].startswith("spec.hard")
