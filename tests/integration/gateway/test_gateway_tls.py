"""The gateway over HTTPS with a certificate of a private CA, as users reach it."""

import asyncio
import contextlib
import http.client
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.authority import Authority, Pair
from tests.support.nats import running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

HOST = "127.0.0.1"


class Gateway:
    """A gateway process that serves HTTPS and requires certificates from its clients."""

    def __init__(self, url: str, folder: Path, *, first: str = "") -> None:
        self.authority = Authority(folder)
        self.pair = self.authority.issue("gateway", HOST)
        options = ["--listen", f"{HOST}:0", "--tls-cert", str(self.pair.certificate)]
        options += ["--tls-key", str(self.pair.key), "--tls-client-ca", str(self.authority.ca)]
        self.process = ServiceProcess("gateway", url, *options, first=first)
        self.url = ""

    async def ready(self) -> None:
        """Wait until the gateway is ready, and store its address."""
        await self.process.ready()
        line = await self.process.logged("answering")
        self.url = str(line["console"])
        assert self.url.startswith("https://")

    def asked(self, ca: Path | None = None, client: Pair | None = None) -> tuple[int, str]:
        """Run `apportion get nodes`, and return its exit code and output."""
        told = {"APPORTION_GATEWAY": self.url}
        if ca is not None:
            told["APPORTION_GATEWAY_CA"] = str(ca)
        command = [sys.executable, "-m", "apportion.cli.main", "get", "nodes"]
        if client is not None:
            command += ["--gateway-cert", str(client.certificate)]
            command += ["--gateway-cert-key", str(client.key)]
        done = subprocess.run(
            command, env=os.environ | told, capture_output=True, text=True, check=False, timeout=50
        )
        return done.returncode, done.stdout + done.stderr


def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Provide a gateway with TLS that is ready."""
    async with running_bus(tmp_path / "bus") as bus:
        made = Gateway(bus.server.url_for("gateway"), tmp_path)
        async with made.process:
            await made.ready()
            yield made


async def test_a_verb_believes_the_ca_it_was_told_of(gateway: Gateway, tmp_path: Path) -> None:
    """A verb trusts only the CA that it is configured with. The gateway accepts only clients whose
    certificate was issued by the gateway's configured CA."""
    ours = gateway.authority.issue("person")
    code, said = gateway.asked(gateway.authority.ca, ours)
    assert code == 0, said
    code, said = gateway.asked(None, ours)
    assert code == 3
    assert "cannot verify the gateway" in said
    assert "APPORTION_GATEWAY_CA" in said
    code, said = gateway.asked(gateway.authority.ca)
    assert code == 3
    assert "APPORTION_GATEWAY_CERT" in said
    code, said = gateway.asked(gateway.authority.ca, Authority(tmp_path, "other").issue("stranger"))
    assert code == 3
    code, said = gateway.asked(tmp_path / "no.crt", ours)
    assert code == 2
    assert "APPORTION_GATEWAY_CA is" in said
    assert "cannot be read" in said


async def test_half_handshakes_keep_nobody_else_out(tmp_path: Path) -> None:
    """Unfinished TLS handshakes count towards their client's connection limit, so other clients can
    still connect."""
    first = (
        "from apportion.runtime.service.http import HttpServer\n"
        "from apportion.runtime.service.limits import Limits\n"
        "HttpServer.__init__.__kwdefaults__['limits'] = Limits(connections_each=3, head_s=60.0)\n"
    )
    async with running_bus(tmp_path / "bus") as bus:
        made = Gateway(bus.server.url_for("gateway"), tmp_path, first=first)
        async with made.process, contextlib.AsyncExitStack() as held:
            await made.ready()
            port = int(made.url.rstrip("/").rpartition(":")[2])

            readers: list[asyncio.StreamReader] = []
            for _ in range(4):
                opened = asyncio.open_connection(HOST, port, local_addr=("127.0.0.2", 0))
                reader, writer = await opened
                readers.append(reader)
                held.callback(close, writer)
            *halves, fourth = readers
            async with asyncio.timeout(20):
                assert await fourth.read() == b"", "it is hung up on"
            assert not any(half.at_eof() for half in halves)
            ours = made.authority.issue("person")
            code, said = await asyncio.to_thread(made.asked, made.authority.ca, ours)
            assert code == 0, said


async def test_a_renewed_certificate_is_served_without_a_restart(gateway: Gateway) -> None:
    """The gateway serves a renewed certificate to new connections without a restart."""

    def shown() -> str:
        port = int(gateway.url.rstrip("/").rpartition(":")[2])
        return ssl.get_server_certificate((HOST, port))

    before = gateway.pair.certificate.read_text()
    assert shown().split() == before.split()
    gateway.authority.issue("gateway", HOST)

    async def renewed() -> bool:
        return shown().split() == gateway.pair.certificate.read_text().split()

    await until(renewed, "the new certificate to be served")
    assert gateway.pair.certificate.read_text() != before


async def test_an_extender_answers_the_scheduler_of_its_ca_alone(tmp_path: Path) -> None:
    """With a client CA the extender accepts only clients with a certificate of that CA."""
    authority, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    pair = authority.issue("extender", HOST)
    options = ["--listen", f"{HOST}:0", "--tls-cert", str(pair.certificate)]
    options += ["--tls-key", str(pair.key), "--tls-client-ca", str(authority.ca)]

    def status(url: str, shown: Pair | None) -> int:
        context = ssl.create_default_context(cafile=authority.ca)
        if shown is not None:
            context.load_cert_chain(*shown)
        with urllib.request.urlopen(f"{url}/readyz", timeout=20, context=context) as answer:  # noqa: S310
            return int(answer.status)

    async with running_bus(tmp_path / "bus") as bus:
        url = bus.server.url_for("extender")
        async with ServiceProcess("extender", url, *options) as process:
            await process.ready()
            address = str((await process.logged("extending"))["url"])
            assert address.startswith("https://")
            for shown in (None, other.issue("stranger")):
                with pytest.raises((OSError, http.client.HTTPException)):
                    await asyncio.to_thread(status, address, shown)
            assert await asyncio.to_thread(status, address, authority.issue("scheduler")) == 200
