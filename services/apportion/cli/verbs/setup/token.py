"""`apportion token`: make a token for a gateway without a cluster."""

import secrets
from hashlib import sha256

import click

BYTES = 32
MAY = ("cordon", "metrics", "doctor")


@click.command(epilog="Example:  apportion token mei --namespace ml --may cordon >> tokens.toml")
@click.argument("name")
@click.option(
    "--namespace", "namespaces", multiple=True, metavar="NAME",
    help="Whose pods he sees in full; several times for more.  [all]",
)  # fmt: skip
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group that he is in.")
@click.option("--may", multiple=True, type=click.Choice(MAY), help="What else he may.")
def command(
    *, name: str, namespaces: tuple[str, ...], groups: tuple[str, ...], may: tuple[str, ...]
) -> None:
    """Make a token, for `apportion gateway --tokens FILE`.

    On standard output is its row for the file, which does not hold it; on standard error the token,
    this once: give it to NAME, and nobody else. Exit codes: 0."""
    token = secrets.token_urlsafe(BYTES)
    click.echo("[[token]]")
    click.echo(f"name = {_quoted(name)}")
    click.echo(f'sha256 = "{sha256(token.encode()).hexdigest()}"')
    for key, values in (("groups", groups), ("namespaces", namespaces or ("*",)), ("may", may)):
        if values:
            click.echo(f"{key} = [{', '.join(map(_quoted, values))}]")
    click.echo(token, err=True)


def _quoted(text: str) -> str:
    """Quote a name for TOML; names that need escapes are refused."""
    if not text.isprintable() or set(text) & {'"', "\\"} or not text:
        raise click.UsageError(f"{text!r} cannot be a name")
    return f'"{text}"'
