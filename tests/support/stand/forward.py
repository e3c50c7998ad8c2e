"""`kubectl port-forward` for the test cluster, whose container runtime has no streams.

    kubectl [-n NAMESPACE] port-forward service/NAME [LOCAL:]REMOTE

As in kubectl, all connections go to one pod, and the program ends when the pod is gone. The program
connects to the pod's address, so REMOTE must also be the pod's port."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from tests.support.stand.hami_process import administrator
from tests.support.stand.network import passed_on


@click.command()
@click.option("--namespace", "-n", default="default")
@click.option("--address", default="127.0.0.1")
@click.argument("verb", type=click.Choice(["port-forward"]))
@click.argument("target")
@click.argument("ports")
def main(*, namespace: str, address: str, verb: str, target: str, ports: str) -> None:
    """Forward a port of this machine to a Service, until interrupted."""
    api = administrator(Path(os.environ["KUBECONFIG"]))
    name = target.rpartition("/")[2]
    local, _, remote = ports.rpartition(":")
    path = f"/api/v1/namespaces/{namespace}/endpoints/{name}"
    pod = api.request("GET", path)["subsets"][0]["addresses"][0]["ip"]

    async def serve() -> None:
        lost = asyncio.Event()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not await passed_on((pod, int(remote)), reader, writer):
                lost.set()

        await asyncio.start_server(forward, address, int(local or remote))
        click.echo(f"Forwarding from {address}:{local or remote} -> {remote}")
        await lost.wait()

    asyncio.run(serve())
    sys.exit("error: lost connection to pod")


if __name__ == "__main__":
    main(sys.argv[1:])
