"""A cluster of three nats-servers on this machine, each with its own disk.

Invariant: a method that kills, starts, suspends or resumes a server returns only after the server
has reached that state."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import os
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import aiohttp

from apportion.runtime.jetstream.server.embedded import ROLES, find_binary
from apportion.runtime.jetstream.wire import STREAM
from tests.faults.disks import Disk
from tests.support.polling import until
from tests.support.ports import free_port

COUNT = 3
HEALTHY_S = 60.0
_CHAOS = """
      {
        user: chaos
        password: $APPORTION_CHAOS_PASSWORD
        permissions {
          publish: { allow: [
            "$JS.API.STREAM.LEADER.STEPDOWN.APPORTION"
            "$JS.API.CONSUMER.LEADER.STEPDOWN.APPORTION.binder"
            "$JS.API.STREAM.INFO.APPORTION"
            "$JS.API.STREAM.MSG.GET.APPORTION"
          ] }
          subscribe: { allow: ["_INBOX_chaos.>"] }
        }
      }
"""
_CLUSTER = """
cluster {
  name: faults
  listen: $NATS_CLUSTER
  routes: [ ROUTES ]
}
"""


class Holding(NamedTuple):
    """The revisions in one server's own store, and the leader that it reports."""

    first: int
    last: int
    leader: str


class Server:
    """One of the cluster's three nats-servers, with its process, disk and configuration."""

    def __init__(self, name: str, folder: Path, ports: tuple[int, int, int]) -> None:
        self.name = name
        self.port, self._monitor_port, self.cluster_port = ports
        self.disk = Disk(folder)
        self._folder = folder
        self.log_path = folder / "server.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Return True if the process exists, whether suspended or not."""
        return self._process is not None and self._process.returncode is None

    def prepare(self, routes: list[int]) -> None:
        """Mount the disk, and write the server's configuration."""
        self._folder.mkdir(parents=True)
        self.disk.mount()
        text = (
            importlib.resources.files("apportion.runtime.jetstream")
            .joinpath("nats.conf")
            .read_text()
        )
        text = text.replace("server_name: apportion\n", "server_name: $NATS_NAME\n")
        text = text.replace("    users: [\n", f"    users: [{_CHAOS}", 1)
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        (self._folder / "nats.conf").write_text(text + _CLUSTER.replace("ROUTES", urls))

    async def start(self, passwords: dict[str, str]) -> None:
        """Start the process. It may take a while to become healthy."""
        environment = {
            "NATS_NAME": self.name,
            "NATS_HOST": "127.0.0.1",
            "NATS_PORT": str(self.port),
            "NATS_MONITOR": f'"127.0.0.1:{self._monitor_port}"',
            "NATS_CLUSTER": f'"127.0.0.1:{self.cluster_port}"',
            "NATS_STORE_DIR": str(self.disk.path / "store"),
            "NATS_MAX_STORE": str(8 << 30),
            **{f"APPORTION_{role.upper()}_PASSWORD": word for role, word in passwords.items()},
        }
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                find_binary(),
                "--config",
                self._folder / "nats.conf",
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def stop(self) -> None:
        """Suspend the process with SIGSTOP. Its sockets stay open, but it does not answer."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process with SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            os.kill(self._process.pid, number)

    async def healthy(self) -> bool:
        """Return True if the server reports that its data is complete and up to date."""
        url = f"http://127.0.0.1:{self._monitor_port}/healthz"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2)) as session,
                session.get(url) as page,
            ):
                return page.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def holds(self) -> Holding | None:
        """Return the server's own range of revisions, or None if the server does not answer.

        A healthy server may lack the newest records if it has just started."""
        url = f"http://127.0.0.1:{self._monitor_port}/jsz?acc=APPORTION&streams=true"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2)) as session,
                session.get(url) as page,
            ):
                told = await page.json()
                (account,) = told["account_details"]
                (ledger,) = (each for each in account["stream_detail"] if each["name"] == STREAM)
        except (aiohttp.ClientError, TimeoutError, LookupError, ValueError):
            return None
        state, leader = ledger["state"], ledger["cluster"].get("leader", "")
        return Holding(state["first_seq"], state["last_seq"], leader)

    async def healthy_or_ended(self) -> bool:
        """Return True if the server is healthy or does not run."""
        return not self.running or await self.healthy()

    def keep(self) -> None:
        """Copy the server's store from its own disk to the round's folder."""
        store = self.disk.path / "store"
        if store.exists():
            shutil.copytree(store, self._folder / "store")

    def log_tail(self, lines: int = 12) -> str:
        text = self.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


class Cluster:
    """Three NATS servers that form one cluster, and the passwords of its users."""

    def __init__(self, folder: Path) -> None:
        ports = [free_port() for _ in range(3 * COUNT)]
        self.servers = [
            Server(f"n{at + 1}", folder / f"n{at + 1}", (ports[at], ports[3 + at], ports[6 + at]))
            for at in range(COUNT)
        ]
        self._passwords = {role: f"p{role}" for role in (*ROLES, "chaos")}

    def url_for(self, role: str) -> str:
        """Return the connection string of this role, which names all three servers."""
        word = self._passwords[role]
        return ",".join(f"nats://{role}:{word}@127.0.0.1:{each.port}" for each in self.servers)

    async def start(self) -> None:
        """Start all servers and wait until they form one cluster."""
        for server in self.servers:
            server.prepare([each.cluster_port for each in self.servers])
        await asyncio.gather(*(self.revive(server) for server in self.servers))
        await self.all_healthy()

    async def revive(self, server: Server) -> None:
        if not server.running:
            await server.start(self._passwords)

    async def all_healthy(self) -> None:
        """Wait until every server reports that it is healthy."""
        for server in self.servers:
            try:
                what = f"{server.name} to be healthy, or to end"
                await until(server.healthy_or_ended, what, timeout_s=HEALTHY_S)
                assert server.running, f"{server.name} ended"
            except AssertionError as late:
                late.add_note(server.log_tail())
                raise

    async def end(self, *, keep: bool = False) -> None:
        """End every process and unmount every disk. If `keep` is set, copy the stores first."""
        for server in self.servers:
            await server.kill()
        for server in self.servers:
            if keep:
                server.keep()
            server.disk.unmount()
