"""Write the sections of docs/reference/security.md: identities, attacks, a reviewer's checklist.

    python -m tools.security_page             write them
    python -m tools.security_page --check     report what differs, write nothing

The text around the sections is written by hand. The permissions of an identity come from the table
in `services/apportion/core/identity`; the rows are in tools/security_page.toml. Invariant: every
role has a row with what an attacker can do with its identity, every attack has tests with its
number in tests/security, and every test that a row names exists."""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from apportion.core.identity.roles import ROLES, Role
from tools.compatibility import facts, wrapped

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tools" / "security_page.toml"
PAGE = ROOT / "docs" / "reference" / "security.md"
ATTACKS = "tests/security/test_attack_{:02}_*.py"
ENOUGH = 34
"""The least number of checklist items that are met. It may only rise; 34 is the goal (#32)."""


class Worst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an attacker with an identity of this role can do, and what it cannot do.

    `<br>` separates the items of a list."""

    role: str
    can: str
    cannot: str


class Attack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attack that once succeeded, and the defense against it.

    Each item of `what` continues the sentence that `who` begins. An item of `stopped` is one fact.
    """

    id: int
    title: str
    who: str
    what: tuple[str, ...]
    stopped: tuple[str, ...]


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item of a reviewer's checklist; each of its `tests` is `path` or `path::function`.

    Each item of `here` and `not_yet` is one fact, as a sentence."""

    id: int
    asks: str
    here: tuple[str, ...]
    state: Literal["met", "partly", "not met"] = "met"
    not_yet: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The worst cases, the attacks and the items of the reviewer's checklist in the TOML file."""

    worst: tuple[Worst, ...]
    attack: tuple[Attack, ...]
    point: tuple[Point, ...]
    label: dict[str, str] = {}
    """Link texts of test functions; without one, the text is the function's name."""


def rows() -> Rows:
    """Read the worst cases, attacks and checklist items from the TOML file."""
    return msgspec.convert(tomllib.loads(ROWS.read_text("utf-8")), Rows)


def problems(table: Rows, roles: Iterable[Role] = ROLES) -> Iterator[str]:
    """Yield a message for each missing row, and for each row whose test does not exist."""
    known = [role.name for role in roles]
    if [each.role for each in table.worst] != known:
        yield f"worst: write one row for each of {', '.join(known)}, in this order"
    for attack in table.attack:
        if not list(ROOT.glob(ATTACKS.format(attack.id))):
            yield f"attack {attack.id}: no {ATTACKS.format(attack.id)}"
    for point in table.point:
        if point.state == "met" and not point.tests:
            yield f"point {point.id}: its state is met, but it names no test"
        yield from (f"point {point.id}: {test} does not exist" for test in absent(point.tests))
    met = sum(point.state == "met" for point in table.point)
    if met < ENOUGH:
        yield f"{met} checklist items are met; at least {ENOUGH} must be"
    named = {test.partition("::")[2] for point in table.point for test in point.tests}
    yield from (f"label: no point names {name}" for name in table.label if name not in named)


def absent(tests: Iterable[str]) -> Iterator[str]:
    """Yield the tests that do not exist."""
    for test in tests:
        path, _, name = test.partition("::")
        file = ROOT / path
        there = file.is_file() and (not name or f"def {name}(" in file.read_text("utf-8"))
        if not there:
            yield test


def page(text: str, table: Rows, roles: Iterable[Role] = ROLES) -> str:
    """Return the text of the page with its generated sections replaced by current ones."""
    made = {
        "identities": _identities(table, roles),
        "attacks": _attacks(table),
        "points": _points(table),
    }
    for name, lines in made.items():
        begin, end = (
            f"<!-- begin {name}: made by tools/security_page.py -->\n",
            f"<!-- end {name} -->",
        )
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{PAGE}: no section {name!r} between its two marks")
        text = before + begin + "\n".join(("", *lines, "", end)) + after
    return text


def _identities(table: Rows, roles: Iterable[Role]) -> Iterator[str]:
    worst = {each.role: each for each in table.worst}
    for role in roles:
        appends = ", ".join(f"`{subject}`" for subject in role.appends) or "nothing"
        most = worst.get(role.name, Worst(role.name, "", ""))
        yield from (f"### {role.name}", "", f"- Purpose: {role.does}", f"- Appends: {appends}", "")
        yield from ("If compromised, it can:", "", *_items(most.can), "")
        yield from ("It cannot:", "", *_items(most.cannot), "")


def _items(text: str) -> Iterator[str]:
    for each in text.split("<br>"):
        yield from wrapped(f"- {each}", "  ")


def _attacks(table: Rows) -> Iterator[str]:
    for at, each in enumerate(table.attack):
        who, what = _sentence(each.who), each.what
        if len(what) > 1:
            who, what = f"{who}:", tuple(fragment.rstrip(".") for fragment in what)
        yield from ("",) * bool(at)
        yield from (f"### Attack {each.id}: {each.title}", "", *facts(who, what), "")
        yield from (*facts("**Defense:**", each.stopped), "")
        yield f"**Test:** `{ATTACKS.format(each.id)}`"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _points(table: Rows) -> Iterator[str]:
    met = sum(point.state == "met" for point in table.point)
    yield f"{met} of {len(table.point)} checklist items are met."
    for each in table.point:
        state = {"met": "**Met:**", "partly": "**Partly met:**"}.get(each.state, "**Not met:**")
        yield from ("", f"### Point {each.id}: {_sentence(each.asks)}", "")
        yield from facts(state, each.here)
        if each.not_yet:
            yield from ("", *facts("**Not yet:**", each.not_yet))
        if each.tests:
            yield from ("", "**Tests:**", "")
            yield from (f"- {_link(test, table.label)}" for test in each.tests)


def _link(test: str, labels: dict[str, str]) -> str:
    path, _, name = test.partition("::")
    if name in labels:
        return f'[{labels[name]}](../../{path} "{name}")'
    if not name:
        says = ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8"))) or path
        first = " ".join(says.partition("\n\n")[0].split())  # it may take two lines
        return f"[{first.rstrip('.').replace('|', '/')}](../../{path})"
    return f"[{re.sub('_+', ' ', name.removeprefix('test_'))}](../../{path})"


def main(arguments: list[str]) -> int:
    """Write or check the page. Return exit status 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say what differs, write nothing")
    options = parser.parse_args(arguments)
    table, text = rows(), PAGE.read_text("utf-8")
    made = page(text, table)
    if not options.check:
        PAGE.write_text(made, "utf-8")
        return 0
    wrong = list(problems(table))
    if made != text:
        wrong.append(f"{PAGE.relative_to(ROOT)}: is out of date; run: make generate")
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
