"""`apportion token`: create a token for a gateway without Kubernetes."""

import secrets
from hashlib import sha256

import click

from apportion.cli.usage import Verb

BYTES = 32
MAY = ("cordon", "metrics", "doctor")


@click.command(
    cls=Verb, epilog="Example:  apportion token mei --namespace ml --may cordon >> tokens.toml"
)
@click.argument("name")
@click.option(
    "--namespace", "namespaces", multiple=True, metavar="NAME",
    help="Namespace that the user sees in full; repeat for more.  [default: all]",
)  # fmt: skip
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="Group of the user; repeat for more."
)
@click.option(
    "--may", multiple=True, type=click.Choice(MAY), help="Additional permission; repeat for more."
)
def command(
    *, name: str, namespaces: tuple[str, ...], groups: tuple[str, ...], may: tuple[str, ...]
) -> None:
    """Create a token for user NAME, for `apportion gateway --tokens FILE`.

    Standard output has the entry for that file, with only a hash of the token. Standard error has
    the token itself, which cannot be shown again; give it only to that user.

    Exit codes: 0 created; 2 invalid name."""
    token = secrets.token_urlsafe(BYTES)
    click.echo("[[token]]")
    click.echo(f"name = {_quoted(name)}")
    click.echo(f'sha256 = "{sha256(token.encode()).hexdigest()}"')
    for key, values in (("groups", groups), ("namespaces", namespaces or ("*",)), ("may", may)):
        if values:
            click.echo(f"{key} = [{', '.join(map(_quoted, values))}]")
    click.echo(token, err=True)


def _quoted(text: str) -> str:
    if not text.isprintable() or set(text) & {'"', "\\"} or not text:
        raise click.UsageError(
            f"{text!r} is not a valid name; use printable characters without quotes and backslashes"
        )
    return f'"{text}"'
