"""Answer wrong usage with hints, also for users of similar tools.

Invariant: a verb never guesses. Wrong usage fails with an error that says what to write."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from apportion.cli.exits import Wrong
from apportion_schemas.quantities import MEMORY_MIB_MAX

if TYPE_CHECKING:
    from apportion.runtime.files.signing import VerifyingKey

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EVENTS: Final = "use `apportion tail`, or `apportion history NAME` for one pod or node"
_LOGS: Final = "use `apportion tail` for events; container logs stay on their node"
_SUBMIT: Final = "use `apportion submit -f FILE`"
_PODS: Final = "`apportion get pods` lists the pods of every workload"
# words from kubectl that are no verb or list here, and what to use instead
KUBECTL: Final[Mapping[str, str]] = {
    "events": _EVENTS,
    "event": _EVENTS,
    "ev": _EVENTS,
    "logs": _LOGS,
    "describe": "use `apportion why POD` or `apportion history NAME`",
    "explain": "use `apportion why POD`",
    "apply": _SUBMIT,
    "create": _SUBMIT,
} | dict.fromkeys(
    ("deployments", "deployment", "deploy", "jobs", "job", "replicasets", "replicaset", "rs",
     "statefulsets", "statefulset", "sts", "daemonsets", "daemonset", "ds"),
    _PODS,
)  # fmt: skip
SAY_WHY: Final = "--reason is missing; say why, for the audit trail"


# options that --help leaves out, because `apportion help connection` lists them
CONNECTION: Final[set[click.Parameter]] = set()
SEE_CONNECTION: Final = "Connection options: apportion help connection"
_CODES: Final = "Exit codes: "
_NEXT_CODE: Final = re.compile(r";\s+(?=\d)")


class Verb(click.Command):
    """A command whose --help lists exit codes, and leaves out connection options.

    The help of a verb with a DEVICE argument also explains how to name a device."""

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        names = [
            (each.metavar or each.name or "").upper()
            for each in self.params
            if isinstance(each, click.Argument)
        ]
        if any(re.search(r"\bDEVICE\b", name) for name in names):
            from apportion.core.explain.text.names import RULE  # rarely needed and slow

            text, codes = described(self)
            said = "; ".join(f"{code} {meaning}" for code, meaning in codes)
            self.help = f"{text}\n\n{RULE}" + (f"\n\n{_CODES}{said}." if said else "")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the help text without the exit codes."""
        text, _ = described(self)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, the verbs of a group, and the exit codes."""
        with formatter.section("Options"):
            formatter.write_dl(list(options(self, ctx)))
            if CONNECTION.intersection(self.params):
                formatter.write_text(SEE_CONNECTION)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        if codes := described(self)[1]:
            with formatter.section("Exit codes"):
                formatter.write_dl(codes)


class VerbGroup(Verb, click.Group):
    """A group of verbs; its help lists every verb with its short help."""

    command_class = Verb


def described(command: click.Command) -> tuple[str, list[tuple[str, str]]]:
    """Split a verb's help into its text and its exit codes, each code with its meaning."""
    text, found, codes = inspect.cleandoc(command.help or "").rpartition(_CODES)
    if not found:
        return codes, []
    listed = _NEXT_CODE.split(" ".join(codes.split()).removesuffix("."))
    rows = [(code, meaning) for code, _, meaning in (each.partition(" ") for each in listed)]
    return text.strip(), rows


def options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the options that a command's help lists, with their help texts."""
    hidden = CONNECTION if isinstance(command, Verb) else ()
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if isinstance(param, click.Option) and param not in hidden and record is not None:
            yield record


def known_elsewhere(word: str) -> None:
    """If `word` is a kubectl verb, raise UsageError that names our verb for it."""
    if word in KUBECTL:
        raise click.UsageError(f"apportion has no {word!r}; {KUBECTL[word]}")


def hinting(*, argument: str = "", renamed: Mapping[str, str] | None = None) -> type[click.Command]:
    """Return a class of commands that take no arguments, and that suggest a fix if they get some.

    `argument` is the hint for a first argument. `renamed` maps other tools' options to ours."""

    class Hinting(Verb):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            ctx.allow_extra_args = True
            try:
                extra = super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                meant = (renamed or {}).get(error.option_name)
                if meant is None:
                    raise
                said = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
                raise click.NoSuchOption(error.option_name, said, ctx=ctx) from None
            if extra and not ctx.resilient_parsing:
                hint = f"; write {argument.format(extra[0])}" if argument else ""
                ctx.fail(f"Got unexpected extra argument ({extra[0]}){hint}")
            return extra

    return Hinting


class _Mib(click.IntRange):
    """The type of options in MiB. It refuses a quantity such as `3Gi`, and suggests the number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if not (isinstance(value, str) and value[-1:].isalpha()):
                raise
            from apportion.core.workloads.dialects import ManifestError  # rarely needed and slow
            from apportion.core.workloads.dialects.amounts import quantity

            try:
                mib = math.ceil(quantity(value, "") / (1 << 20))
            except ManifestError:
                raise error from None
            if not 1 <= mib <= MEMORY_MIB_MAX:
                raise
            said = f"{value!r} is not a whole number of MiB; write {mib}"
            raise click.BadParameter(said, error.ctx, error.param) from None


MIB: Final = _Mib(1, MEMORY_MIB_MAX)


def read_keys(files: Iterable[Path]) -> list[VerifyingKey]:
    """Read the public keys that verify signatures. Raises Wrong if a key is invalid."""
    from apportion.runtime.files import signing  # with the cryptography, see connection

    try:
        return [signing.read_verifying_key(file) for file in files]
    except (signing.KeyInvalid, OSError) as error:
        raise Wrong(f"--key: {error}") from None


def once(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Return the only value of a `multiple` option; more values are an error (a click callback)."""
    if len(given) > 1:
        raise click.BadParameter(f"given {len(given)} times; give it once")
    return given[0] if given else None


def reasoned(_context: click.Context, _option: click.Parameter, given: str) -> str:
    """Refuse an empty --reason, and explain what a reason is for (a click callback)."""
    if not given.strip():
        raise click.UsageError(SAY_WHY)
    return given
