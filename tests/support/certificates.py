"""Create a certificate for this machine as files, for a test's admission service."""

from __future__ import annotations

from pathlib import Path

from tests.support.authority import Authority

HOST = "127.0.0.1"


def given_certificate(folder: Path) -> tuple[Authority, tuple[str, ...]]:
    """Issue a certificate in `folder`. Return its CA, and the options with which a service uses it.

    A test can renew the certificate by issuing "tls" again."""
    authority = Authority(folder)
    pair = authority.issue("tls", HOST)
    return authority, ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
