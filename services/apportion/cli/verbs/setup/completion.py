"""The Tab key: verbs, options, and the names of pods, nodes and devices that there are.

Names come from the gateway, in one question that waits for a second at most. Invariant: whatever
goes wrong, the shell gets no names and no error.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from apportion.cli.client.connection import JSON
from apportion.cli.render.output import print_json

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_APPORTION_COMPLETE"


@click.command(epilog='Example:  eval "$(apportion completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
@JSON
@click.pass_context
def command(ctx: click.Context, *, shell: str, as_json: bool) -> None:
    """Print what teaches a shell to complete verbs, options and names; put it into its start file.

    bash: eval "$(apportion completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc;
    fish: apportion completion fish > ~/.config/fish/completions/apportion.fish.

    Exit codes: 0 printed; 2 no such shell.
    """
    made = get_completion_class(shell)
    if made is None:  # pragma: no cover - click knows all of SHELLS
        raise click.UsageError(f"no completion for {shell}")
    source = made(ctx.find_root().command, {}, "apportion", VARIABLE).source()
    if as_json:
        print_json({"shell": shell, "source": source})
    else:
        click.echo(source)
