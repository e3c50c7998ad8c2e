"""Render deploy/kubernetes from the Helm chart: `make generate`.

    python -m tools.kustomize            write the manifests
    python -m tools.kustomize --check    list the files that would change, write nothing

Each template becomes the file of the same name, rendered with deploy/helm/kustomize.yaml. The
templates in `defrag/`, `dra/`, `extender/`, `monitoring/`, `provisioning/` and `receipts/` are
rendered with that feature enabled. Those in `test/` are for `helm test` only. The chart's NATS
configuration is a copy of the one in services/. Invariant: the output is a function of the tree
alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from click import echo

from tests.support.control_plane import ROOT
from tests.support.helm import CHART, rendered

CONFIGURATION = ROOT / "services/apportion/runtime/jetstream/nats.conf"
CONFIGURED = CHART / "files" / "nats.conf"
VALUES = CHART.parent / "kustomize.yaml"
TARGET = ROOT / "deploy" / "kubernetes"
_source = re.compile(r"^# Source: apportion/templates/(\S+)\n", re.MULTILINE)
_managed = re.compile(r"^ +app\.kubernetes\.io/managed-by: .*\n", re.MULTILINE)
ALONE = {
    "": (),
    "defrag/": ("defrag.enabled",),
    "dra/": ("dra.enabled",),
    "extender/": ("extender.enabled",),
    "monitoring/": ("monitoring.dashboards.enabled", "monitoring.rules.enabled",
                    "monitoring.scrape.enabled"),
    "provisioning/": ("binder.provisioning.enabled",),
    "receipts/": ("receipts.enabled",),
}  # fmt: skip
"""Templates that exist only with certain settings, and therefore have their own folders."""
GENERATED = "# Rendered from deploy/helm/apportion by tools/kustomize.py; do not edit.\n"


def files() -> dict[Path, str]:
    """Return the text of every rendered file, by path."""
    documents: dict[str, list[str]] = {}
    for only, settings in ALONE.items():
        options = [word for name in settings for word in ("--set", f"{name}=true")]
        said = rendered("-f", str(VALUES), *options)
        for document in re.split(r"^---\n", said, flags=re.MULTILINE):
            found = _source.match(document)
            if found and found[1].startswith(only) and not found[1].startswith("test/"):
                text = _managed.sub("", document[found.end() :]).strip()
                documents.setdefault(found[1], []).append(f"{text}\n")
    made = {
        TARGET / name: GENERATED + "---\n".join(parts) for name, parts in sorted(documents.items())
    }
    return made | {CONFIGURED: CONFIGURATION.read_text("utf-8")}


def differing() -> list[Path]:
    """Return the files that are missing from the tree or differ there."""
    made = files()
    return [path for path, text in made.items() if not path.exists() or path.read_text() != text]


def main() -> int:
    """Write the files, or with --check print which differ. Return the exit status."""
    if "--check" in sys.argv[1:]:
        late = differing()
        for path in late:
            echo(f"{path.relative_to(ROOT)}: is out of date; run: make generate")
        return int(bool(late))
    CONFIGURED.write_text(CONFIGURATION.read_text("utf-8"), "utf-8")  # the chart includes this copy
    for path, text in files().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
