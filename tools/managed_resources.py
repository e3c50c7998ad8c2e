"""Tells kube-scheduler of every resource that is about devices: `make generate`.

    python -m tools.managed_resources

Its configuration has to name them one by one. They are those of the dialects as nobody renamed
them, so that whoever adds a dialect has no list to keep here.

Invariant: only the list is written; the rest of the file is kept as it stands."""

from pathlib import Path

from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.listing import claimed

FILE = Path(__file__).resolve().parents[1] / "deploy" / "extender" / "kube-scheduler.yaml"
HEAD = "    managedResources:\n"


def told(text: str) -> str:
    """The configuration with the list as it must be; it is the last thing in the file."""
    kept, head, _ = text.partition(HEAD)
    names = sorted(claimed(DialectConfig()))
    lines = (f"      - {{name: {name}, ignoredByScheduler: true}}\n" for name in names)
    return kept + head + "".join(lines)


if __name__ == "__main__":
    FILE.write_text(told(FILE.read_text("utf-8")), "utf-8")
