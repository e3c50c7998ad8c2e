"""Tests that an HTTPS server follows changes of its certificate, key and client CA files."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apportion.runtime.process.clock import SystemClock
from apportion.runtime.process.config import ConfigError
from apportion.runtime.service.serving_tls import (
    GivenCertificate,
    ServedFiles,
    Tls,
    given_tls,
    served_files,
)
from tests.support.authority import Authority, Pair

HOST = "127.0.0.1"


class Served:
    """A running TLS server."""

    def __init__(self, tls: Tls, given: GivenCertificate, port: int) -> None:
        self.tls = tls
        self.given = given
        self._port = port

    async def answers(self, trusted: Authority, client: Pair | None = None) -> bool:
        """Return True if the server answers a client that trusts this CA and shows this
        certificate."""
        context = ssl.create_default_context(cafile=trusted.ca)
        if client is not None:
            context.load_cert_chain(*client)
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port, ssl=context)
            line = await reader.readline()
        except (ssl.SSLError, ConnectionError):
            return False
        writer.close()
        return line == b"hello\n"


async def _hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    writer.close()


@pytest.fixture
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """Provide a running TLS server. With the parameter "clients", the server requires client
    certificates."""
    first = Authority(tmp_path, "first")
    pair = first.issue("tls", HOST)
    ask = getattr(request, "param", "") == "clients"
    client_ca = tmp_path / "clients.crt"
    client_ca.write_bytes(first.ca.read_bytes())
    tls, given = given_tls(ServedFiles(*pair, client_ca if ask else None), SystemClock())
    async with await asyncio.start_server(_hello, HOST, 0, ssl=tls.context) as server:
        served = Served(tls, given, server.sockets[0].getsockname()[1])
        assert await served.answers(first, first.issue("before"))
        yield served


async def test_files_are_taken_when_they_have_changed(served: Served, tmp_path: Path) -> None:
    """If certificate and key have both changed, new connections use them. If only one of the two
    has changed, the server keeps the old pair."""
    before = served.tls.used
    assert before is not None
    second = Authority(tmp_path, "second")
    pair = second.issue("next", HOST)
    (tmp_path / "tls.crt").write_bytes(pair.certificate.read_bytes())
    served.given.look()
    assert "does not belong" in served.given.problem
    assert str(tmp_path / "tls.crt") in served.given.problem
    assert served.tls.used is before
    assert not await served.answers(second)
    (tmp_path / "tls.key").write_bytes(pair.key.read_bytes())
    served.given.look()
    assert served.given.problem == ""
    assert await served.answers(second)


@pytest.mark.parametrize("served", ["clients"], indirect=True)
async def test_who_may_connect_is_taken_when_it_has_changed(served: Served, tmp_path: Path) -> None:
    """If the client CA file changes, the server uses the new file to decide which clients may
    connect."""
    first, second = Authority(tmp_path, "stranger"), Authority(tmp_path, "second")
    pair = second.issue("tls", HOST)
    assert pair == (tmp_path / "tls.crt", tmp_path / "tls.key")
    (tmp_path / "clients.crt").write_bytes(second.ca.read_bytes())
    served.given.look()
    assert await served.answers(second, second.issue("somebody"))
    assert not await served.answers(second, first.issue("stranger"))
    assert not await served.answers(second, Pair(tmp_path / "before.crt", tmp_path / "before.key"))
    assert not await served.answers(second)


def test_files_that_cannot_be_used_at_the_start_are_an_error(tmp_path: Path) -> None:
    """If a TLS file is unusable at the start, the error has the option, path and fix. The service
    never asks for a password."""
    files = ServedFiles(tmp_path / "no.crt", tmp_path / "no.key")
    with pytest.raises(ConfigError, match=r"--tls-cert is .*no\.crt.*cannot be read"):
        given_tls(files, SystemClock())
    pair = Authority(tmp_path).issue("tls", HOST)
    with pytest.raises(
        ConfigError, match=r"--tls-client-ca is .*tls\.key.*no readable certificate"
    ):
        given_tls(ServedFiles(*pair, pair.key), SystemClock())
    pair.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match=r"--tls-cert is .*tls\.crt.*unencrypted"):
        given_tls(ServedFiles(*pair), SystemClock())


def test_halves_of_the_options_are_named(tmp_path: Path) -> None:
    """If only some of the required TLS options are given, the error names them."""
    assert served_files(None, None, None) is None
    for given in ((tmp_path, None, None), (None, None, tmp_path), (None, tmp_path, None)):
        with pytest.raises(ConfigError, match="--tls-cert and --tls-key together"):
            served_files(*given)
