"""Adapt the verbs to `kubectl apportion`: the options of kubectl, and the context's namespace.

Invariant: only --gateway changes the cluster, never a variable that was set for `apportion`."""

import copy
import functools
import os
from collections.abc import Callable
from typing import Any

import click

from apportion.cli.client.connection import CLUSTER, GATEWAY_ENV
from apportion.cli.client.through_cluster import CONTEXT_ENV, SERVICE_ENV, SERVICE_FORM
from apportion.cli.exits import Wrong
from apportion.cli.usage import FILE
from apportion.runtime.kube.kubeconfig import KUBECONFIG_ENV, NO_IMPERSONATION, choose
from apportion.runtime.process.config import ConfigError

NAMESPACE = "apportion.namespace"  # in the context: the value of -n before the verb


def begin() -> None:
    """Let every verb of this process reach the gateway through the cluster of the kubeconfig."""
    os.environ[GATEWAY_ENV] = CLUSTER


def _into(variable: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ARG001 - click's signature
        if value is not None:
            os.environ[variable] = str(value)
        return value

    return keep


def _keep_namespace(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[NAMESPACE] = value


def _refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not context.resilient_parsing:
        raise Wrong(f"{parameter.opts[0]}: {NO_IMPERSONATION}")


# by name: the variable that an option sets
_VARIABLES = {
    "--kubeconfig": KUBECONFIG_ENV, "--context": CONTEXT_ENV, "--gateway-service": SERVICE_ENV,
}  # fmt: skip
_OPTIONS = (
    click.Option(
        ["--kubeconfig"], type=FILE, metavar="FILE", expose_value=False,
        callback=_into(KUBECONFIG_ENV),
        help=f"Kubeconfig of the cluster.  [{KUBECONFIG_ENV}]  [default: ~/.kube/config]",
    ),
    click.Option(
        ["--context"], metavar="NAME", expose_value=False, callback=_into(CONTEXT_ENV),
        help=f"Context in the kubeconfig.  [{CONTEXT_ENV}]  [default: the current context]",
    ),
    click.Option(
        ["--gateway-service"], metavar=SERVICE_FORM, expose_value=False,
        callback=_into(SERVICE_ENV),
        help=f"Service of the gateway.  [{SERVICE_ENV}]  [default: apportion/http:gateway:8470]",
    ),
    *(
        click.Option([name], hidden=True, expose_value=False, callback=_refuse)
        for name in ("--as", "--as-group", "--as-uid")
    ),
)  # fmt: skip


def options() -> list[click.Parameter]:
    """Return the options that `kubectl apportion` also takes before the verb."""
    namespace = click.Option(
        ["-n", "--namespace"], metavar="NAMESPACE", expose_value=False, callback=_keep_namespace,
        help="Namespace of pods.  [default: the context's]",
    )  # fmt: skip
    return [*_OPTIONS, namespace]


def adapt(command: click.Command) -> click.Command:
    """Return a copy of a command and its subcommands, with the options of kubectl.

    Only commands that use a gateway get these options."""
    made = copy.copy(command)
    if isinstance(made, click.Group):
        made.commands = {name: adapt(each) for name, each in made.commands.items()}
    taken = {name for param in made.params for name in param.opts}
    nodes = any(
        isinstance(param, click.Argument) and "NODE" in (param.metavar or "")
        for param in made.params
    )
    if "-n" in taken:  # with an implied namespace, an argument would never name a node
        made.callback = _with_namespace(made.callback, implied="--gateway" in taken and not nodes)
    if "--gateway" not in taken:
        return made
    made.params = [copy.copy(param) for param in made.params]
    for param in made.params:  # those in `_VARIABLES` also set their environment variable
        for name in _VARIABLES.keys() & param.opts:
            param.callback = _into(_VARIABLES[name])
    made.params += (option for option in _OPTIONS if taken.isdisjoint(option.opts))
    return made


def _with_namespace(callback: Any, *, implied: bool) -> Any:
    @functools.wraps(callback)
    def wrapped(**given: Any) -> Any:
        before_verb = click.get_current_context().meta.get(NAMESPACE)
        named = any("/" in name for name in given.get("names") or ())
        if not (given["namespace"] or given.get("all_namespaces")):
            if before_verb:
                given["namespace"] = before_verb
            elif implied and not given["gateway"] and not named:
                try:
                    given["namespace"] = choose(os.environ.get(CONTEXT_ENV) or None).namespace
                except ConfigError as error:
                    raise Wrong(str(error)) from None
        return callback(**given)

    return wrapped
