"""Answers to wrong usage, as by users of other tools.

Invariant: nothing is guessed and done: wrong usage fails, with what to write instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from apportion.cli.exits import Wrong
from apportion_schemas.quantities import MEMORY_MIB_MAX

if TYPE_CHECKING:
    from apportion.runtime.files.signing import VerifyingKey

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EVENTS: Final = "`apportion tail` shows events, `apportion history NAME` those of one pod or node"
_LOGS: Final = "`apportion tail` shows what happens; what a container prints stays with its node"
_SUBMIT: Final = "`apportion submit -f FILE` takes manifests"
_PODS: Final = "`apportion get pods` lists pods, whoever made them; `apportion why POD` says more"
# words from kubectl that are no verb or list here, and what to use instead
KUBECTL: Final[Mapping[str, str]] = {
    "events": _EVENTS,
    "event": _EVENTS,
    "ev": _EVENTS,
    "logs": _LOGS,
    "describe": "`apportion why POD` says of a pod why, `apportion history NAME` what was",
    "explain": "`apportion why POD` says why a pod is where it is, or nowhere",
    "apply": _SUBMIT,
    "create": _SUBMIT,
} | dict.fromkeys(
    ("deployments", "deployment", "deploy", "jobs", "job", "replicasets", "replicaset", "rs",
     "statefulsets", "statefulset", "sts", "daemonsets", "daemonset", "ds"),
    _PODS,
)  # fmt: skip
SAY_WHY: Final = "give --reason; say why, whoever asks later will want to know"


def known_elsewhere(word: str) -> None:
    """Raises UsageError if `word` is in `KUBECTL`, before similar names are offered."""
    if word in KUBECTL:
        raise click.UsageError(f"there is no {word!r} here; {KUBECTL[word]}")


def hinting(*, argument: str = "", options: Mapping[str, str] | None = None) -> type[click.Command]:
    """Return a command class without arguments that hints at what to write instead.

    `argument` is the hint for a first argument, `options` those for unknown options."""

    class Hinting(click.Command):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            ctx.allow_extra_args = True
            try:
                extra = super().parse_args(ctx, args)
            except click.NoSuchOption as error:
                meant = (options or {}).get(error.option_name)
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
    """A number of MiB; a quantity such as `3Gi` is refused, with its number of MiB."""

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
            said = f"{value!r} is no whole number; it is in MiB: write {mib}"
            raise click.BadParameter(said, error.ctx, error.param) from None


MIB: Final = _Mib(1, MEMORY_MIB_MAX)


def read_keys(files: Iterable[Path]) -> list[VerifyingKey]:
    """Read the public keys that verify signatures. Raises Wrong if one is invalid."""
    from apportion.runtime.files import signing  # with the cryptography, see connection

    try:
        return [signing.read_verifying_key(file) for file in files]
    except (signing.KeyInvalid, OSError) as error:
        raise Wrong(f"--key: {error}") from None


def once(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Callback that takes one value of a `multiple` option, and refuses several."""
    if len(given) > 1:
        raise click.BadParameter(f"given {len(given)} times, and one is shown at a time")
    return given[0] if given else None


def reasoned(_context: click.Context, _option: click.Parameter, given: str) -> str:
    """Callback that requires a reason, and says what it is for."""
    if not given.strip():
        raise click.UsageError(SAY_WHY)
    return given
