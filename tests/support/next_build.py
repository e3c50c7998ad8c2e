"""Create a later build of Apportion, in which `PodPlaced` has a new version with one more field.

The schemas are changed as CONTRIBUTING's recipe for adding a field describes. Writers of placements
fill the field, and the fold ignores it. All other code is the same as in this checkout. A process
runs the new build if the copy comes first in its module path."""

import inspect
import re
import shutil
from pathlib import Path

import apportion_schemas
from apportion_schemas import CATALOGUE, PodPlaced

WRITTEN, LIFTED = "written", "lifted"
"""Values of `zone` in placements that the next build writes, and in those that it lifts."""
LIFT = f'''

def lift(told: dict) -> dict:
    """Nobody told of zones then."""
    return told | {{"zone": "{LIFTED}"}}
'''
FIELD = '    zone: str = ""\n'
NOW = next(row.version for row in CATALOGUE if row.payload is PodPlaced)
NEXT = NOW + 1
"""The versions of a placement that this build and the next one write."""
_KEPT = f"pod_placed_{NOW}"
IMPORTED = "from apportion_schemas.catalogue import event\n"
OLDER = f"""\
from apportion_schemas.catalogue import Older, event
from apportion_schemas.older import {_KEPT}
"""
ROW = f", older=(Older({_KEPT}.PodPlaced, {_KEPT}.lift),))\n"
WRITER = f"""

from msgspec import structs
from apportion_schemas.placement import PodPlaced

_written = encode


def encode(event):
    if isinstance(event.data, PodPlaced):
        event = structs.replace(event, data=structs.replace(event.data, zone="{WRITTEN}"))
    return _written(event)
"""


def next_build(folder: Path) -> Path:
    """Create a later build of Apportion in `folder`. Return the folder to import it from."""
    package = Path(inspect.getfile(apportion_schemas)).parent
    copy = folder / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / Path(inspect.getfile(PodPlaced)).relative_to(package)
    before, fields = module.read_text(), inspect.getsource(PodPlaced)
    older = copy / "older"
    older.mkdir(exist_ok=True)
    (older / "__init__.py").touch()
    # Old versions are no events themselves, so their declaration is removed.
    kept = re.sub(
        r"^@event\(.*?\)\n(?=class )",
        "",
        before.replace(IMPORTED, ""),
        flags=re.MULTILINE | re.DOTALL,
    )
    (older / f"{_KEPT}.py").write_text(kept + LIFT)
    declared, _, rest = fields.partition(")\n")
    _replace(module, fields, declared + ROW + rest + FIELD)
    _replace(module, IMPORTED, OLDER)
    envelope = copy / "envelope.py"
    envelope.write_text(envelope.read_text() + WRITER)
    return folder


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
    path.write_text(text.replace(old, new))
