"""`apportion up`: the real system on one machine, with sample pods placed in seconds.

It imports little, because it starts the fork server first; `standalone` does the work."""

import errno
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from apportion.cli.client.connection import (
    DATA_ENV,
    MAX_BYTES_ENV,
    TOKEN_ENV,
    TOKENS_ENV,
    default_data,
    elsewhere,
)
from apportion.cli.exits import Unreachable, Wrong
from apportion.cli.up.fleet import Fleet, Wanted, kept, nodes_file, of_file, of_nodes
from apportion.cli.up.fork_server import ForkServer
from apportion.runtime.process.tls import NATS_TLS, forget_files

GATEWAY_PORT = 8470
NATS_PORT = 4222
FLEET = Path(__file__).parent / "fleet.yaml"
SAMPLES_FLEET = "the samples' fleet"
PORT = click.IntRange(0, 65_535)
_TO_BE_PASSED: Final = 0o711
# the agent's arguments, its fleet, and lines of advice
Machines = tuple[tuple[str, ...], Fleet, tuple[str, ...]]
SERVICES = tuple(
    f"apportion.{name}.main" for name in ("scheduler", "agent", "intake", "binder", "gateway")
)


@click.command(epilog="Example:  apportion up --fleet 8xH100-80GB --nodes 10")
@click.option("--data", "--data-dir", type=click.Path(file_okay=False, path_type=Path),
              metavar="DIR", help=f"Where the ledger is kept.  [{DATA_ENV}]")  # fmt: skip
@click.option("--ephemeral", is_flag=True, help="Keep nothing: a temporary folder instead.")
@click.option("--nats-port", type=PORT, default=NATS_PORT, show_default=True, metavar="PORT",
              help="Of the ledger's server; 0 takes a free one.")  # fmt: skip
@click.option("--port", type=PORT, default=GATEWAY_PORT, show_default=True, metavar="PORT",
              help="Of the gateway; 0 takes a free one.")  # fmt: skip
@click.option("--fleet", "fleet", multiple=True, metavar="SPEC|FILE",
              help="What to simulate: 8xH100-80GB, 4xA100-40GB:mig+2xT4, or a file.  "
              "[default: the fleet of the ledger that is there; of a new one 8 nodes, with H100, "
              "A100, V100, T4, L40S and Ascend310P]")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 20_000), metavar="N",
              help="How many nodes of --fleet SPEC.")  # fmt: skip
@click.option("--gpus", type=click.Choice(["simulated", "local"]), default="simulated",
              show_default=True,
              help="local: this machine's own, instead of --fleet, without samples.")  # fmt: skip
@click.option("--library", type=click.Path(dir_okay=False, exists=True, path_type=Path),
              metavar="FILE", help="With --gpus local: HAMi-core's libvgpu.so, which holds "
              "commands to their shares.")  # fmt: skip
@click.option("--max-bytes", type=click.IntRange(min=-1), envvar=MAX_BYTES_ENV, show_envvar=True,
              help="Most bytes that the ledger may take; -1 is what the disk holds. Without it a "
              "ledger keeps its size.")  # fmt: skip
@click.option("--no-samples", is_flag=True,
              help="Submit no sample pods; a ledger begun so gets none later.")  # fmt: skip
@click.option("--exit-after-samples", is_flag=True, help="End when the samples are decided.")
def command(
    *, data: Path | None, ephemeral: bool, nats_port: int, port: int, fleet: tuple[str, ...],
    nodes: int | None, gpus: str, library: Path | None, no_samples: bool, max_bytes: int | None,
    exit_after_samples: bool,
) -> None:  # fmt: skip
    """Start everything on this machine, place the sample pods, and stay up until Ctrl-C.

    A ledger keeps its fleet: the next `up` on its folder goes on with that, and refuses another.

    The services take their settings from the environment as well, as `apportion gateway --help`
    names them: APPORTION_PRICES=FILE, what an hour of a card costs, for reports of cost
    (`apportion report cost --help` shows such a file); APPORTION_TOKENS=FILE, who may ask the
    gateway, with APPORTION_TOKEN=FILE, a token of it that `up` itself asks with.

    Exit codes: 0 ended as asked; 1 with --exit-after-samples: a sample was refused; 2 wrong usage,
    or a fleet that cannot be: all that is wrong with it is said, and nothing is begun; 3 something
    could not be started."""
    if ephemeral and data:
        raise click.UsageError("give --data or --ephemeral, not both")
    if gpus == "local" and (fleet or nodes or exit_after_samples):
        raise click.UsageError(
            "--gpus local takes neither --fleet nor --nodes, and has no samples: they would hold "
            "the GPUs"
        )
    if gpus != "local" and library:
        raise click.UsageError("--library is for --gpus local")
    if os.environ.get(TOKENS_ENV) and not os.environ.get(TOKEN_ENV):
        raise click.UsageError(
            f"{TOKENS_ENV} gives the gateway a login, and `up` asks it, too: put a token of "
            f"somebody who may read everything into a file, and set {TOKEN_ENV}=FILE"
        )
    kept_in = (data or default_data()).absolute()
    simulated = (
        None if gpus == "local" else _simulated(fleet, nodes, None if ephemeral else kept_in)
    )
    try:
        folder = Path(tempfile.mkdtemp(prefix="apportion-")) if ephemeral else kept_in
        agent, machines, advice = (
            _local(folder, library)
            if simulated is None
            # The agent reads the kept fleet, which does not change while it runs.
            else (("--fleet", str(nodes_file(folder))), simulated, ())
        )
    except OSError as error:
        raise Unreachable(f"cannot start: {error}") from None
    wanted = Wanted(
        data=folder, ephemeral=ephemeral, nats_port=nats_port, port=port, agent=agent,
        fleet=machines, samples=gpus != "local" and not no_samples,
        exit_after_samples=exit_after_samples, max_bytes=max_bytes, advice=advice,
        began_s=time.monotonic(),
    )  # fmt: skip
    forget_files(NATS_TLS)
    fork_server = ForkServer(SERVICES)
    fork_server.start()
    from apportion.cli.up.standalone import stand  # while the fork server imports

    sys.exit(stand(wanted, fork_server))


def _local(data: Path, library: Path | None) -> Machines:
    if not data.exists():
        # Commands of other users find their regions below it; secret files are protected alone.
        data.mkdir(parents=True)
        data.chmod(_TO_BE_PASSED)
    agent = ["--runs", "--state", str(data / "state"), "--run", str(data / "run")]
    advice = [f"  {elsewhere(data)}apportion run --memory 4000 --cores 30 -- python train.py"]
    if library:
        agent += ["--library", str(library.absolute())]
    else:
        advice.append(
            "Nothing holds commands to their shares but themselves: give HAMi-core's libvgpu.so "
            "with --library."
        )
    return tuple(agent), Fleet(f"the GPUs of {socket.gethostname()}"), tuple(advice)


def _check(make: Callable[[Any], object], of: str = "") -> None:
    """Validate the fleet, which the agent builds again. Raises Wrong with all errors."""
    from apportion.runtime.files import fleets  # slow: needs YAML

    try:
        make(fleets)
    except fleets.FleetInvalid as error:
        raise Wrong(f"{of}{error}") from None


def misnamed(node: str) -> str:
    """Return why Kubernetes would refuse the node's name, or an empty string."""
    # slow: needs all readers
    from apportion.core.workloads.document import ManifestError, dns_subdomain, shown

    try:
        dns_subdomain(node, "node")
    except ManifestError as error:
        return f"{shown(error.value)} {error.problem}; {error.fix}"
    return ""


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()  # a long description of devices is no file name
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise Wrong(f"--fleet: {error}") from None


def _simulated(fleet: tuple[str, ...], nodes: int | None, data: Path | None) -> Fleet:
    if not fleet:
        if nodes:
            raise click.UsageError(
                "--nodes says how many of --fleet SPEC: give that too, as in "
                f"--fleet 8xH100-80GB --nodes {nodes}"
            )
        before = kept(data) if data else None
        return before if before and before.text else of_file(FLEET, SAMPLES_FLEET)
    files = [Path(text) for text in fleet if _is_file(text)]
    if files:
        if len(fleet) > 1 or nodes:
            raise click.UsageError("a fleet file stands alone: no other --fleet, no --nodes")
        path = files[0].absolute()
        if data and path.resolve() == nodes_file(data).resolve():
            raise Wrong(
                f"--fleet: {path} is what the ledger in {data} keeps of its fleet; leave --fleet "
                "out to go on with it, and write another fleet into a file of your own"
            )
        _check(lambda fleets: fleets.read_fleet(path, misnamed=misnamed), "--fleet: ")
        return of_file(path, SAMPLES_FLEET if path == FLEET else str(path))
    for spec in fleet:
        if Path(spec).suffix in {".csv", ".yaml", ".yml"}:
            raise Wrong(f"--fleet: there is no file {spec}")
    count = nodes or len(fleet)
    _check(lambda fleets: fleets.numbered_nodes("node-{}", count, fleet, option="--fleet"))
    numbered = ((f"node-{i + 1}", fleet[i % len(fleet)]) for i in range(count))
    return of_nodes(numbered, f"{count} x {' '.join(fleet)}")
