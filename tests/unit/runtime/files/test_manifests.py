"""Tests of how manifest files and folders are read, and of the errors about unreadable files."""

import io
from pathlib import Path

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.runtime.files import manifests
from apportion.runtime.files.manifests import Document, Problem, read_manifest_files
from tests.support.golden import Golden
from tests.support.manifests import refused

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\nspec:\n  containers:\n  - name: main\n"


def read(*names: object, stdin: bytes = b"") -> list[Document | Problem]:
    """Return the documents and problems of these files."""
    return list(read_manifest_files([str(name) for name in names], io.BytesIO(stdin)))


def names(found: list[Document | Problem]) -> list[str]:
    """Return the pod name of each document, and the text of each problem."""
    return [
        each.content["metadata"]["name"] if isinstance(each, Document) else str(each)  # type: ignore[index]
        for each in found
    ]


def test_a_folder_is_its_manifests_by_name(tmp_path: Path) -> None:
    """A folder is read as its manifest files, sorted by name. Other files, hidden files and
    subfolders are skipped."""
    for name in ("b.yml", "a.yaml", "c.json", ".d.yaml", "readme.txt"):
        (tmp_path / name).write_text(
            POD.format(name[0]) if name != "c.json" else '{"metadata":{"name":"c"}}'
        )
    (tmp_path / "sub.yaml").mkdir()
    assert names(read(tmp_path)) == ["a", "b", "c"]


def test_standard_input() -> None:
    """The file name `-` stands for standard input."""
    assert names(read("-", stdin=POD.format("piped").encode())) == ["piped"]


def test_every_bad_file_is_named_and_the_rest_is_read(golden: Golden, tmp_path: Path) -> None:
    """Each unreadable file is reported by name. All other files are read."""
    (tmp_path / "bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    (tmp_path / "comment.yaml").write_text("# nothing\n---\n")
    (tmp_path / "good.yaml").write_text("\ufeff" + POD.format("good"))
    (tmp_path / "large.yaml").write_bytes(b"# " + b"x" * (8 << 20))
    (tmp_path / "mixed.yaml").write_text(
        f"# two\n{POD.format('one')}---\na: [1\n---\n{POD.format('three')}"
    )
    found = read(tmp_path, tmp_path / "missing.yaml")
    assert names([each for each in found if isinstance(each, Document)]) == ["good", "one", "three"]
    problems = [each for each in found if isinstance(each, Problem)]
    golden({Path(each.source).name: str(each) for each in problems})


def test_an_empty_folder(golden: Golden, tmp_path: Path) -> None:
    """A folder without manifests is reported as a problem."""
    (problem,) = read(tmp_path)
    assert isinstance(problem, Problem)
    golden({"empty folder": str(problem)})


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ('spec.containers[0].resources.limits["nvidia.com/gpu"]', 12),
        ("spec.containers[0].resources.requests", 10),
        ("spec.containers[1]", 8),
        ("spec.initContainers[0].name", 7),
        ('metadata.annotations["a.b/c"]', 6),
        ("metadata", 4),
        ("document", 3),
    ],
)
def test_line_of_a_field(tmp_path: Path, field: str, line: int) -> None:
    """A problem is reported with the line of the field concerned. If the file does not have that
    field, the line is that of the nearest parent."""
    path = tmp_path / "pods.yaml"
    path.write_text(
        "kind: Other\n---\nkind: Pod\nmetadata:\n  annotations:\n    a.b/c: d\nspec:\n"
        "  containers:\n  - name: main\n    resources:\n      limits:\n        nvidia.com/gpu: x\n"
    )
    document = read(path)[1]
    assert isinstance(document, Document)
    problem = document.problem(ManifestError(field, "x", "is bad", "mend it"))
    assert (problem.document, problem.line) == (2, line)
    assert problem.message.startswith(f"{field}: ")


def test_line_of_a_real_refusal(golden: Golden, tmp_path: Path) -> None:
    """The error about a refused manifest names the file, line and field, and suggests a fix."""
    path = tmp_path / "pod.yaml"
    path.write_text(
        POD.format("p") + "    resources:\n      limits:\n        tencent.com/vcuda-core: 150\n"
    )
    (document,) = read(path)
    assert isinstance(document, Document)
    golden({"vcuda-core: 150": str(document.problem(refused(document.content)))})


def test_of_a_folder_only_what_is_in_it(golden: Golden, tmp_path: Path) -> None:
    """In a folder, a symbolic link is followed only if it leads to a file in the folder, as in a
    mounted ConfigMap.

    A file that is named explicitly is read wherever its link leads."""
    folder, outside = tmp_path / "folder", tmp_path / "outside.yaml"
    (folder / "..data").mkdir(parents=True)
    (folder / "..data" / "a.yaml").write_text(POD.format("inside"))
    outside.write_text(POD.format("outside"))
    (folder / "a.yaml").symlink_to("..data/a.yaml")
    (folder / "b.yaml").symlink_to(outside)
    inside, problem = read(folder)
    assert names([inside]) == ["inside"]
    assert isinstance(problem, Problem)
    golden({"a link to outside.yaml": str(problem)})
    assert names(read(folder / "b.yaml")) == ["outside"]


def test_what_is_beyond_the_limits_of_all_is_not_read(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits on bytes and on documents apply to all files together. The reader reports the
    first file that exceeds a limit."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(POD.format(name))
    one = len(POD.format("a"))
    monkeypatch.setattr(manifests, "ALL_BYTES_MAX", 2 * one)
    *found, many_bytes = read(tmp_path)
    assert names(found) == ["a", "b"]
    assert isinstance(many_bytes, Problem)
    monkeypatch.setattr(manifests, "ALL_BYTES_MAX", 9 * one)
    monkeypatch.setattr(manifests, "ALL_DOCUMENTS_MAX", 0)
    _, many_documents = read(tmp_path)
    assert isinstance(many_documents, Problem)
    golden({
        "too many bytes": str(many_bytes),
        "too many documents": str(many_documents),
    })  # fmt: skip
