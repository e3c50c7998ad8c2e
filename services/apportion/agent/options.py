"""The options of an agent on a node with a kubelet, which become its `Places`.

Invariant: a command gets all of them as one value, or none where there is no kubelet.
"""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Any

import click

from apportion.agent.places import Places
from apportion.agent.usage.names import NAMES
from apportion.agent.usage.sampling import RECORD_S, SAMPLE_S
from apportion.runtime.service.options import Command

_OPTIONS = (
    click.option(
        "--kubelet",
        type=click.Path(file_okay=False, path_type=Path),
        help="Hand out shares as device plugins of the kubelet in this folder.",
    ),
    click.option(
        "--cdi",
        type=click.Path(file_okay=False, path_type=Path),
        default="/var/run/cdi",
        show_default=True,
        help="With --kubelet: where container runtimes look for CDI specifications.",
    ),
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        default="/var/lib/apportion",
        show_default=True,
        help="With --kubelet: where containers' regions are kept; the same path as on the node.",
    ),
    click.option(
        "--run",
        type=click.Path(file_okay=False, path_type=Path),
        default="/run/apportion",
        show_default=True,
        help="With --kubelet: where MPS daemons have their pipes; the same path as on the node.",
    ),
    click.option(
        "--mps-launcher",
        default="",
        metavar="WORDS",
        help="With --kubelet: words before the command that starts an MPS daemon, so that it "
        "outlives the agent: 'systemd-run --scope'.",
    ),
    click.option(
        "--library",
        type=click.Path(dir_okay=False, exists=True, path_type=Path),
        help="With --kubelet: HAMi-core's libvgpu.so; without it nothing holds containers to "
        "shares.",
    ),
    click.option(
        "--metrics-as",
        type=click.Choice(NAMES),
        multiple=True,
        help="With --kubelet: tell what containers use under the names of this system, too.",
    ),
    click.option(
        "--proc",
        type=click.Path(file_okay=False, path_type=Path),
        default="/proc",
        show_default=True,
        help="With --kubelet: where the kernel tells of the node's processes.",
    ),
    click.option(
        "--usage-sample",
        "sample_s",
        type=click.FloatRange(0.1, 60),
        default=SAMPLE_S,
        show_default=True,
        metavar="SECONDS",
        help="With --kubelet: how often it looks at what containers use.",
    ),
    click.option(
        "--usage-record",
        "record_s",
        type=click.FloatRange(1, 86_400),
        default=RECORD_S,
        show_default=True,
        metavar="SECONDS",
        help="With --kubelet: how often the ledger is told of what they used.",
    ),
    click.option(
        "--dra",
        is_flag=True,
        help="With --kubelet: prepare ResourceClaims as well (Kubernetes 1.34).",
    ),
)


def kubelet_options(command: Command) -> Command:
    """Add the options, and hand the command the `places` that they make, None without a kubelet."""

    def run(**given: Any) -> None:
        fields = {name: given.pop(name) for name in Places.__struct_fields__}
        if fields["dra"] and not fields["kubelet"]:
            raise click.UsageError("--dra is about what a kubelet asks for: give --kubelet as well")
        fields["mps_launcher"] = tuple(shlex.split(fields["mps_launcher"]))
        places = Places(**fields) if fields["kubelet"] else None
        command(places=places, **given)

    wrapped: Command = functools.update_wrapper(run, command)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
