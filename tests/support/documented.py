"""Extract the commands from README and the documentation.

A ```console block has commands behind `$ `, each followed by its output. A ```sh block has only
commands."""

import re
import shlex
from collections.abc import Iterator
from functools import cache

from tests.tidy.tree import ROOT

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_HERE = re.compile(r"<<-?\s*'?(\w+)'?")
_REDIRECTIONS = {"<", "<<", ">", ">>"}


@cache
def pages() -> tuple[str, ...]:
    """Return README and the pages of the documentation, relative to the repository."""
    found = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ("README.md", *sorted(found))


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(text: str, *kinds: str) -> Iterator[str]:
    """Yield the code blocks of these kinds, such as `console`, without their indentation."""
    for indent, kind, block in _BLOCK.findall(text):
        if kind in kinds:
            yield re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def with_output(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a page's console blocks with the output that the page shows."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a page in order, from console and sh blocks."""
    for block in blocks(text, "console", "sh"):
        console = re.search(r"^\$ ", block, re.MULTILINE) is not None
        lines = iter(block.replace("\\\n", " ").splitlines())
        for line in lines:
            if console and not line.startswith("$ "):
                continue
            command = line.removeprefix("$ ").strip()
            here = _HERE.search(command)
            while here and (more := next(lines, here[1])) != here[1]:
                command += f"\n{more}"
            if command and not command.startswith("#"):
                yield command + (f"\n{here[1]}" if here else "")


def calls(command: str) -> Iterator[list[str]]:
    """Yield each program that a shell command calls, as a list of its name and arguments.

    Variable assignments and redirections are left out."""
    line = re.sub(r" \d>", " >", command.partition("\n")[0])
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    words.whitespace_split, words.commenters = True, "#"
    call: list[str] = []
    before = ""
    for word in [*words, ";"]:
        if set(word) <= set("|&;()"):
            if call:
                yield call
            call = []
        elif not {before, word}.isdisjoint(_REDIRECTIONS):
            pass  # also the file after it
        elif call or not (re.match(r"\w+=", word) or word in {"sudo", "export"}):
            call.append(word)
        before = word
