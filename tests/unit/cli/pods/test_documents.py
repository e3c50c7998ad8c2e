"""Tests that `check` and `submit` judge every document of a manifest file alike."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from apportion.cli.pods import manifest_files as reading
from apportion.cli.verbs.predict import check
from apportion.core.answers.plans import PlanRequest
from apportion.core.ledger.state import State
from apportion.core.workloads.reading import found_as, passed_over_words
from apportion.lab.planning import plan_of
from tests.support.golden import Golden

POD = """
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: main, image: x}]}
"""
SERVICE = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: lab}}"
CLASS = "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: c}, value: 7}"
QUOTA = "{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {HARD: 1}}}"
GPUS = QUOTA.replace("HARD", "requests.nvidia.com/gpu")
PODS = QUOTA.replace("HARD", "pods")
LIST = "{apiVersion: v1, kind: List, items: [ITEM]}"
NOTHING = "contains no workload, queue or quota; use Pod, Job, Deployment"
ALONE = "a PriorityClass applies only to pods in the same command"


@pytest.mark.parametrize(
    ("beside", "passed_over", "refused"),
    [
        (SERVICE, ["Service lab/web"], ""),
        (LIST.replace("ITEM", SERVICE), ["Service lab/web"], ""),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {}}", ["ConfigMap"], ""),
        ("{replicas: 3, image: {tag: x}}", ["a document without a kind in FILE:6"], ""),
        (CLASS, [], ""),
        (
            CLASS.replace("7", "abc"),
            [],
            'value: "abc" is not a valid priority; write a whole number',
        ),
        (CLASS.replace("7", "2000000000"), [], "value: 2000000000 is not a valid priority"),
        (LIST.replace("ITEM", CLASS.replace(", value: 7", "")), [], "items[0].value "),
        (CLASS.replace("{name: c}", "{}"), [], "metadata.name "),
        (
            CLASS.replace("7", "2000000000").replace("name: c", "name: system-own"),
            ["PriorityClass system-own"],
            "",
        ),
        (GPUS, [], ""),
        (LIST.replace("ITEM", GPUS), [], ""),
        (PODS, [], "spec.hard "),
        (LIST.replace("ITEM", PODS), [], "items[0].spec.hard "),
        ("{apiVersion: scheduling.volcano.sh/v1, kind: Queue}", [], "kind:"),
        ("{apiVersion: batch/v2, kind: Job}", [], "kind:"),
        ("{kind: Service}", [], "apiVersion "),
        ("{apiVersion: v1, kind: List, items: 7}", [], "items:"),
        (LIST.replace("ITEM", "{apiVersion: v1, kind: List}"), [], "items[0].kind:"),
    ],
)
def test_both_verbs_take_pass_over_and_refuse_the_same(
    beside: str, passed_over: list[str], refused: str, tmp_path: Path
) -> None:
    """`check` and `submit` accept, skip and refuse the same documents. A valid pod in the same file
    is always accepted."""
    file = tmp_path / "all.yaml"
    file.write_text(f"{POD}---\n{beside}\n")
    passed_over = [name.replace("FILE", str(file)) for name in passed_over]
    wish, problems = reading.read_manifests([str(file)])
    said = json.loads(CliRunner().invoke(check.command, ["-f", str(file), "--json"]).stdout)
    assert [pod.name for pod in wish.pods] == ["a"]
    skipped = [found_as(it["name"], f"{it['source']}:{it['line']}") for it in said["skipped"]]
    assert wish.passed_over == skipped == passed_over
    rows = [row["refused"] for row in said["documents"] if row["refused"]]
    assert [problem.message for problem in problems] == rows
    assert [text.startswith(refused) for text in rows] == [True] * bool(refused)


def test_both_verbs_tell_of_a_slip_in_a_limit(tmp_path: Path) -> None:
    """`check` and `submit` print the same warning about a probable typo in a quota."""
    file = tmp_path / "quota.yaml"
    file.write_text(GPUS.replace("gpu:", "gpuu:"))
    wish, _ = reading.read_manifests([str(file)])
    said = json.loads(CliRunner().invoke(check.command, ["-f", str(file), "--json"]).stdout)
    (note,) = said["documents"][0]["notes"]
    assert note["why"].endswith(" requests.nvidia.com/gpu?")
    assert [slip.endswith(f"{note['field']}: {note['why']}") for slip in wish.slips] == [True]


def test_all_verbs_tell_what_has_no_effect(tmp_path: Path) -> None:
    """`check`, `submit` and `plan` accept documents with fields that have no effect, and list the
    same fields."""
    file = tmp_path / "queue.yaml"
    queue = "{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: ml}, "
    queue += "spec: {type: x}}\n---\n"
    noted = POD.replace("{name: a}", "{name: a, annotations: {volcano.sh/qos-level: LS}}")
    file.write_text(queue + noted)
    fields = ["spec.type", 'metadata.annotations["volcano.sh/qos-level"]']
    done = CliRunner().invoke(check.command, ["-f", str(file), "--json"])
    rows = json.loads(done.stdout)["documents"]
    assert [note["field"] for row in rows for note in row["notes"]] == fields
    wish, problems = reading.read_manifests([str(file)])
    assert not problems
    assert [f": {field}: " in slip for field, slip in zip(fields, wish.slips, strict=True)] == [
        True, True,
    ]  # fmt: skip
    planned = plan_of(PlanRequest(files={str(file): file.read_text()}), State())
    assert planned.warnings[:2] == tuple(wish.slips)


def test_a_priority_class_counts_for_the_pods_beside_it(tmp_path: Path) -> None:
    """A PriorityClass applies to all pods of its file, even to pods before it. It cannot redefine a
    system class."""
    file = tmp_path / "pod.yaml"
    own = CLASS.replace("name: c", "name: system-node-critical")
    for name, text in (("c", CLASS), ("system-node-critical", own)):
        file.write_text(
            POD.replace("spec: {", f"spec: {{priorityClassName: {name}, ") + "---\n" + text
        )
        wish, problems = reading.read_manifests([str(file)])
        assert not problems
        assert (wish.pods[0].priority == 7) == (name == "c")


@pytest.mark.parametrize(
    ("text", "why"), [(SERVICE, NOTHING), (CLASS, ALONE), (LIST.replace("ITEM", ""), NOTHING)]
)
def test_files_with_nothing_else_are_wrong(text: str, why: str, tmp_path: Path) -> None:
    """In `check` and `submit` a file with nothing to submit is an error."""
    done = CliRunner().invoke(check.command, ["-f", "-"], input=text)
    assert (done.exit_code, why in done.stdout) == (1, True)
    file = tmp_path / "beside.yaml"
    file.write_text(text)
    _, [problem] = reading.read_manifests([str(file)])
    assert why in problem.message


def test_what_is_doubtful_has_its_own_line(tmp_path: Path) -> None:
    """A warning names the line of its field, even inside a Kubernetes List."""
    file = tmp_path / "list.yaml"
    limits = '"nvidia.com/gpu": 1\n          "nvidia.com/gpumen": 3000'
    resources = f"resources:\n        limits:\n          {limits}"
    spec = f"spec:\n    containers:\n    - name: main\n      {resources}"
    pod = f"- apiVersion: v1\n  kind: Pod\n  metadata: {{name: p}}\n  {spec}"
    file.write_text(f"apiVersion: v1\nkind: List\nitems:\n{pod}\n")
    field = 'items[0].spec.containers[0].resources.limits["nvidia.com/gpumen"]'
    line = file.read_text().splitlines().index('          "nvidia.com/gpumen": 3000') + 1
    wish, _ = reading.read_manifests([str(file)])
    (slip,) = wish.slips
    assert slip.startswith(f"{file}, line {line}: {field}: ")
    done = CliRunner().invoke(check.command, ["-f", str(file)])
    assert f"  warning   line {line}, {field}: " in done.stdout
    said = json.loads(CliRunner().invoke(check.command, ["-f", str(file), "--json"]).stdout)
    (note,) = said["documents"][0]["notes"]
    assert (note["line"], note["field"]) == (line, field)


def test_many_that_are_passed_over_are_one_line(golden: Golden) -> None:
    """If many documents are skipped, the CLI prints the first few names and the number of the
    others on one line."""
    names = [f"Service s{i}" for i in range(10)]
    golden({"ten services": passed_over_words(names)})


def test_all_verbs_tell_of_another_scheduler(tmp_path: Path) -> None:
    """If a pod is for another scheduler, `check`, `submit` and `plan` print the same warning, with
    the line in the manifest."""
    file = tmp_path / "pods.yaml"
    named = POD.replace("name: a}", "name: b}").replace(
        "{containers", "{schedulerName: x, containers"
    )
    file.write_text(f"{POD}---\n{named}")
    wish, _ = reading.read_manifests([str(file)])
    done = CliRunner().invoke(check.command, ["-f", str(file), "--json"])
    plain, other = json.loads(done.stdout)["documents"]
    (note,) = other["notes"]
    assert (done.exit_code, plain["notes"], note["field"]) == (0, [], "spec.schedulerName")
    assert note["why"].startswith("x ")
    planned = plan_of(PlanRequest(files={str(file): file.read_text()}), State())
    (slip,) = wish.slips
    assert slip == f"{file}, line 11: {note['field']}: {note['why']}"
    assert planned.warnings == (slip,)
