"""The TLS side of a server whose certificate changes while it runs.

Invariant: connections made after `use` get the new certificate, those before keep theirs, and a key
is never written to a disk.
"""

from __future__ import annotations

import os
import ssl

from apportion.admission.certificates.issued import Issued


class Tls:
    """One server's context; there is nothing to serve before the first `use`."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.used: Issued | None = None

    def use(self, issued: Issued) -> None:
        """Serve this certificate from now on."""
        if issued == self.used:
            return
        # The library takes files only; this one has no name and is gone with its descriptor.
        memory = os.memfd_create("certificate")
        try:
            os.write(memory, issued.key + b"\n" + issued.certificate)
            self.context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        self.used = issued
