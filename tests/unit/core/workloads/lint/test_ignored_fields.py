"""Fields that decide nothing: the guide says the same of them as the table."""

from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.pods.unsupported import POD_SPEC
from tests.tidy.tree import ROOT

GUIDE = (ROOT / "docs" / "guides" / "pods.md").read_text("utf-8")


def test_the_guide_lists_every_field_with_its_reason() -> None:
    """What people read is what the test with the API server goes by."""
    rows = (line.strip("| ").split(" | ") for line in GUIDE.splitlines() if line.startswith("| `"))
    listed = {path.strip("`"): why for paths, why in rows for path in paths.split(", ")}
    known = {
        path: why for path, why in ignored_fields.every().items() if "initContainers" not in path
    }
    assert listed == known


def test_nothing_is_harmless_and_refused() -> None:
    """One of the two tables would be wrong."""
    assert not ignored_fields.every().keys() & {row.path for row in POD_SPEC}
