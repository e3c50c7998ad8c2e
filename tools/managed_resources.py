"""List every device resource in kube-scheduler's configuration: `make generate`.

    python -m tools.managed_resources

kube-scheduler needs each resource by name. The names come from the dialects with their default
configuration, so a new dialect needs no change here.
Invariant: only the list is rewritten; the rest of the file is kept."""

from pathlib import Path

from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.listing import claimed

FILE = Path(__file__).resolve().parents[1] / "deploy" / "extender" / "kube-scheduler.yaml"
HEAD = "    managedResources:\n"


def told(text: str) -> str:
    """Return kube-scheduler's configuration with the current list of device resources in it.

    The list must be at the end of the file."""
    kept, head, _ = text.partition(HEAD)
    names = sorted(claimed(DialectConfig()))
    lines = (f"      - {{name: {name}, ignoredByScheduler: true}}\n" for name in names)
    return kept + head + "".join(lines)


if __name__ == "__main__":
    FILE.write_text(told(FILE.read_text("utf-8")), "utf-8")
