"""Command-line options of an agent that hands out shares. The command gets them as `Places`."""

import functools
import shlex
from pathlib import Path
from typing import Any

import click

from apportion.agent.places import Places
from apportion.agent.usage.names import NAMES
from apportion.agent.usage.sampling import RECORD_S, SAMPLE_S
from apportion.runtime.service.options import Command, folder, many, seconds, switch, with_options

_OPTIONS = (
    folder("--kubelet", None, "Folder of the kubelet. The agent registers its device plugins "
    "there."),
    switch(
        "--runs",
        "Serve `apportion run`, on a machine without a kubelet.",
    ),
    folder("--cdi", "/var/run/cdi", "Folder for the agent's CDI specifications. The container "
    "runtime must read this folder."),
    folder("--static-cdi", "/etc/cdi", "Second folder in which the agent looks for NVIDIA's CDI "
    "specification."),
    switch(
        "--no-cdi",
        "Do not use CDI, for container runtimes without it (containerd before 1.7).",
    ),
    folder(
        "--state",
        "/var/lib/apportion",
        "Folder for files that containers share with HAMi-core. In a pod, mount it at the path "
        "that it has on the node.",
    ),
    folder(
        "--run", "/run/apportion", "Folder for the pipes of MPS daemons. In a pod, mount it at "
        "the path that it has on the node.",
    ),
    switch(
        "--mps",
        "Offer GPUs in MPS mode (needs --kubelet). Each container on such a GPU can stop the "
        "others.",
        "mps_offered",
    ),
    click.option(
        "--mps-launcher", default="", metavar="COMMAND",
        help="Prefix for the command that starts an MPS daemon. With 'systemd-run --scope', the "
        "daemon keeps running when the agent stops.",
    ),
    click.option(
        "--library", type=click.Path(dir_okay=False, exists=True, path_type=Path),
        help="HAMi-core's libvgpu.so. Without this file, the limits of containers are not "
        "enforced.",
    ),
    folder(
        "--npu-library",
        None,
        "Folder with hami-vnpu-core, which enforces limits on NPUs that are shared in software.",
        exists=True,
    ),
    click.option(
        "--metrics-as", type=click.Choice(NAMES), multiple=True,
        help="Also export usage metrics under the names of this system. Repeatable.",
    ),
    folder("--proc", "/proc", "Path of the node's /proc."),
    seconds(
        "--usage-sample", "sample_s", (0.1, 60), SAMPLE_S,
        "Interval between usage samples.",
    ),
    seconds(
        "--usage-record", "record_s", (1, 86_400), RECORD_S,
        "Interval between usage records in the ledger.",
    ),
    click.option(
        "--driver-limits", type=click.Choice(("auto", "off")), default="auto", show_default=True,
        help="auto: the NVIDIA driver limits memory too, if its version can (R615 and newer).",
    ),
    folder("--cgroups", "/sys/fs/cgroup", "Path of the node's cgroups (version 2), for "
    "--driver-limits."),
    many(
        "--priority-namespace",
        "priority_namespaces",
        "NAMESPACE",
        "Give containers with nvidia.com/priority 0 (high) in this namespace precedence over "
        "containers of all namespaces, instead of only this one. '*': all namespaces. Repeatable.",
    ),
    many(
        "--unheld-namespace",
        "unheld_namespaces",
        "NAMESPACE",
        "Let containers in this namespace turn off HAMi-core with CUDA_DISABLE_CONTROL=true or "
        "GPU_CORE_UTILIZATION_POLICY=disable. '*': all namespaces. Repeatable.",
    ),
    switch("--dra", "Also prepare ResourceClaims (needs --kubelet and Kubernetes 1.34 or newer)."),
)  # fmt: skip


def places_options(command: Command) -> Command:
    """Add these options to a command, which gets `places`, or None if it prepares no shares."""

    def run(**given: Any) -> None:
        if given["kubelet"] and given["runs"]:
            raise click.UsageError("--runs and --kubelet exclude each other; use one of them")
        handed = given.pop("runs") or bool(given["kubelet"])
        fields = {name: given.pop(name) for name in Places.__struct_fields__}
        if fields["dra"] and not fields["kubelet"]:
            raise click.UsageError("--dra requires --kubelet")
        if fields["no_cdi"] and not fields["kubelet"]:
            raise click.UsageError("--no-cdi requires --kubelet")
        if fields["no_cdi"] and fields["dra"]:
            raise click.UsageError("--dra requires CDI; omit --no-cdi")
        fields["mps_launcher"] = tuple(shlex.split(fields["mps_launcher"]))
        fields["driver_limits"] = fields["driver_limits"] == "auto"
        places = Places(**fields) if handed else None
        command(places=places, **given)

    return with_options(functools.update_wrapper(run, command), *_OPTIONS)
