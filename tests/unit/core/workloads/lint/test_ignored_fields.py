"""Tests that the guide and the code list the same manifest fields as ignored."""

from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.pods.unsupported import POD_SPEC
from tests.tidy.tree import ROOT

GUIDE = (ROOT / "docs" / "concepts" / "pods.md").read_text("utf-8")


def test_the_guide_lists_every_field_with_its_reason() -> None:
    """The guide lists every ignored field with the same reason as the code's table of ignored
    fields."""
    rows = (line.strip("| ").split(" | ") for line in GUIDE.splitlines() if line.startswith("| `"))
    listed = {path.strip("`"): why for paths, why in rows for path in paths.split(", ")}
    known = {
        path: why for path, why in ignored_fields.every().items() if "initContainers" not in path
    }
    assert listed == known


def test_nothing_is_harmless_and_refused() -> None:
    """No manifest field is listed both as ignored and as refused."""
    assert not ignored_fields.every().keys() & {row.path for row in POD_SPEC}
