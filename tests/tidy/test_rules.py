"""Every tidy rule reports a planted offence, and accepts correct code."""

import textwrap

import pytest

from tests.tidy import dependencies, prose, purity, sizes, words

CORE = "services/apportion/core/planted.py"
TEST = "tests/unit/test_planted.py"


def function_of(lines: int) -> str:
    """Return the source of a function `f` of that many lines, not counting its docstring."""
    return 'def f():\n    """Says\n    much.\n    """\n' + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(("lines", "offends"), [(60, False), (61, True)])
def test_function_limit(*, lines: int, offends: bool) -> None:
    """A function over the limit is reported; its docstring does not count."""
    assert bool(list(sizes.long_functions(CORE, function_of(lines)))) == offends


def test_method_and_nested_names() -> None:
    """Long methods and nested functions are reported by their qualified name."""
    source = "class A:\n    def f(self):\n        def g():\n            pass\n"
    assert [name for name, *_ in sizes.functions(source)] == ["A.f", "A.f.g"]


@pytest.mark.parametrize(("lines", "offends"), [(300, False), (301, True)])
def test_class_limit(*, lines: int, offends: bool) -> None:
    """A class over the limit is reported. Docstrings inside the class do not count."""
    body = "    x = 1\n" * (lines - 2)
    source = (
        f'class A:\n    """Says\n    much.\n    """\n{body}    def f(self):\n        """More."""\n'
    )
    assert bool(list(sizes.long_classes(CORE, source))) == offends


def test_file_limit() -> None:
    """A file of exactly the limit is accepted, and one with one more line is reported."""
    assert not list(sizes.long_files({"a.py": "x\n" * 800}))
    assert len(list(sizes.long_files({"a.py": "x\n" * 801}))) == 1


@pytest.mark.parametrize(
    "source",
    ["x = 1\n", '"""Stuff."""\n', '"""Holds the events of the ledger"""\n', "# a comment only\n"],
)
def test_module_docstring_of_a_sentence(source: str) -> None:
    """A module docstring is reported if it is missing, one word, or half a sentence."""
    assert list(words.docstrings(CORE, source))
    assert not list(words.docstrings(CORE, '"""Holds the events of the ledger."""\n' + source))


def test_test_docstring() -> None:
    """A test function without a docstring is reported; other functions need none."""
    source = '"""Holds tests of the ledger."""\nasync def test_x():\n    pass\n'
    assert list(words.docstrings(TEST, source))
    assert not list(words.docstrings(CORE, source))


def test_docstring_that_repeats_the_name() -> None:
    """A docstring that only repeats the name is reported; `See Protocol.method.` is accepted."""
    source = (
        '"""Holds events of the ledger."""\nclass Node:\n    def name(self):\n        """{}"""\n'
    )
    assert list(words.docstrings(CORE, source.format("The name.")))
    assert not list(words.docstrings(CORE, source.format("See port.Ledger.")))
    assert not list(words.docstrings(CORE, source.format("`metadata.name`, as Kubernetes has it.")))
    assert not list(words.docstrings(TEST, source.format("The name.")))


@pytest.mark.parametrize(
    "path",
    ["services/apportion/core/utils.py", "tests/support/pod_helpers.py", "services/base/x.py"],
)
def test_vague_name(path: str) -> None:
    """A vague name is reported for a module, as part of a longer name, and for a folder."""
    assert list(words.vague_name(path))


def test_a_name_may_contain_a_vague_word() -> None:
    """A name like `database` is accepted, although it contains the vague word `base`."""
    assert not list(words.vague_name("services/apportion/core/database.py"))


def test_retired_phrases() -> None:
    """A retired phrase is reported in docstrings and comments, and in literals of some services."""
    source = '"""Reads it.\n\nBegins Anew."""\nx = "anew"  # for whoever asks `NOBODY`\n'
    assert [each.line for each in words.retired_phrases(CORE, source)] == [3, 4]
    message = 'x = f"begins anew at {y}"\n'
    assert not list(words.retired_phrases(CORE, message))
    assert list(words.retired_phrases("services/apportion/agent/planted.py", message))
    assert not list(words.retired_phrases("tests/unit/test_x.py", source))


def test_retired_words() -> None:
    """A retired word is reported in a name of the product, but accepted in prose."""
    assert list(words.retired_words(CORE, "class NodeMarket:\n    pass\n"))
    assert list(words.retired_words(CORE, "def census_of() -> None: ...\n"))
    assert not list(words.retired_words(CORE, "# the market\nmarketing = 'census'\n"))
    assert not list(words.retired_words("tests/unit/test_x.py", "census = 1\n"))


def test_unfinished_work() -> None:
    """A comment that marks unfinished work without an issue number is reported."""
    mark = "TO" + "DO"
    assert list(words.open_tasks(CORE, f"# {mark} later\n"))
    assert list(words.open_tasks(CORE, f"# {mark}(me): #5\n"))
    assert not list(words.open_tasks(CORE, f"# {mark} (#5) later\n"))
    assert list(words.open_tasks("CHANGELOG.md", "<" * 7 + " HEAD\n- one\n"))
    assert not list(words.open_tasks("CHANGELOG.md", "=" * 7 + "\n<<< no mark\n"))


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://py" + "pi.org/simple",
        "deb http://deb.debian" + ".org/debian bookworm main",
        "FROM ghcr" + ".io/somebody/thing",
        "open('/wo" + "rk/main/x')",
        "cd /ro" + "ot/.cache",
        "cp x /ho" + "me/ann/",
    ],
)
def test_words_of_one_machine(line: str) -> None:
    """Package registries, mirrors and local folders in a file are reported."""
    assert list(words.machine_words("deploy/x", line))


@pytest.mark.parametrize(
    "line",
    [
        "docker.com/vcuda-core: 10",
        "https://github.com/apportion/work/root",
        "read_only: true  # root filesystem",
        "the network and the root of the tree",
    ],
)
def test_words_of_everyone(line: str) -> None:
    """The check for one machine's paths and hosts accepts Kubernetes resource names and links."""
    assert not list(words.machine_words("deploy/x", line))


@pytest.mark.parametrize(
    "statement",
    [
        "hash('a')",
        "id(x)",
        "open('f')",
        "print('x')",
        "[x for x in {1, 2}]",
        "for x in set(names):\n    pass",
    ],
)
def test_impure_core(statement: str) -> None:
    """An impure call is reported in core, but accepted in a service."""
    assert list(purity.impure(CORE, statement))
    assert not list(purity.impure("services/apportion/cli/planted.py", statement))


def test_pure_core() -> None:
    """Loops over sorted sets and membership tests are accepted in core."""
    assert not list(purity.impure(CORE, "[x for x in sorted({1, 2})]\n1 in {1, 2}\n"))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)",
        "from time import sleep as nap\nnap(delay)",
    ],
)
def test_sleep_in_a_test(source: str) -> None:
    """A sleep in a test is reported however it is imported; services and the polling module may
    sleep."""
    assert list(purity.sleeps(TEST, source))
    assert not list(purity.sleeps("services/apportion/agent/planted.py", source))
    assert not list(purity.sleeps(purity.POLLING, source))


def test_yielding_is_no_sleep() -> None:
    """`asyncio.sleep(0)` is accepted: it only yields to other tasks."""
    source = textwrap.dedent("""
        import asyncio
        async def f():
            await asyncio.sleep(0)
    """)
    assert not list(purity.sleeps(TEST, source))


@pytest.mark.parametrize(
    ("declared", "offenders"),
    [
        (["PyYAML>=6", "numpy", "a_binary"], []),
        (["PyYAML>=6"], [CORE]),
        (["PyYAML>=6", "numpy", "rich>=1"], ["pyproject.toml"]),
    ],
)
def test_dependency_mismatches(declared: list[str], offenders: list[str]) -> None:
    """An undeclared import and an unused declaration are reported."""
    source = "import os\nimport yaml.nodes\nfrom numpy import array\nfrom . import x\n"
    offences = dependencies.mismatches(
        {CORE: source}, declared, providers={"yaml": ["PyYAML"]}, not_imported=["a-binary"]
    )
    assert [offence.path for offence in offences] == offenders


@pytest.mark.parametrize(
    "line",
    [
        'why.sentence.partition(": ")[2]',
        'pod.cause.startswith("can never fit")',
        '"held by" in row.unblocked_by',
        're.sub("is", "was", why.sentence)',
        "NAMED.findall(answer.text)",
        'str(error).startswith("there never was")',
        'words.cure(code).replace("NODE", node)',
        'refusal_words(explained).endswith("lost")',
    ],
)
def test_code_that_reads_a_sentence(line: str) -> None:
    """Code that parses a sentence of an answer is reported."""
    assert list(prose.reads(CORE, line))


@pytest.mark.parametrize(
    "line",
    [
        'name.partition("/")', "why.sentence", "path.read_text().split()", "node in why.unbelieved",
        'check.words.split("\\n")', "words.cure(code, node=node)",
    ],
)  # fmt: skip
def test_code_that_reads_a_name_or_shows_a_sentence(line: str) -> None:
    """Code that parses a name or shows a sentence is accepted."""
    assert not list(prose.reads(CORE, line))
