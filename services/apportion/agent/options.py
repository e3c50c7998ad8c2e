"""Command-line options of an agent that hands out shares; they become its `Places`."""

import functools
import shlex
from pathlib import Path
from typing import Any

import click

from apportion.agent.places import Places
from apportion.agent.usage.names import NAMES
from apportion.agent.usage.sampling import RECORD_S, SAMPLE_S
from apportion.runtime.service.options import Command, folder, many, seconds, switch

_OPTIONS = (
    folder("--kubelet", None, "Hand out shares as device plugins of the kubelet in this folder."),
    switch(
        "--runs",
        "Without a kubelet: hand out shares to the commands that `apportion run` starts.",
    ),
    folder("--cdi", "/var/run/cdi", "Where container runtimes look for CDI specifications."),
    folder("--static-cdi", "/etc/cdi", "Where CDI specifications are that outlive a reboot."),
    switch(
        "--no-cdi",
        "With --kubelet: the container runtime knows no CDI (containerd before 1.7).",
    ),
    folder(
        "--state",
        "/var/lib/apportion",
        "Where containers' regions are kept; the same path as on the node.",
    ),
    folder(
        "--run",
        "/run/apportion",
        "Where MPS daemons have their pipes; the same path as on the node.",
    ),
    switch(
        "--mps",
        "With --kubelet: offer cards in MPS mode. Every container on such a card can stop "
        "the others.",
        "mps_offered",
    ),
    click.option(
        "--mps-launcher",
        default="",
        metavar="WORDS",
        help="Words before the command that starts an MPS daemon, so that it "
        "outlives the agent: 'systemd-run --scope'.",
    ),
    click.option(
        "--library",
        type=click.Path(dir_okay=False, exists=True, path_type=Path),
        help="HAMi-core's libvgpu.so; without it nothing holds containers to shares.",
    ),
    folder(
        "--npu-library",
        None,
        "The folder of hami-vnpu-core, its sister for NPUs that are split softly.",
        exists=True,
    ),
    click.option(
        "--metrics-as",
        type=click.Choice(NAMES),
        multiple=True,
        help="Tell what containers use under the names of this system, too.",
    ),
    folder("--proc", "/proc", "Where the kernel tells of the node's processes."),
    seconds(
        "--usage-sample", "sample_s", (0.1, 60), SAMPLE_S,
        "How often it looks at what containers use.",
    ),
    seconds(
        "--usage-record", "record_s", (1, 86_400), RECORD_S,
        "How often the ledger is told of what they used.",
    ),
    click.option(
        "--driver-limits",
        type=click.Choice(("auto", "off")),
        default="auto",
        show_default=True,
        help="Have the driver, too, hold containers to their memory, where it can (R615).",
    ),
    folder(
        "--cgroups",
        "/sys/fs/cgroup",
        "Where the node's cgroups (version 2) are, for --driver-limits.",
    ),
    many(
        "--priority-namespace",
        "priority_namespaces",
        "NAMESPACE",
        "Let priority 0 of pods in this namespace go before pods of other namespaces, too; "
        "'*' is all namespaces.",
    ),
    many(
        "--unheld-namespace",
        "unheld_namespaces",
        "NAMESPACE",
        "Let containers in this namespace decline HAMi-core (CUDA_DISABLE_CONTROL=true, "
        "GPU_CORE_UTILIZATION_POLICY=disable); '*' is all namespaces.",
    ),
    switch("--dra", "With --kubelet: prepare ResourceClaims as well (Kubernetes 1.34)."),
)  # fmt: skip


def places_options(command: Command) -> Command:
    """Add the options, and pass the command the `places` that they make, or None."""

    def run(**given: Any) -> None:
        if given["kubelet"] and given["runs"]:
            raise click.UsageError("--runs is for a machine without a kubelet: give one of the two")
        handed = given.pop("runs") or bool(given["kubelet"])
        fields = {name: given.pop(name) for name in Places.__struct_fields__}
        if fields["dra"] and not fields["kubelet"]:
            raise click.UsageError("--dra is about what a kubelet asks for: give --kubelet as well")
        if fields["no_cdi"] and not fields["kubelet"]:
            raise click.UsageError("--no-cdi is about a kubelet's runtime: give --kubelet as well")
        if fields["no_cdi"] and fields["dra"]:
            raise click.UsageError("--dra needs a runtime that knows CDI: leave out --no-cdi")
        fields["mps_launcher"] = tuple(shlex.split(fields["mps_launcher"]))
        fields["driver_limits"] = fields["driver_limits"] == "auto"
        places = Places(**fields) if handed else None
        command(places=places, **given)

    wrapped: Command = functools.update_wrapper(run, command)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
