"""Attack 12: an impostor answers as the ledger's server, without TLS or with its own certificate.

An attacker can answer at the server's address by ARP or DNS spoofing. Without the guard the client
library continues without TLS if the server does not offer it. The attacker then gets the password,
even if the URL begins with `tls://`."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from apportion.core.identity.configuration import configuration
from apportion.runtime.jetstream.client import JetStreamLedger, connect, create_stream
from apportion.runtime.jetstream.server.embedded import ROLES
from apportion.runtime.ledger.port import LedgerUnavailable, NotPermitted
from tests.security.weakened import GUARDS
from tests.support.authority import Authority
from tests.support.nats import draft
from tests.support.nats_server import HOST, NatsServer, tls_block
from tests.support.polling import until

PASSWORDS = {role: f"p{role}" for role in ROLES}
WORD = PASSWORDS["operator"]
SOON_S = 20.0


class Impostor:
    """A server without TLS that pretends to be the ledger's server and records what it receives."""

    def __init__(self) -> None:
        self.heard = b""
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen as the impostor until the block ends."""
        server = await asyncio.start_server(self._greet, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = {"server_id": "N", "version": "2.14.0", "max_payload": 1 << 20, "proto": 1}
        greeting |= {"auth_required": True, "headers": True}
        writer.write(f"INFO {json.dumps(greeting)}\r\n".encode())
        with contextlib.suppress(ConnectionError):
            while said := await reader.read(4096):
                self.heard += said
                writer.write(b"-ERR 'Authorization Violation'\r\n")
        writer.close()


async def _verb(url: str, weak: str) -> tuple[int, str]:
    """Run `apportion ledger check` with the guard `weak` removed, and return its exit code and
    output."""
    command = ["ledger", "check", "--nats", url]
    module = ["tests.security.weakened", weak, "--"] if weak else ["apportion.cli.main"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *module, *command,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


@pytest.mark.parametrize("weak", ["says nothing before TLS", ""], ids=["weak", "guarded"])
async def test_a_server_without_tls_is_told_nothing(weak: str) -> None:
    """A client with a `tls://` URL sends a plain-text server nothing, not even its password."""
    impostor = Impostor()
    async with impostor.listening():
        url = f"tls://operator:{WORD}@{HOST}:{impostor.port}"
        code, said = await _verb(url, weak)
    assert code == 3, said
    assert WORD not in said
    if weak:
        assert WORD.encode() in impostor.heard
    else:
        assert impostor.heard == b""
        assert "no TLS" in said


class Ledger:
    """A ledger on a TLS server, and the file with the CA that its clients trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder, "ours")
        self.ca = folder / "trusted.crt"
        self.pair = self.authority.issue("server", HOST)
        self.server = NatsServer(folder / "nats", "", PASSWORDS)
        self.configure()

    def configure(self, *, clients: bool = False) -> None:
        """Set the server's certificate for its next start.

        If `clients` is True, the server then requires a certificate from every client."""
        block = tls_block(self.pair, self.authority.ca if clients else None)
        self.server.configuration = configuration() + block
        self.ca.write_bytes(self.authority.ca.read_bytes())

    async def restart(self) -> None:
        await self.server.stop()
        await self.server.start()

    async def connect(self, role: str = "watcher") -> JetStreamLedger:
        """Connect over TLS as this role."""
        return await connect(self.server.url(role, scheme="tls"), name="test", timeout_s=SOON_S)


@pytest.fixture
async def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ledger]:
    """Provide a TLS server whose CA file the clients of this process trust."""
    made = Ledger(tmp_path)
    monkeypatch.setenv("APPORTION_NATS_CA", str(made.ca))
    async with made.server:
        boot = await made.connect("bootstrap")
        await create_stream(boot)
        await boot.close()
        yield made


@pytest.mark.parametrize("weak", ["believes its CA alone", ""], ids=["weak", "guarded"])
async def test_a_server_of_another_ca_is_told_nothing(ledger: Ledger, weak: str) -> None:
    """A client sends no credentials to a server whose certificate is from another CA."""
    there = await ledger.connect()
    theirs = Authority(ledger.folder, "theirs").issue("impostor", HOST)
    impostor = NatsServer(
        ledger.folder / "impostor", configuration() + tls_block(theirs), PASSWORDS
    )
    async with impostor:
        url = impostor.url("operator", scheme="tls")
        if weak:
            with GUARDS[weak]():
                await (await connect(url, name="test")).close()  # it took the password
        else:
            with pytest.raises(LedgerUnavailable, match=r"not trusted .* in APPORTION_NATS_CA"):
                await connect(url, name="test")
    await there.append([draft()])
    await there.close()


async def test_a_name_that_the_certificate_has_not_is_refused(ledger: Ledger) -> None:
    """A client refuses a certificate of the right CA that lacks the name in the URL."""
    ledger.pair = ledger.authority.issue("elsewhere", "elsewhere.example")
    ledger.configure()
    await ledger.restart()
    with pytest.raises(LedgerUnavailable, match="by a name in its certificate"):
        await ledger.connect()


async def test_a_plain_url_with_a_ca_wants_tls_as_well(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with a CA requires TLS even if its URL says `nats://`."""
    impostor = Impostor()
    async with impostor.listening():
        with pytest.raises(LedgerUnavailable, match="has no TLS"):
            await connect(f"nats://operator:{WORD}@{HOST}:{impostor.port}", name="test")
    assert impostor.heard == b""
    monkeypatch.setenv("APPORTION_NATS_CA", str(ledger.folder / "no.crt"))
    with pytest.raises(NotPermitted, match=r"APPORTION_NATS_CA is .*no\.crt.* cannot be read"):
        await ledger.connect()


async def test_renewed_certificates_are_taken_without_a_restart(ledger: Ledger) -> None:
    """A running client accepts a server of a new CA once the client's own CA file contains that
    CA."""
    there = await ledger.connect()
    await there.append([draft()])
    ledger.authority = Authority(ledger.folder, "renewed")
    ledger.pair = ledger.authority.issue("server", HOST)
    ledger.configure()
    await ledger.restart()

    async def goes_on() -> bool:
        with contextlib.suppress(LedgerUnavailable):
            await there.append([draft()])
            return True
        return False

    await until(goes_on, "the client to be back")
    await there.close()


async def test_who_shows_no_certificate_is_told_what_is_missing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server requires a client certificate, a client without one fails and names the missing
    setting."""
    ledger.configure(clients=True)
    await ledger.restart()
    with pytest.raises(LedgerUnavailable, match="APPORTION_NATS_CERT"):
        await ledger.connect()
    mine = ledger.authority.issue("client")
    monkeypatch.setenv("APPORTION_NATS_CERT", str(mine.certificate))
    monkeypatch.setenv("APPORTION_NATS_CERT_KEY", str(mine.key))
    there = await ledger.connect()
    await there.append([draft()])
    await there.close()
