"""Tests that every verb is documented, and that the CLI imports little before it runs one."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from apportion.cli import main as entry
from apportion.cli.exits import INTERNAL, USAGE
from apportion.cli.main import RUN, VERBS, root
from apportion.core.explain.text.names import RULE
from apportion_schemas import Policy
from tests.support.golden import Golden

WITHOUT_JSON = {"up", "token", "help", *RUN}
"""Services log, `up` and `help` are for people, and `token` writes a row of a file."""


def leaves(name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that can be run: the subcommands of a group, or the verb itself."""
    command = root.get_command(click.Context(root), name)
    assert command is not None
    if isinstance(command, click.Group):
        for part, leaf in command.commands.items():
            yield f"{name} {part}", leaf
    else:
        yield name, command


@pytest.mark.parametrize("name", VERBS)
def test_verb_is_documented(name: str) -> None:
    """Every verb has a help text and an example. Verbs that return data have `--json`."""
    for title, command in leaves(name):
        assert command.help, title
        assert f"apportion {title}" in (command.epilog or ""), title
        options = {option for param in command.params for option in param.opts}
        assert ("--json" in options) == (name not in WITHOUT_JSON), title


@pytest.mark.parametrize("name", VERBS)
def test_verbs_that_take_a_device_say_how_it_may_be_named(name: str) -> None:
    """All verbs that take a device explain its short forms in the same words."""
    for title, command in leaves(name):
        for param in command.params:
            context = click.Context(command)
            if re.search(r"\bDEVICE\b", param.make_metavar(context)):
                said = getattr(param, "help", "") or command.help or ""
                assert RULE in " ".join(said.split()), title


@pytest.mark.parametrize("name", sorted(set(VERBS) - set(RUN)))
def test_exit_codes_are_told(name: str) -> None:
    """The help of every verb lists its exit codes."""
    command = root.get_command(click.Context(root), name)
    assert command is not None
    said = (command.help or "") + "".join(leaf.help or "" for _, leaf in leaves(name))
    assert "Exit codes:" in said


def test_help_lists_every_verb() -> None:
    """The main help lists every verb."""
    shown = CliRunner().invoke(root, ["--help"])
    assert shown.exit_code == 0
    for name, verb in VERBS.items():
        assert f"  {name} " in shown.output
        assert verb.help in shown.output


def test_every_policy_is_told_apart() -> None:
    """The help of `policy set` explains each policy, and the help of `why` refers to it."""
    shown = CliRunner().invoke(root, ["policy", "set", "--help"]).output
    for policy in get_args(Policy):
        assert re.search(rf"^  {policy} +\w", shown, re.MULTILINE), policy
    shown = CliRunner().invoke(root, ["why", "--help"]).output
    assert "policy set --help" in shown


def test_help_imports_nothing_of_weight() -> None:
    """`apportion --help` imports no large package and no verb."""
    code = (
        "import sys; from apportion.cli.main import root; root.main(['--help'], "
        "standalone_mode=False); "
        "print([name for name in ('asyncio', 'rich', 'msgspec', 'nats', 'aiohttp', 'numpy') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip().endswith("[]")


def imported(module: str) -> set[str]:
    """Return the top-level packages that Python has loaded after it has imported `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    return set(done.stdout.split())


def test_up_imports_nothing_of_weight_before_the_fork_server_begins() -> None:
    """`up` imports large packages only after it has started its fork server."""
    heavy = {"aiohttp", "nats", "numpy", "rich", "structlog", "uvloop", "yaml"}
    assert not imported("apportion.cli.up.main") & heavy
    assert {"nats", "rich"} <= imported("apportion.cli.up.standalone")


@pytest.mark.parametrize("name", ["agent", "binder", "gateway", "scheduler"])
def test_a_service_of_up_imports_no_client_of_kubernetes(name: str) -> None:
    """Services that `up` starts import neither a Kubernetes client nor cryptography."""
    assert not imported(f"apportion.{name}.main") & {"kubernetes_asyncio", "cryptography"}


def test_mistyped_verb_is_met_with_the_nearest(golden: Golden) -> None:
    """For a mistyped verb, the CLI suggests the most similar one."""
    shown = CliRunner().invoke(root, ["sumbit"])
    assert shown.exit_code == USAGE
    inner = CliRunner().invoke(root, ["get", "podz"])
    golden({"sumbit": shown.output, "get podz": inner.output})


def test_internal_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An internal error prints one line without a traceback, and the exit code is 70."""

    def fail(**_: object) -> None:
        raise KeyError("x")

    monkeypatch.delenv("APPORTION_TRACEBACK", raising=False)
    monkeypatch.setattr(root, "main", fail)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == INTERNAL
    said = capsys.readouterr().err
    assert "internal error: KeyError" in said
    assert "Traceback" not in said


def test_the_first_process_of_a_container_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 1 ends with SIGTERM also before the verb handles signals. Linux would ignore it."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr(root, "main", lambda **_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            entry.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143


def test_no_verb_imports_the_engine_to_ask_a_question() -> None:
    """Loading a verb does not import numpy, except for verbs that run a service."""
    verbs = {f"apportion.{verb.module}" for name, verb in VERBS.items() if name not in RUN}
    assert "numpy" not in imported(", ".join(sorted(verbs)))
