"""Run a real nats-server with any configuration, such as TLS or an auth callout."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from apportion.core.identity.configuration import configuration, password_variable
from apportion.runtime.jetstream.server.embedded import ROLES, EmbeddedServer, find_binary
from tests.support.authority import Authority, Pair
from tests.support.polling import until
from tests.support.ports import free_port

HOST = "127.0.0.1"


def tls_block(pair: Pair, clients: Path | None = None) -> str:
    """Return a `tls` block of a server's configuration, with this certificate.

    If `clients` is given, it is the CA file for the certificates that clients must present."""
    lines = [f'cert_file: "{pair.certificate}"', f'key_file: "{pair.key}"']
    if clients is not None:
        lines += [f'ca_file: "{clients}"', "verify: true"]
    return "tls {\n" + "\n".join(lines) + "\n}\n"


class NatsServer:
    """One nats-server, which ends with its `async with` block.

    The configuration can use the users' passwords as variables `$NATS_...`."""

    def __init__(
        self, folder: Path, configuration: str, passwords: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.configuration = configuration
        self._passwords = dict(passwords or {})
        self._monitor_port = free_port()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Return everything that the server has logged."""
        return (self.folder / "server.log").read_text(errors="replace")

    def url(self, user: str, *, scheme: str = "nats", host: str = HOST) -> str:
        """Return the URL for this user, with the password."""
        return f"{scheme}://{user}:{self._passwords[user]}@{host}:{self.port}"

    async def start(self) -> None:
        """Start the server on its port and store, and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "nats.conf"
        path.write_text(self.configuration)
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "NATS_NAME": "test",
            "NATS_HOST": HOST,
            "NATS_PORT": str(self.port),
            "NATS_MONITOR": f'"127.0.0.1:{self._monitor_port}"',
            "NATS_STORE_DIR": str(self.folder / "store"),
            "NATS_MAX_STORE": "1GB",
            **{password_variable(user): word for user, word in self._passwords.items()},
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                find_binary(), "--config", path, env=environment, cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

        async def listens() -> bool:
            assert process.returncode is None, self.log[-2000:]
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, self.port)
                writer.close()
                return True
            return False

        await until(listens, "nats-server to listen")

    async def stop(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class EncryptedServer(EmbeddedServer):
    """An `EmbeddedServer` with TLS, for tests and benchmarks that need encryption.

    Clients in this process and in its child processes trust the server's CA. Servers with the same
    folder have the same CA."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        passwords = {role: f"p{role}" for role in ROLES}
        data_dir.mkdir(parents=True, exist_ok=True)
        authority = Authority(data_dir)
        block = tls_block(authority.issue("server", HOST))
        self._server = NatsServer(data_dir / "nats", configuration() + block, passwords)
        os.environ["APPORTION_NATS_CA"] = str(authority.ca)

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def port(self) -> int:
        return self._server.port

    def url_for(self, role: str) -> str:
        return self._server.url(role, scheme="tls")

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def kill(self) -> None:
        await self._server.stop()
