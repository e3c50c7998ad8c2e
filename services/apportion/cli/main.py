"""The root of the command line, with a table of verbs. Each verb is imported only when it runs.

Invariant: importing this module imports no service. `apportion --help` needs only click."""

import importlib
import os
import signal
import sys
from typing import NamedTuple

import click

from apportion.cli.exits import BY_SIGNAL, INTERNAL, INTERRUPTED
from apportion.core.explain.text.printable import escaped
from apportion.runtime.process.cpu_policy import seldom_look_for_cycles


class Verb(NamedTuple):
    """A verb of the command line: the module of its command, and its one-line help."""

    module: str  # below `apportion`
    help: str
    function: str = "command"


SEE = {
    "get": Verb("cli.verbs.see.get", "List pods, nodes, devices, gangs, queues or quotas."),
    "top": Verb("cli.verbs.see.top", "Watch every device and the pods on it."),
    "why": Verb("cli.verbs.see.why", "Explain why a pod is pending or where it is placed."),
    "who": Verb("cli.verbs.see.who", "Show which pods use or used a device or node."),
    "history": Verb("cli.verbs.see.history", "Show all events of a pod, node or device."),
    "diff": Verb("cli.verbs.see.diff", "Show what changed between two times, and the cause."),
    "doctor": Verb("cli.verbs.see.doctor", "Check the installation and suggest fixes."),
    "migrate": Verb("cli.verbs.see.migrate", "Show how far a migration to Apportion has come."),
    "report": Verb("cli.verbs.see.report", "Report allocated, used and idle GPU-hours, and cost."),
    "tail": Verb("cli.verbs.see.tail", "Follow the events of the ledger."),
}
DO = {
    "up": Verb("cli.up.main", "Run everything on this machine, with a simulated fleet."),
    "check": Verb("cli.verbs.predict.check", "Check manifests without a cluster."),
    "plan": Verb("cli.verbs.predict.plan", "Show what would happen, without changing anything."),
    "replay": Verb(
        "cli.verbs.predict.replay", "Replay the past with other queues, policy or fleet."
    ),
    "shadow": Verb("cli.verbs.predict.shadow", "Compare with the decisions of another scheduler."),
    "submit": Verb("cli.verbs.act.submit", "Submit manifests or a trace."),
    "run": Verb("cli.run.main", "Run a command on a share of this machine's GPUs."),
    "delete": Verb("cli.verbs.act.delete", "Delete pods and free their shares."),
    "cordon": Verb("cli.verbs.act.cordon", "Stop new placements on a device or node.", "cordon"),
    "uncordon": Verb("cli.verbs.act.cordon", "Remove a cordon.", "uncordon"),
    "drain": Verb("cli.verbs.act.drain", "Cordon a device or node and move its pods."),
    "defrag": Verb("cli.verbs.act.defrag", "Move pods so that pending pods fit."),
    "resize": Verb("cli.verbs.act.resize", "Resize the shares of a running pod."),
    "policy": Verb("cli.verbs.act.policy", "Show or set the placement policy."),
    "config": Verb("cli.verbs.act.config", "Check, import, apply or show the configuration."),
    "simulate": Verb("cli.verbs.act.simulate", "Simulate failures of devices and nodes."),
    "user": Verb("cli.verbs.setup.user", "Add, list or revoke users of the ledger."),
    "ledger": Verb("cli.verbs.ledger.ledger", "Create, check, archive or trim the ledger."),
    "rebuild": Verb("cli.verbs.ledger.rebuild", "Rebuild a lost ledger from running pods."),
    "receipt": Verb("cli.verbs.ledger.receipt", "Sign the ledger, or prove one decision."),
    "verify": Verb("cli.verbs.ledger.verify", "Verify every event and invariant of the ledger."),
    "completion": Verb("cli.verbs.setup.shell", "Set up shell completion.", "completion"),
    "man": Verb("cli.verbs.setup.shell", "Write manual pages into a folder.", "man"),
    "token": Verb("cli.verbs.setup.token", "Create a token for a gateway without Kubernetes."),
    "version": Verb("cli.verbs.setup.shell", "Show installed versions.", "version"),
    "help": Verb("cli.verbs.setup.help", "Show the help of a verb or topic."),
}
RUN = {
    name: Verb(f"{name}.main", f"Run {text}.")
    for name, text in (
        ("scheduler", "the scheduler, which places pods"),
        ("binder", "the binder, which binds placed pods in Kubernetes"),
        ("watcher", "the watcher, which records Kubernetes changes"),
        ("agent", "the agent of a node, or of simulated nodes"),
        ("intake", "the intake, which checks and appends agents' reports"),
        ("gateway", "the gateway, which serves the API and the console"),
        ("extender", "the extender for kube-scheduler"),
        ("admission", "the admission webhook, which checks pods"),
        ("callout", "the callout, which logs ServiceAccounts in to NATS"),
    )
}
SECTIONS = {"Inspect": SEE, "Act": DO, "Services": RUN}
VERBS = {name: verb for section in SECTIONS.values() for name, verb in section.items()}


class Root(click.Group):
    """The root command group, whose commands are the verbs in the table."""

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
        """Invoke as click does, but escape control characters, which error messages may contain."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = escaped(error.message, keep="\n")  # type: ignore[misc] # not yet shown
            raise
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)
            sys.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but suggest the nearest verbs for a mistyped verb."""
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
    """Share GPUs and NPUs among pods."""


class Plugin(Root):
    """The same commands as a plugin of kubectl, with the options and defaults of kubectl."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command, adapted to kubectl."""
        from apportion.cli.client.kubectl_options import adapt

        command = super().get_command(ctx, cmd_name)
        return None if command is None else adapt(command)


def plugin() -> Plugin:
    """Return the root of `kubectl apportion`, and let its verbs use the kubeconfig's cluster."""
    from apportion.cli.client.kubectl_options import begin, options

    begin()
    return Plugin(
        "apportion", callback=root.callback, params=[*options(), *root.params], help=root.help,
        context_settings=root.context_settings,
        epilog="Example:  kubectl apportion get pods --namespace training",
    )  # fmt: skip


def main() -> None:
    """Run the verb in the arguments; see `exits` for the exit codes."""
    _run(root, "apportion")


def kubectl() -> None:
    """Run the verb in the arguments of `kubectl apportion`."""
    _run(plugin(), "kubectl apportion")


def _run(command: click.Command, name: str) -> None:
    seldom_look_for_cycles()
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # The first process of a container would ignore the signal until the verb handles it.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(BY_SIGNAL + number))
    try:
        command.main(prog_name=name)
    except Exception as error:
        if os.environ.get("APPORTION_TRACEBACK"):
            raise
        click.echo(
            f"internal error: {type(error).__name__}: {escaped(str(error))}\n"
            "please report it with the traceback: run again with APPORTION_TRACEBACK=1",
            err=True,
        )
        sys.exit(INTERNAL)


if __name__ == "__main__":
    main()
