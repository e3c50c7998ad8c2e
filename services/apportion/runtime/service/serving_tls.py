"""HTTPS with a certificate that can be replaced while the server runs.

The files (from cert-manager, a chart or an operator) are checked every two seconds. Invariants: new
connections use the new certificate and client CA; old connections keep the previous ones. Unusable
files change nothing. A key is never written to a disk."""

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
    """PEM files of a server: certificate, key, and optionally the CA of the clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class Pem(msgspec.Struct, frozen=True):
    """The PEM contents of `ServedFiles`."""

    certificate: bytes
    key: bytes
    client_ca: str = ""


class Tls:
    """The TLS context of one server, which can serve only after the first `use`."""

    def __init__(self, *, asks_clients: bool = False) -> None:
        self._asks_clients = asks_clients
        self.context = self._empty()
        self.context.sni_callback = self._hand_over
        self._newest = self.context
        self.used: Pem | None = None

    def use(self, pem: Pem) -> None:
        """Serve these files from now on. Raises ConfigError if they are unusable."""
        if pem == self.used:
            return
        made = self._empty()
        if self._asks_clients:
            try:
                made.load_verify_locations(cadata=pem.client_ca)
            except (ssl.SSLError, ValueError) as error:
                fix = f"no readable certificate in this file ({error}); name the CA's PEM file"
                raise ConfigError(CLIENT_CA, found=True, fix=fix) from None
        # The library accepts only files; this one is in memory and ends with its descriptor.
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
        # A client that resumes a session by ticket would not be verified again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        if self._asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _hand_over(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        """Switch a connection to the newest context at its handshake, with or without SNI."""
        connection.context = self._newest


class GivenCertificate:
    """Serves the certificate in some files, and reloads the files when they change."""

    def __init__(self, files: ServedFiles, tls: Tls, clock: Clock) -> None:
        """Load the files. Raises ConfigError if they cannot be used."""
        self._files = files
        self._tls = tls
        self._clock = clock
        self.problem = ""
        self._use()

    async def run(self) -> None:
        """Check the files for changes until cancelled."""
        while True:
            await self._clock.pause(LOOK_S)
            self.look()

    async def serving(self) -> None:
        """Return at once, because the certificate is available from the beginning."""
        await asyncio.sleep(0)

    def look(self) -> None:
        """Serve the files' current content, or keep the previous content if unusable."""
        before = self._tls.used
        try:
            self._use()
        except ConfigError as error:
            # In the middle of a change the two files may not match yet.
            if str(error) != self.problem:
                _log.warning("cannot load the new certificate, keeping the previous one: %s", error)
            self.problem = str(error)
            return
        self.problem = ""
        if self._tls.used != before:
            _log.info("certificate changed, reloaded")

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
    """Return the TLS context for these files and the object that updates it. Raises ConfigError."""
    tls = Tls(asks_clients=files.client_ca is not None)
    return tls, GivenCertificate(files, tls, clock)


@asynccontextmanager
async def serving(
    service: Service, listen: Address, files: ServedFiles | None, routes: Routes, limits: Limits
) -> AsyncIterator[str]:
    """Serve `routes` during a `with` block, over HTTPS if `files` is set. Raises ConfigError."""
    tls = None
    if files is not None:
        tls, following = given_tls(files, service.clock)
        service.loop("certificates", following.run)
    server = HttpServer(
        listen, metrics=None, not_ready=service.reasons_against_ready, routes=routes,
        key="--listen", tls=tls.context if tls else None, limits=limits,
    )  # fmt: skip
    async with listening(server) as address:
        yield f"{'https' if files else 'http'}://{address}"


def served_files(
    certificate: Path | None, key: Path | None, client_ca: Path | None
) -> ServedFiles | None:
    """Return the files, or None if no option is set. Raises ConfigError if some are missing."""
    if certificate is None or key is None:
        if certificate is None and key is None and client_ca is None:
            return None
        missing = CERTIFICATE if certificate is None else KEY
        fix = f"give {CERTIFICATE} and {KEY} together; {CLIENT_CA} needs both"
        raise ConfigError(missing, None, fix)
    return ServedFiles(certificate, key, client_ca)


_OPTIONS = (
    options.file(
        CERTIFICATE, "APPORTION_TLS_CERT",
        "Server certificate with its intermediates (PEM).",
        "--certificate", "tls_cert", metavar="FILE",
    ),
    options.file(
        KEY, "APPORTION_TLS_KEY",
        "Key of the server certificate (PEM). Changed files are reloaded.",
        "--private-key", "tls_key", metavar="FILE",
    ),
    options.file(
        CLIENT_CA, "APPORTION_TLS_CLIENT_CA",
        "CA of the clients that may connect (PEM).  [default: any client]", metavar="FILE",
    ),
)  # fmt: skip


def serving_tls_options(command: Command) -> Command:
    """Add the options that `served_files` reads: `tls_cert`, `tls_key` and `tls_client_ca`."""
    return options.with_options(command, *_OPTIONS)
