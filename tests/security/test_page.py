"""docs/reference/security.md names at least one existing test for each attack and each check."""

import msgspec

from tools.security_page import ENOUGH, Rows, absent, page, problems, rows

MARKS = "".join(
    f"<!-- begin {name}: made by tools/security_page.py -->\nold\n<!-- end {name} -->\n"
    for name in ("identities", "attacks", "points")
)


def test_nothing_is_missing() -> None:
    """The security page has a worst case for each role, and a test for each attack and check."""
    assert list(problems(rows())) == []


def test_what_is_missing_is_named() -> None:
    """The check of the security page finds roles without attacks, and attacks without tests.

    It also finds a named test that does not exist."""
    made = rows()
    point = msgspec.structs.replace(made.point[0], tests=("tests/unit/test_gone.py",))
    untried = msgspec.structs.replace(made.attack[0], id=99)
    few = Rows(worst=made.worst[1:], attack=(untried,), point=(point,))
    role, attack, gone, count = problems(few)
    assert " bootstrap, " in role
    assert attack == "attack 99: no tests/security/test_attack_99_*.py"
    assert gone.startswith("point 1: tests/unit/test_gone.py ")
    assert ("1 checklist items" in count, str(ENOUGH) in count) == (True, True)


def test_a_function_is_looked_for_in_its_file() -> None:
    """If the security page names a test that its file does not contain, the check reports it."""
    here = "tests/security/test_page.py"
    assert list(absent([here, f"{here}::test_what_is_missing_is_named", f"{here}::test_no"])) == [
        f"{here}::test_no"
    ]


def test_words_around_the_tables_stay() -> None:
    """Text around the generated tables stays, and a page without table markers is an error."""
    made = page(f"before\n{MARKS}after\n", rows())
    assert made.startswith("before\n")
    assert made.endswith("<!-- end points -->\nafter\n")
    assert "\nold\n" not in made
    assert made == page(made, rows())
