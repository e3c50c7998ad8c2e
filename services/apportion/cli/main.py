"""The root of the command line: a table of verbs, each imported only when it runs.

Invariant: no service is imported, and for `apportion --help` nothing heavy but click."""

import importlib
import os
import sys
from typing import NamedTuple

import click

from apportion.cli.exits import INTERNAL, INTERRUPTED
from apportion.core.explain.text.printable import escaped
from apportion.runtime.process.cpu_policy import seldom_look_for_cycles


class Verb(NamedTuple):
    """Where a verb's command is, and its one-line help."""

    module: str  # below `apportion`
    help: str
    function: str = "command"


SEE = {
    "get": Verb("cli.verbs.see.get", "List pods, nodes, devices, gangs, queues or quotas."),
    "top": Verb("cli.verbs.see.top", "Every device and who is on it, live."),
    "why": Verb("cli.verbs.see.why", "Why a pod is where it is, or nowhere."),
    "who": Verb("cli.verbs.see.who", "Who holds or held a device, or what of a node."),
    "history": Verb("cli.verbs.see.history", "The story of a pod, a node or a device."),
    "diff": Verb("cli.verbs.see.diff", "What changed between two moments, and by whom."),
    "doctor": Verb("cli.verbs.see.doctor", "What is wrong, and what to do about it."),
    "report": Verb("cli.verbs.see.report", "Hours granted, used, idle, and their cost."),
    "tail": Verb("cli.verbs.see.tail", "Events as they happen, in words."),
}
DO = {
    "up": Verb("cli.up.main", "Everything on this machine, with a simulated fleet."),
    "check": Verb("cli.verbs.predict.check", "What manifests would mean, without a cluster."),
    "plan": Verb("cli.verbs.predict.plan", "What would happen: nothing is changed."),
    "replay": Verb("cli.verbs.predict.replay", "What would have happened: a past time anew."),
    "shadow": Verb("cli.verbs.predict.shadow", "Where we would have put what others placed."),
    "submit": Verb("cli.verbs.act.submit", "Submit manifests or a trace."),
    "run": Verb("cli.run.main", "A command of this machine, inside of a share."),
    "delete": Verb("cli.verbs.act.delete", "End pods: their shares are free."),
    "cordon": Verb("cli.verbs.act.cordon", "Take a device or node off offer.", "cordon"),
    "uncordon": Verb("cli.verbs.act.cordon", "Put it back on offer.", "uncordon"),
    "drain": Verb("cli.verbs.act.drain", "Cordon, and move what runs there."),
    "resize": Verb("cli.verbs.act.resize", "More or less of its devices for a running pod."),
    "policy": Verb("cli.verbs.act.policy", "How nodes and devices are preferred."),
    "config": Verb("cli.verbs.act.config", "What every service obeys: check, apply, show."),
    "simulate": Verb("cli.verbs.act.simulate", "Let simulated devices fail, or nodes be lost."),
    "user": Verb("cli.verbs.setup.user", "Who may connect: add, list or revoke."),
    "ledger": Verb("cli.verbs.ledger.ledger", "Create, check, archive or trim the ledger."),
    "rebuild": Verb("cli.verbs.ledger.rebuild", "A lost ledger, anew from running pods."),
    "receipt": Verb("cli.verbs.ledger.receipt", "Sign the ledger; prove one decision."),
    "verify": Verb("cli.verbs.ledger.verify", "Check every event and every invariant."),
    "completion": Verb(
        "cli.verbs.setup.shell", "Names by the Tab key, in your shell.", "completion"
    ),
    "man": Verb("cli.verbs.setup.shell", "Manual pages of all verbs, into a folder.", "man"),
    "token": Verb("cli.verbs.setup.token", "A token for a gateway without a cluster."),
    "version": Verb("cli.verbs.setup.shell", "What is installed.", "version"),
}
RUN = {
    name: Verb(f"{name}.main", f"Run {text}.")
    for name, text in (
        ("scheduler", "the scheduler: fold, decide, append"),
        ("binder", "the binder: placements become bindings"),
        ("watcher", "the watcher: Kubernetes becomes events"),
        ("agent", "the agent of one node, or of simulated ones"),
        ("intake", "the intake: agents' reports judged and appended"),
        ("gateway", "the gateway: the read API over HTTP"),
        ("extender", "the extender of kube-schedulers"),
        ("admission", "the admission webhook: pods judged before they are taken"),
        ("callout", "the callout: who a ServiceAccount is on the ledger's server"),
    )
}
SECTIONS = {"See": SEE, "Do": DO, "Run one service": RUN}
VERBS = {name: verb for section in SECTIONS.values() for name, verb in section.items()}


class Root(click.Group):
    """A group whose commands are in the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the verb's module and return its command."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module = importlib.import_module(f"apportion.{verb.module}")
        command: click.Command = getattr(module, verb.function)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """As in click; error messages are escaped, because they may contain foreign text."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = escaped(error.message, keep="\n")  # type: ignore[misc] # not yet shown
            raise
        except KeyboardInterrupt:
            click.echo("\nstopped by Ctrl-C", err=True)
            sys.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, but suggest the nearest verbs for a mistyped one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from apportion.cli.usage import known_elsewhere

            known_elsewhere(args[0])
            raise click.exceptions.NoSuchCommand(args[0], possibilities=VERBS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table by section, without importing the verbs."""
        width = max(map(len, VERBS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), verb.help) for name, verb in section.items()]
                )


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  apportion up     (then, in a second terminal:  apportion get pods)",
)
@click.version_option(package_name="apportion", message="apportion %(version)s")
def root() -> None:
    """Share accelerators among pods. The ledger is the cluster."""


def main() -> None:
    """Run the verb in the arguments; see `exits` for the exit codes."""
    seldom_look_for_cycles()
    try:
        root.main(prog_name="apportion")
    except Exception as error:
        if os.environ.get("APPORTION_TRACEBACK"):
            raise
        click.echo(
            f"internal error: {type(error).__name__}: {escaped(str(error))}\n"
            "set APPORTION_TRACEBACK=1 to see where, and please report it",
            err=True,
        )
        sys.exit(INTERNAL)


if __name__ == "__main__":
    main()
