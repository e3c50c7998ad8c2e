"""`apportion check`: real files, without a cluster or a ledger."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from apportion.cli.check import command
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
    """The verb, with these words behind it."""
    return CliRunner().invoke(command, [str(each) for each in arguments], input=text)


def report(*arguments: object, text: str = "") -> Any:
    """What it prints for machines."""
    return json.loads(check(*arguments, "--json", text=text).stdout)


def test_every_example_would_be_taken() -> None:
    """As `submit` takes them; also what lies in folders below."""
    done = check("-f", ROOT / "examples")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith("taken, 0 refused")
    assert "cambricon-mlu.yaml" in done.stdout


def test_what_a_controller_would_make_is_looked_at(tmp_path: Path) -> None:
    """Dialect, asks, and what has no effect; what is none of ours is named."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "set.yaml").write_text(SET)
    found = report("-f", tmp_path)
    (row,) = found["documents"]
    assert (row["name"], row["pods"], row["dialect"]) == ("StatefulSet team/web", 1, "hami")
    assert row["asks"] == ["main: 1 x nvidia 3,000 MiB"]
    assert [note["field"] for note in row["notes"]] == [
        "spec.template.spec.os",
        'spec.template.metadata.annotations["volcano.sh/revocable-zone"]',
    ]
    assert found["passed_over"] == ["Service web"]


def test_what_would_be_refused_has_its_place_and_its_fix(tmp_path: Path) -> None:
    """And the exit code that ends a pipeline; the others go on."""
    (tmp_path / "a.yaml").write_text(CLAIM)
    (tmp_path / "b.yaml").write_text(SET)
    done = check("-f", tmp_path / "a.yaml", "-f", tmp_path / "b.yaml")
    assert done.exit_code == 1
    assert f"{tmp_path}/a.yaml:10  CronJob default/nightly" in done.stdout
    field = "spec.jobTemplate.spec.template.spec.resourceClaims"
    assert f"refused  {field}" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["passed over: Service web", "1 taken, 1 refused"]


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("", "spec.jobTemplate.spec.template"),
        ("{spec: {containers: []}}", "spec.jobTemplate.spec.template.spec.containers"),
    ],
)
def test_a_template_that_is_none(template: str, field: str) -> None:
    """By the path in the document that was written."""
    head = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: n}, spec: "
    text = f"{head}{{jobTemplate: {{spec: {{template: {template}}}}}}}}}"
    (row,) = report("-f", "-", text=text)["documents"]
    assert row["refused"].startswith(f"{field}:")


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
    """All pods of the job, by the class of the same file, and its fields by their whole path."""
    head = kind[1:].replace(", ", "\n") + "\nmetadata: {name: n}\n"
    made = (
        "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n"
        "metadata: {name: urgent}\nvalue: 7\n"
    )
    found = report("-f", "-", text=f"{head}{spec}\n{made}")
    (row,) = found["documents"]
    assert (row["refused"], row["pods"], found["passed_over"]) == ("", 2, [])
    assert [note["field"] for note in row["notes"]] == [f"{below}spec.tasks[0].topologyPolicy"]
    (row,) = report("-f", "-", text=f"{head}{spec}")["documents"]
    assert row["refused"].startswith(f"{below}spec.priorityClassName: 'urgent'")


def test_a_kind_that_is_not_known_is_named() -> None:
    """It holds pods, and nobody here knows which: it is not passed over."""
    text = f"""
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {{name: train}}
spec: {{tfReplicaSpecs: {{Worker: {{template: {{spec: {{{POD}}}}}}}}}}}
"""
    found = report("-f", "-", text=text)
    assert [row["name"] for row in found["unknown"]] == ["TFJob default/train"]
    assert (found["documents"], found["passed_over"]) == ([], [])
    done = check("-f", "-", text=text)
    assert done.exit_code == 0
    assert "TFJob default/train" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 taken, 0 refused, 1 not looked at"


def test_a_template_of_helm_is_called_one(tmp_path: Path) -> None:
    """It is no manifest before it is rendered."""
    (tmp_path / "pod.yaml").write_text("{{- if .Values.on }}\nkind: Pod\n{{- end }}\n")
    done = check("-f", tmp_path)
    assert done.exit_code == 1
    assert "is a template of Helm" in done.stdout


def test_names_of_the_cluster_by_its_configuration(tmp_path: Path) -> None:
    """Without it a renamed resource is one that some node may offer."""
    (tmp_path / "cluster.yaml").write_text("nvidia: {resourceCountName: team.io/gpu}")
    pod = (
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: x, "
    )
    text = pod + "resources: {limits: {team.io/gpu: 1}}}]}}"
    assert report("-f", "-", text=text)["documents"][0]["dialect"] == "none"
    found = report("-f", "-", "--config", tmp_path / "cluster.yaml", text=text)
    assert found["documents"][0]["asks"] == ["c: 1 x nvidia whole"]


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    """What a folder holds is in it: a repository may be anybody's."""
    outside, folder = tmp_path / "outside.yaml", tmp_path / "folder"
    outside.write_text(SET)
    folder.mkdir()
    (folder / "link.yaml").symlink_to(outside)
    done = check("-f", folder)
    assert (done.exit_code, "no manifest" in done.output) == (2, True)
