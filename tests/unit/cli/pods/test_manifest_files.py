"""Tests of reading manifest files: errors name the invalid document, and valid documents are still
read."""

from pathlib import Path

from apportion.cli.pods.manifest_files import read_manifests, read_trace

POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: "COUNT"}}
"""
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def pod(name: str, count: str = "1") -> str:
    """Return the text of a pod document that requests `count` GPUs."""
    return POD.replace("NAME", name).replace("COUNT", count)


def test_bad_document_hides_no_other(tmp_path: Path) -> None:
    """The error of an invalid document has its number and field. The other documents are read."""
    file = tmp_path / "pods.yaml"
    file.write_text("---".join([pod("a"), pod("b", "many"), pod("c")]))
    wish, [problem] = read_manifests([str(file)])
    assert [pod.name for pod in wish.pods] == ["a", "c"]
    assert (problem.source, problem.document) == (str(file), 2)
    assert "nvidia.com/gpu" in problem.message
    assert '"many"' in problem.message


def test_same_name_twice(tmp_path: Path) -> None:
    """If two pods have the same name, the second one is refused."""
    for file in ("one.yaml", "two.yaml"):
        (tmp_path / file).write_text(pod("a"))
    wish, [problem] = read_manifests([str(tmp_path)])
    assert len(wish.pods) == 1
    assert problem.source.endswith("two.yaml")
    assert "is used twice" in problem.message


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """The error about a missing file names the file. The other files are read."""
    (tmp_path / "a.yaml").write_text(pod("a"))
    wish, [problem] = read_manifests([str(tmp_path / "none.yaml"), str(tmp_path / "a.yaml")])
    assert len(wish.pods) == 1
    assert "cannot read it" in problem.message


def test_trace(tmp_path: Path) -> None:
    """Each row of a CSV trace becomes a pod, up to the requested number."""
    file = tmp_path / "pods.csv"
    file.write_text(HEAD + "a,1000,1024,1,460,\nb,1000,1024,2,1000,\nc,1000,1024,0,0,\n")
    wish, problems = read_trace(file, 2)
    assert not problems
    assert [pod.name for pod in wish.pods] == ["a", "b"]
    assert wish.pods[0].shape.asks[0].cores == 46


def test_trace_with_a_bad_row(tmp_path: Path) -> None:
    """The error about an invalid row of a trace has its line and column. Rows beyond the requested
    number are not read."""
    file = tmp_path / "pods.csv"
    file.write_text(HEAD + "a,1000,1024,1,460,\nb,-5,1024,1,460,\n")
    _, [problem] = read_trace(file, None)
    assert "line 3" in problem.message
    assert "cpu_milli" in problem.message
    assert read_trace(file, 1)[1] == []
