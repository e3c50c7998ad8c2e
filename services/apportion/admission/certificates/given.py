"""Certificates that somebody else makes: two files, read again when they change.

Whoever gives them (cert-manager, a person) publishes what to trust as well. Invariant: a file that
cannot be used changes nothing of what is served.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from apportion.admission.certificates.issued import CertificateError, Issued, read
from apportion.admission.certificates.tls import Tls
from apportion.runtime.process.clock import Clock
from apportion.runtime.process.config import ConfigError

LOOK_S = 2.0
BYTES_MAX = 1 << 20

_log = logging.getLogger(__name__)


class GivenCertificate:
    """A certificate and its key in files; see `Keeper`."""

    def __init__(self, certificate: Path, key: Path, tls: Tls, clock: Clock) -> None:
        self._certificate = certificate
        self._key = key
        self._tls = tls
        self._clock = clock
        self.problem = ""
        tls.use(self._read())

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
        try:
            found = self._read()
        except ConfigError as error:
            # In the middle of a change the two files may not fit one another yet.
            if str(error) != self.problem:
                _log.warning("certificates: %s; the one before is served on", error)
            self.problem = str(error)
            return
        self.problem = ""
        if found != self._tls.used:
            self._tls.use(found)
            _log.info("a changed certificate is served from now on")

    def _read(self) -> Issued:
        """What the files hold.

        Raises:
            ConfigError: they cannot be used.
        """
        parts = []
        for option, path in (("--certificate", self._certificate), ("--private-key", self._key)):
            try:
                with path.open("rb") as file:
                    parts.append(file.read(BYTES_MAX))
            except OSError as error:
                fix = f"cannot be read ({error.strerror}); name a PEM file"
                raise ConfigError(option, str(path), fix) from None
        try:
            return read(parts[0], parts[1])
        except CertificateError as error:
            fix = f"{error}; name a PEM certificate and its unencrypted PEM key"
            raise ConfigError("--certificate", str(self._certificate), fix) from None
