"""The build after this one, in which `PodPlaced` has a new version with one more field.

It is made as CONTRIBUTING tells to add a field, in a copy of the schemas: the module of before goes
to `older` with a lift at its end, the struct gets a field, and the row gets the version; and who
writes a placement fills the field. All else is this checkout. A process that finds the copy first
is of that build. Its fold does not keep the field, so both builds tell a state in the same way.
"""

import inspect
import shutil
from pathlib import Path

import apportion_schemas
from apportion_schemas import PodPlaced

WRITTEN, LIFTED = "written", "lifted"
"""What `zone` says in placements of the next build, and in those that it has lifted."""
LIFT = f'''

def lift(told: dict) -> dict:
    """Nobody told of zones then."""
    return told | {{"zone": "{LIFTED}"}}
'''
FIELD = '    zone: str = ""\n'
ROW = """\
from apportion_schemas.older import pod_placed_1

CATALOGUE = tuple(
    row._replace(older=(Older(pod_placed_1.PodPlaced, pod_placed_1.lift),))
    if row.payload is PodPlaced
    else row
    for row in CATALOGUE
)
"""
WRITER = f"""

from msgspec import structs
from apportion_schemas.placement import PodPlaced

_written = encode


def encode(event):
    if isinstance(event.data, PodPlaced):
        event = structs.replace(event, data=structs.replace(event.data, zone="{WRITTEN}"))
    return _written(event)
"""
_TABLES = "BY_TYPE = {"


def next_build(folder: Path) -> Path:
    """Make it in this folder, and return where Python has to look for it."""
    package = Path(inspect.getfile(apportion_schemas)).parent
    copy = folder / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / Path(inspect.getfile(PodPlaced)).relative_to(package)
    before, fields = module.read_text(), inspect.getsource(PodPlaced)
    (copy / "older" / "pod_placed_1.py").write_text(before + LIFT)
    _replace(module, fields, fields + FIELD)
    _replace(copy / "catalogue.py", _TABLES, f"{ROW}\n{_TABLES}")
    envelope = copy / "envelope.py"
    envelope.write_text(envelope.read_text() + WRITER)
    return folder


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
    path.write_text(text.replace(old, new))
