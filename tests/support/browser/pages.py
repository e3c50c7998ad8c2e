"""Read the list of the console's pages from the console's own table."""

import re
from pathlib import Path

from tests.tidy.tree import ROOT

TABLE = ROOT / "services/apportion/gateway/console/static/js/pages.js"
_ROW = re.compile(r"{\s*path: \"(\w+)\",(?! under:)")


def navigation(table: Path = TABLE) -> tuple[str, ...]:
    """Return the paths of the pages in the console's navigation, in order."""
    return tuple(_ROW.findall(table.read_text()))
