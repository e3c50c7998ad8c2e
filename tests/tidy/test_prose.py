"""The check finds code that parses sentences written for people, except in exempt modules."""

import pytest

from tests.tidy import prose, tree

PYTHON = "services/apportion/cli/planted.py"
SCRIPT = "services/apportion/gateway/console/static/js/planted.js"
SCRIPTS = {path: text for path, text in tree.text_files().items() if path.endswith(".js")}


@pytest.mark.parametrize(
    "line",
    [
        "x = row.sentence.split(': ')",
        "x = why.cause.partition('; ')[2]",
        "if pod.reason.startswith('it can never'): pass",
        "if ' free' in refused.text: pass",
        "if 'cordon' not in cause.words: pass",
        "x = re.sub('NODE', node, row.cure)",
        "x = PATTERN.search(event.message)",
        "x = limit_words(limit).replace(' free', '')",
        "said = row.sentence\n    x = said.endswith(' recovered')",
        "said = f'{name}: {row.reason}'\n    rest = said\n    x = rest.removeprefix(name)",
        "x = (row.sentence or '').split()",
    ],
)
def test_python_that_reads_a_sentence(line: str) -> None:
    """The check reports Python code that parses a sentence taken from a field, call or variable."""
    source = f'"""Planted."""\n\ndef f():\n    {line}\n'
    assert list(prose.reads(PYTHON, source))
    assert not list(prose.reads("tests/unit/test_planted.py", source))


@pytest.mark.parametrize(
    "line",
    [
        "x = f'{row.sentence}.'",
        "x = '; '.join(row.reason for row in rows)",
        "x = row.sentence == before.sentence",
        "x = name.split('/')",
        "x = re.sub('a', 'b', name)",
    ],
)
def test_python_that_shows_a_sentence(line: str) -> None:
    """The check accepts code that shows, joins or compares sentences, and code that parses a
    name."""
    assert not list(prose.reads(PYTHON, f'"""Planted."""\n\ndef f():\n    {line}\n'))


@pytest.mark.parametrize(
    "line",
    [
        'const at = row.sentence.split(": ");',
        "const isWell = row => /^device .* recovered$/.test(row.sentence);",
        "const found = PATTERN.exec(why.refused?.reason);",
        'this.unknown = /no such path/.test(answer?.error ?? "");',
        'const f = ({ sentence }) => sentence.endsWith(" recovered");',
        "const f = ({ id, words }) => words.split(NAME);",
        "const { sentence: said } = row; const rest = said.replace(own, '');",
        "const said = refused.reason; const at = said\n  .indexOf(node);",
        'if (cause.words.includes("cordon")) return;',
        'const words = (row.sentence ?? "").split("; ");',
    ],
)
def test_script_that_reads_a_sentence(line: str) -> None:
    """The check reports each way to parse a sentence in JavaScript, even across lines."""
    assert list(prose.script_reads(SCRIPT, f"// Planted.\n{line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "const shown = html`${row.sentence}.`;",
        "// the old one was row.sentence.split(': ')",
        'const parts = name.split("/");',
        "const said = sentenceCase(row.sentence);",
        "if (row.sentence === before.sentence) return;",
        "const f = ({ words }) => words.map(shown);",
    ],
)
def test_script_that_shows_a_sentence(line: str) -> None:
    """The check accepts JavaScript that shows, joins or compares sentences."""
    assert not list(prose.script_reads(SCRIPT, f"// Planted.\n{line}\n"))


def test_no_script_reads_a_sentence() -> None:
    """No script of the console parses text that is meant for people. `test_repository` checks the
    same for Python code."""
    found = [o for path, text in SCRIPTS.items() for o in prose.script_reads(path, text)]
    assert not found, "\n".join(map(str, found))


def test_the_exempt_module_only_changes_how_a_text_looks() -> None:
    """The console's module that may parse sentences exports only functions that format text."""
    [path] = prose.TYPOGRAPHY
    text = SCRIPTS[path]
    exported = [line.split()[2] for line in text.splitlines() if line.startswith("export const ")]
    assert sorted(exported) == ["ownTimes", "restOf", "sentence", "sentenceCase", "withCode"]
    assert text.count("export ") == len(exported)
