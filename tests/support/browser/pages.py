"""The console's pages, as its own table names them."""

import re
from pathlib import Path

from tests.tidy.tree import ROOT

TABLE = ROOT / "services/apportion/gateway/console/static/js/pages.js"
_ROW = re.compile(r"{\s*path: \"(\w+)\",(?! under:)")


def navigation(table: Path = TABLE) -> tuple[str, ...]:
    """The paths of the pages that the navigation has, in their order."""
    return tuple(_ROW.findall(table.read_text()))
