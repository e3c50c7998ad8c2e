"""A certificate for this machine, in files, for an admission service."""

from __future__ import annotations

from pathlib import Path

from tests.support.authority import Authority

HOST = "127.0.0.1"


def given_certificate(folder: Path) -> tuple[Authority, tuple[str, ...]]:
    """Return a CA in `folder` and the options for its certificate; reissue it as "tls"."""
    authority = Authority(folder)
    pair = authority.issue("tls", HOST)
    return authority, ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
