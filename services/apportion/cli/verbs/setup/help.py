"""`apportion help`: show the help of a verb, or of a topic that concerns many verbs."""

from functools import partial

import click

from apportion.cli.client.connection import BOTH, connection_options
from apportion.cli.usage import VerbGroup


class _Topics(VerbGroup):
    """The group of help topics; it also finds every verb, as in `apportion help get pods`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        root = ctx.find_root()
        topic = super().get_command(ctx, cmd_name)
        if topic is not None or _below(root, cmd_name) is None:
            return topic
        rest = click.Argument(["verbs"], nargs=-1)
        return click.Command(cmd_name, params=[rest], callback=partial(_show, root, cmd_name))


def _below(context: click.Context, name: str) -> click.Command | None:
    group = context.command
    return group.get_command(context, name) if isinstance(group, click.Group) else None


def _show(context: click.Context, name: str, verbs: tuple[str, ...]) -> None:
    for each in (name, *verbs):
        verb = _below(context, each)
        if verb is None:
            raise click.UsageError(f"no verb {each!r} in `{context.command_path}`")
        context = click.Context(verb, info_name=each, parent=context)
    click.echo(context.get_help())


@click.group(cls=_Topics, epilog="Example:  apportion help connection")
def command() -> None:
    """Show the help of a verb, or of a topic.

    Exit codes: 0 shown; 2 no such verb or topic."""


def _connection(**_given: object) -> None:
    """List the options that select the ledger and the gateway.

    Every verb that uses a ledger or a gateway takes these options. Without them, a verb uses the
    `apportion up` that runs on this machine."""
    click.echo(click.get_current_context().get_help())


# A plain command, because a verb would leave these options out.
command.command("connection", cls=click.Command, epilog="Example:  apportion help connection")(
    connection_options(_connection, *BOTH)
)
