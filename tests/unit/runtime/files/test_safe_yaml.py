"""Tests of how YAML and JSON texts are read, and of the limits that stop hostile texts early."""

import pytest

from apportion.runtime.files import safe_yaml
from apportion.runtime.files.safe_yaml import parse
from tests.support.golden import Golden


def contents(text: str) -> list[object]:
    """Return the content of each document. For an invalid document, return the line and message of
    its error."""
    return [(p.error.line, p.error.problem) if p.error else p.content for p in parse(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1", [{"a": 1}]),
        ("---\na: 1\n---\n# none\n---\nb: 2\n...\n", [{"a": 1}, {"b": 2}]),
        ("a: 1\r\n---\r\nb: 2\r\n", [{"a": 1}, {"b": 2}]),
        ("", []),
        ("# only a comment", []),
        ("a: |\n  ---\n  text\n", [{"a": "---\ntext\n"}]),
        ("day: 2024-01-01", [{"day": "2024-01-01"}]),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}\nd: *x", [{"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 1}}]),
        ("outer: {inner: &n {<<: &b {x: 1}, x: 2}}\nlast: {<<: *n}",
         [{"outer": {"inner": {"x": 2}}, "last": {"x": 2}}]),
        ('{"a": "\\ud83d\\ude00",\t"b": [1.5, null]}', [{"a": "😀", "b": [1.5, None]}]),
        ("{a: 1}", [{"a": 1}]),
    ],
)  # fmt: skip
def test_documents(text: str, wanted: list[object]) -> None:
    """The reader supports document separators, all line ends, block and flow style, dates, merge
    keys and JSON."""
    assert contents(text) == wanted


ALIASES = "a: &x 1\n" + "".join(f"b{i}: *x\n" for i in range(101))
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)


WRONG = [
    ("a: [", 1),
    ("a: 1\nb:\n\t- 2", 3),
    ("a: 1\nb: 2\na: 3", 3),
    ("x:\n  - {a: 1, a: 2}", 2),
    ("on: 1", 1),
    ("1: 1", 1),
    ("? [a]\n: 1", 1),
    ("[" * 101 + "]" * 101, 1),
    ("- " * 200_000, 1),
    ("{" * 100_000, 1),
    (ALIASES, 102),
    (BOMB, 7),
    ("a: &a [*a]", 1),
    ("a: *b", 1),
    ("a: !!python/object:os.system ls", 1),
    ("a: !!bool maybe", 1),
    ("a: !!timestamp x", 1),
    ("a: " + "9" * 5000, 1),
    ("a: \0", 1),
]


def test_refusals(golden: Golden) -> None:
    """Each text that is not valid YAML causes a single error with the number of the line."""
    told = []
    for text, line in WRONG:
        (parsed,) = parse(text)
        assert parsed.error is not None, text[:80]
        assert parsed.error.line == line, str(parsed.error)
        told.append(str(parsed.error))
    golden({"each names its line": "\n".join(told)})


def test_deep_aliases(golden: Golden) -> None:
    """The YAML reader's limit on nesting counts aliases as if they were written out."""
    levels = "a: &l0 [1]\n" + "".join(
        f"b{i}: &l{i + 1} {'[' * 20}*l{i}{']' * 20}\n" for i in range(6)
    )
    (parsed,) = parse(levels)
    assert parsed.error is not None
    assert parsed.error.line == 6
    golden({"123 levels": str(parsed.error)})


def test_aliases_are_counted_over_the_whole_text() -> None:
    """The YAML reader's limit on aliases applies to all documents of a text together."""
    one = "a: &x 1\n" + "".join(f"b{i}: *x\n" for i in range(60))
    first, second = contents(f"{one}---\n{one}")
    assert isinstance(first, dict)
    assert second == (104, "more than 100 aliases")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('{"a": 1,\n "b" 2}', 2, "not JSON"),
        ('{"a": 1, "a": 2}', 1, "duplicate key 'a'"),
        ('{"a": NaN}', 1, "NaN is not a JSON number"),
        ('{"a":' * 101 + "1" + "}" * 101, 1, "nested deeper"),
        ('{"a":' * 5000, 1, "nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", 1, "cannot read a value"),
        ("a: 1", 1, "not JSON"),
    ],
)
def test_json(text: str, line: int, says: str) -> None:
    """In a `.json` file, the reader accepts only valid JSON. It refuses duplicate keys and deep
    nesting."""
    (parsed,) = parse(text, is_json=True)
    assert parsed.error is not None
    assert (parsed.error.line, says in str(parsed.error)) == (line, True), str(parsed.error)


def test_more_documents_or_values_than_a_text_may_have(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The YAML reader refuses a text with too many documents before parsing it. If the text has too
    many values, the reader stops in the middle of parsing."""
    monkeypatch.setattr(safe_yaml, "DOCUMENTS_MAX", 3)
    assert len(list(parse("---\na: 1\n" * 3))) == 3
    (found,) = parse("---\na: 1\n" * 4)
    monkeypatch.setattr(safe_yaml, "TEXT_NODES_MAX", 7)
    first, second, third = parse("---\n- 1\n- 2\n" * 3)
    assert first.error is second.error is None
    golden({"4 documents of 3": str(found.error), "9 values of 7": str(third.error)})


def test_a_key_that_comes_twice_among_many_is_found_at_the_cost_of_reading_them() -> None:
    """The YAML reader finds a duplicate among many keys in no more time than reading the keys
    takes."""
    many = ",".join(f'"k{number}": 1' for number in range(100_000))
    [parsed] = parse(f'{{{many}, "k99999": 2}}', is_json=True)
    assert parsed.error is not None
    assert "duplicate key 'k99999'" in parsed.error.problem
