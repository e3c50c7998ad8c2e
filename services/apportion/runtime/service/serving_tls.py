"""HTTPS of a server whose certificate changes while it runs: the one way for all that we serve.

Whoever gives the files (cert-manager, a chart, a person) changes them in place; they are looked at
every two seconds. Invariants: connections made after a change get the new certificate and are held
to the new CA of clients, those before keep theirs; a file that cannot be used changes nothing of
what is served; a key is never written to a disk."""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from apportion.runtime.process.clock import Clock
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.tls import load_pair, read_pem
from apportion.runtime.service import options
from apportion.runtime.service.http import HttpServer, Routes, listening
from apportion.runtime.service.lifecycle import Service
from apportion.runtime.service.limits import Limits
from apportion.runtime.service.options import Command

LOOK_S = 2.0
CERTIFICATE, KEY, CLIENT_CA = "--tls-cert", "--tls-key", "--tls-client-ca"

_log = logging.getLogger(__name__)


class ServedFiles(msgspec.Struct, frozen=True):
    """PEM files: our certificate and its key, and the CA of those who may connect, if not all."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Pem(msgspec.Struct, frozen=True):
    """What the files hold: PEM."""

    certificate: bytes
    key: bytes
    client_ca: str = ""


class Tls:
    """One server's context; there is nothing to serve before the first `use`."""

    def __init__(self, *, asks_clients: bool = False) -> None:
        self._asks_clients = asks_clients
        self.context = self._empty()
        self.context.sni_callback = self._hand_over
        self._newest = self.context
        self.used: Pem | None = None

    def use(self, pem: Pem) -> None:
        """Serve this from now on.

        Raises ConfigError: it cannot be served."""
        if pem == self.used:
            return
        made = self._empty()
        if self._asks_clients:
            try:
                made.load_verify_locations(cadata=pem.client_ca)
            except (ssl.SSLError, ValueError) as error:
                fix = f"no certificate can be read in it ({error}); name the CA's PEM file"
                raise ConfigError(CLIENT_CA, "", fix) from None
        # The library takes files only; this one has no name and is gone with its descriptor.
        memory = os.memfd_create("certificate")
        try:
            os.write(memory, pem.key + b"\n" + pem.certificate)
            path = Path(f"/proc/self/fd/{memory}")
            load_pair(made, CERTIFICATE, path, path)
        finally:
            os.close(memory)
        self._newest, self.used = made, pem

    def _empty(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Who comes back with a ticket would not be looked at again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        if self._asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _hand_over(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        """Called at every handshake, whether the client names a server or not."""
        connection.context = self._newest


class GivenCertificate:
    """What the files hold is served, from the beginning and after every change of theirs."""

    def __init__(self, files: ServedFiles, tls: Tls, clock: Clock) -> None:
        """Raises ConfigError: the files cannot be used."""
        self._files = files
        self._tls = tls
        self._clock = clock
        self.problem = ""
        self._use()

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await self._clock.pause(LOOK_S)
            self.look()

    async def serving(self) -> None:
        """There is a certificate from the beginning."""
        await asyncio.sleep(0)

    def look(self) -> None:
        """Serve what the files hold now, if that can be served."""
        before = self._tls.used
        try:
            self._use()
        except ConfigError as error:
            # In the middle of a change the two files may not fit one another yet.
            if str(error) != self.problem:
                _log.warning("certificates: %s; the one before is served on", error)
            self.problem = str(error)
            return
        self.problem = ""
        if self._tls.used != before:
            _log.info("a changed certificate is served from now on")

    def _use(self) -> None:
        files = self._files
        ca = read_pem(CLIENT_CA, str(files.client_ca)) if files.client_ca else ""
        certificate = read_pem(CERTIFICATE, str(files.certificate))
        key = read_pem(KEY, str(files.key))
        try:
            self._tls.use(Pem(certificate.encode(), key.encode(), ca))
        except ConfigError as error:
            named = files.client_ca if error.key == CLIENT_CA else files.certificate
            raise ConfigError(error.key, str(named), error.fix) from None


def given_tls(files: ServedFiles, clock: Clock) -> tuple[Tls, GivenCertificate]:
    """What serves these files, and what looks after them. Raises ConfigError."""
    tls = Tls(asks_clients=files.client_ca is not None)
    return tls, GivenCertificate(files, tls, clock)


@asynccontextmanager
async def serving(
    service: Service, listen: Address, files: ServedFiles | None, routes: Routes, limits: Limits
) -> AsyncIterator[str]:
    """Serve these beside `/readyz`, over HTTPS where there are files, which are followed; the URL.

    Raises ConfigError: the certificate cannot be used, or the address is taken."""
    tls = None
    if files is not None:
        tls, following = given_tls(files, service.clock)
        service.loop("certificates", following.run)
    server = HttpServer(
        listen,
        metrics=None,
        not_ready=service.reasons_against_ready,
        routes=routes,
        key="--listen",
        tls=tls.context if tls else None,
        limits=limits,
    )
    async with listening(server) as address:
        yield f"{'https' if files else 'http'}://{address}"


def served_files(
    certificate: Path | None, key: Path | None, client_ca: Path | None
) -> ServedFiles | None:
    """The options together; None where none was given.

    Raises ConfigError: one is missing that another needs."""
    if certificate is None or key is None:
        if certificate is None and key is None and client_ca is None:
            return None
        missing = CERTIFICATE if certificate is None else KEY
        fix = f"give {CERTIFICATE} and {KEY} together; {CLIENT_CA} needs both"
        raise ConfigError(missing, "not given", fix)
    return ServedFiles(certificate, key, client_ca)


_OPTIONS = (
    options.file(
        CERTIFICATE,
        "APPORTION_TLS_CERT",
        "Certificate to serve (PEM), and those between it and its CA.",
        "--certificate",
        "tls_cert",
        metavar="FILE",
    ),
    options.file(
        KEY,
        "APPORTION_TLS_KEY",
        "Its key (PEM). Changed files are taken while running.",
        "--private-key",
        "tls_key",
        metavar="FILE",
    ),
    options.file(
        CLIENT_CA,
        "APPORTION_TLS_CLIENT_CA",
        "CA whose clients may connect (PEM).  [default: all may]",
        metavar="FILE",
    ),
)


def serving_tls_options(command: Command) -> Command:
    """Add the options of `served_files`: `tls_cert`, `tls_key` and `tls_client_ca`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
