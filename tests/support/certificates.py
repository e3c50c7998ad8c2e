"""A certificate for this machine, in files, for an admission service without a cluster."""

from __future__ import annotations

from pathlib import Path

from apportion.admission.certificates.issued import Issued, issue
from apportion.runtime.process.clock import SystemClock

HOST = "127.0.0.1"
LIFE_S = 3_600.0


def given_certificate(folder: Path) -> tuple[Issued, tuple[str, ...]]:
    """The certificate, and the options that name its files in the folder."""
    issued = issue((HOST,), now_s=SystemClock().now().timestamp(), life_s=LIFE_S)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return issued, ("--tls-cert", str(certificate), "--tls-key", str(key))
