"""Tests of escaping untrusted text for one line, and of JSON without terminal control sequences."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.core.explain.text.printable import escaped, escaped_json
from apportion.runtime.files.safe_yaml import parse, written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pod-1 é 日本", "pod-1 é 日本"),
        ("a\nb\t", r"a\nb\t"),
        ("\x1b[2J\x7f", r"\x1b[2J\x7f"),
        ("\x9b\u202e\u2028", r"\x9b\u202e\u2028"),
        ("\ud800\U000e0001", r"\ud800\U000e0001"),
    ],
)
def test_what_is_unprintable_is_named(text: str, shown: str) -> None:
    """Unprintable characters are escaped, and printable characters of any script stay."""
    assert escaped(text) == shown


def test_what_is_kept() -> None:
    """Characters listed in `keep` are not escaped, so a message of several lines keeps its line
    breaks."""
    assert escaped("a\nb\r\n", keep="\n") == "a\nb\\r\n"


@given(st.text())
def test_a_json_document_says_the_same(text: str) -> None:
    """Escaped JSON prints safely on every terminal and decodes to the same text."""
    document = {text: [text]}
    for data in (msgspec.json.encode(document), json.dumps(document, ensure_ascii=False).encode()):
        shown = escaped_json(data).decode()
        assert shown.isprintable()
        assert json.loads(shown) == document


@given(st.text())
def test_a_yaml_document_says_the_same(text: str) -> None:
    """Escaped YAML prints safely and decodes to the same text, except for line ends."""
    shown = written({"name": text})
    assert shown.replace("\n", "").isprintable()
    [parsed] = parse(shown)
    assert parsed.content == {"name": text}
