"""`apportion up`: run the real system on one machine, with sample pods placed in seconds.

This module imports little, because it starts the fork server first; `standalone` does the work."""

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
from apportion.cli.up.fleet import PRICES_ENV, Fleet, Wanted, kept, nodes_file, of_file, of_nodes
from apportion.cli.up.fork_server import ForkServer
from apportion.cli.usage import Verb
from apportion.runtime.process.tls import NATS_TLS, forget_files

GATEWAY_PORT = 8470
NATS_PORT = 4222
FLEET = Path(__file__).parent / "fleet.yaml"
PRICES = FLEET.with_name("prices.toml")
USE_RECORDED_S = 60.0
SAMPLES_FLEET = "the default fleet"
PORT = click.IntRange(0, 65_535)
_TO_BE_PASSED: Final = 0o711
# the agent's arguments, its fleet, and lines of advice
Machines = tuple[tuple[str, ...], Fleet, tuple[str, ...]]
SERVICES = tuple(
    f"apportion.{name}.main" for name in ("scheduler", "agent", "intake", "binder", "gateway")
)


@click.command(cls=Verb, epilog="Example:  apportion up --fleet 8xH100-80GB --nodes 10")
@click.option("--data", "--data-dir", type=click.Path(file_okay=False, path_type=Path),
              metavar="DIR", help=f"Data folder, with the ledger.  [{DATA_ENV}]")  # fmt: skip
@click.option(
    "--ephemeral", is_flag=True, help="Use a temporary data folder, and delete it at the end."
)
@click.option("--nats-port", type=PORT, default=NATS_PORT, show_default=True, metavar="PORT",
              help="Port of the ledger server; 0 picks a free one.")  # fmt: skip
@click.option("--port", type=PORT, default=GATEWAY_PORT, show_default=True, metavar="PORT",
              help="Port of the gateway; 0 picks a free one.")  # fmt: skip
@click.option("--fleet", "fleet", multiple=True, metavar="SPEC|FILE",
              help="Fleet to simulate: 8xH100-80GB, 4xA100-40GB:mig+2xT4, or a file.  "
              "[default: the fleet of the existing ledger, else 8 nodes with H100, A100, V100, T4, "
              "L40S and Ascend310P]")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 20_000), metavar="N",
              help="Number of nodes to simulate; only with --fleet SPEC.")  # fmt: skip
@click.option("--gpus", type=click.Choice(["simulated", "local"]), default="simulated",
              show_default=True,
              help="local: use the GPUs of this machine, and submit no sample pods.")  # fmt: skip
@click.option("--library", type=click.Path(dir_okay=False, exists=True, path_type=Path),
              metavar="FILE",
              help="HAMi-core's libvgpu.so, to enforce shares; needs --gpus local.")  # fmt: skip
@click.option("--max-bytes", type=click.IntRange(min=-1), envvar=MAX_BYTES_ENV, show_envvar=True,
              metavar="BYTES",
              help="Maximum size of the ledger; -1 is no limit.  [default: unchanged]")  # fmt: skip
@click.option("--no-samples", is_flag=True,
              help="Submit no sample pods, now or in later runs on this ledger.")  # fmt: skip
@click.option(
    "--exit-after-samples", is_flag=True, help="Exit when each sample pod is placed or refused."
)
def command(
    *, data: Path | None, ephemeral: bool, nats_port: int, port: int, fleet: tuple[str, ...],
    nodes: int | None, gpus: str, library: Path | None, no_samples: bool, max_bytes: int | None,
    exit_after_samples: bool,
) -> None:  # fmt: skip
    """Run everything on this machine, submit sample pods, and stay up until Ctrl-C.

    The next `up` with the same data folder uses the same fleet again, and rejects any other fleet.

    You can set options of the services with environment variables, see `apportion gateway --help`.
    APPORTION_PRICES=FILE sets prices for cost reports. APPORTION_TOKENS=FILE enables a login; then
    also set APPORTION_TOKEN=FILE, a file with a token for `up` itself.

    Exit codes: 0 stopped; 1 with --exit-after-samples, a sample was refused; 2 wrong usage, or an
    invalid fleet; 3 something could not be started."""
    if ephemeral and data:
        raise click.UsageError("--data and --ephemeral exclude each other")
    if gpus == "local" and (fleet or nodes or exit_after_samples):
        raise click.UsageError(
            "--gpus local excludes --fleet, --nodes and --exit-after-samples: it uses the GPUs of "
            "this machine, and submits no sample pods"
        )
    if gpus != "local" and library:
        raise click.UsageError("--library requires --gpus local")
    if os.environ.get(TOKENS_ENV) and not os.environ.get(TOKEN_ENV):
        raise click.UsageError(
            f"{TOKENS_ENV} is set, so the gateway requires a token, also from `up`; put a token "
            f"with access to all namespaces into a file, and set {TOKEN_ENV}=FILE"
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
            else (
                ("--fleet", str(nodes_file(folder)), "--simulate-use", f"{USE_RECORDED_S:.0f}"),
                simulated,
                _priced(),
            )
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


def _priced() -> tuple[str, ...]:
    """Use example prices unless the user has set prices, and return a message that says this."""
    if os.environ.get(PRICES_ENV):
        return ()
    os.environ[PRICES_ENV] = str(PRICES)
    return (f"Utilization is simulated, and costs use example prices; set {PRICES_ENV} for yours.",)


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
            "Shares are not enforced; to enforce them, give HAMi-core's libvgpu.so with --library."
        )
    return tuple(agent), Fleet(f"the GPUs of {socket.gethostname()}"), tuple(advice)


def _check(make: Callable[[Any], object], of: str = "") -> None:
    """Validate the fleet before the agent does. Raises Wrong with all errors."""
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
                f"--nodes requires --fleet SPEC, for example: --fleet 8xH100-80GB --nodes {nodes}"
            )
        before = kept(data) if data else None
        return before if before and before.text else of_file(FLEET, SAMPLES_FLEET)
    files = [Path(text) for text in fleet if _is_file(text)]
    if files:
        if len(fleet) > 1 or nodes:
            raise click.UsageError("use --fleet FILE without --nodes and other --fleet options")
        path = files[0].absolute()
        if data and path.resolve() == nodes_file(data).resolve():
            raise Wrong(
                f"--fleet: {path} is the stored fleet of the ledger in {data}; omit --fleet to use "
                "it, or write another fleet into a file of your own"
            )
        _check(lambda fleets: fleets.read_fleet(path, misnamed=misnamed), "--fleet: ")
        return of_file(path, SAMPLES_FLEET if path == FLEET else str(path))
    for spec in fleet:
        if Path(spec).suffix in {".csv", ".yaml", ".yml"}:
            raise Wrong(f"--fleet: no such file: {spec}")
    count = nodes or len(fleet)
    _check(lambda fleets: fleets.numbered_nodes("node-{}", count, fleet, option="--fleet"))
    numbered = ((f"node-{i + 1}", fleet[i % len(fleet)]) for i in range(count))
    return of_nodes(numbered, f"{count} x {' '.join(fleet)}")
