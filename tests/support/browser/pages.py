"""The console's pages, read from its own table."""

import re
from pathlib import Path

from tests.tidy.tree import ROOT

TABLE = ROOT / "services/apportion/gateway/console/static/js/pages.js"
_ROW = re.compile(r"{\s*path: \"(\w+)\",(?! under:)")


def navigation(table: Path = TABLE) -> tuple[str, ...]:
    """Return the paths of the navigation's pages, in order."""
    return tuple(_ROW.findall(table.read_text()))
