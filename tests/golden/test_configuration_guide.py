"""The configuration guide lists every key with its default and the services that read the key."""

from typing import Any

import msgspec
from msgspec import inspect

from apportion.core.configuration.keys import KEYS
from apportion_schemas import Configuration
from tests.tidy.tree import ROOT

GUIDE = ROOT / "docs/reference/configuration.md"
HEAD = ["| key | meaning | default | read by |", "|---|---|---|---|"]


def default_of(path: str) -> str:
    """Return the default of the key at `path`, as a user would write it in the file."""
    kind: Any = inspect.type_info(Configuration)
    value: Any = None
    for step in path.split("."):
        if isinstance(kind, inspect.VarTupleType):
            kind = kind.item_type
        field = next(f for f in kind.fields if f.encode_name == step.removesuffix("[]"))
        kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
        made = field.default_factory
        value = field.default if made is msgspec.NODEFAULT else made()
    if value is msgspec.NODEFAULT:
        return "required"
    written = msgspec.json.encode(value).decode().strip('"')
    return {"null": "-", "": "-", "[]": "none"}.get(written, f"`{written}`")


def table() -> list[str]:
    """Return the lines of the configuration guide's table of keys, generated from the code."""
    return HEAD + [
        f"| `{key.path}`{f' (or `{key.also}`)' if key.also else ''} | {key.meaning} "
        f"| {default_of(key.path)} | {key.read_by} |"
        for key in KEYS
    ]


def test_the_guide_has_every_key() -> None:
    """The guide's table has a row for every key.

    If rows are missing, the test prints the correct table to copy."""
    lines = GUIDE.read_text().splitlines()
    at = lines.index(HEAD[0]) if HEAD[0] in lines else -1
    assert lines[at : at + len(table())] == table(), "\n".join(table())
