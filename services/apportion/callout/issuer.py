"""The key by which nats-server believes us, made of a secret that a chart can make.

A template can make random letters and no key of NATS. So the key is the SHA-256 of the letters:
whoever has the secret has the key, and nats-server is told the public half alone.
"""

from __future__ import annotations

import hashlib
from typing import Final

from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.nkeys import ACCOUNT, KeyPair

VARIABLE: Final = "APPORTION_CALLOUT_ISSUER"
_LETTERS_MIN: Final = 32


def issuer(secret: str) -> KeyPair:
    """The account's key. Raises ConfigError."""
    if len(secret) < _LETTERS_MIN:
        fix = (
            f"set it to {_LETTERS_MIN} or more random letters and digits, the same for all replicas"
        )
        raise ConfigError(VARIABLE, "too short" if secret else "", fix)
    return KeyPair(ACCOUNT, hashlib.sha256(b"apportion callout\n" + secret.encode()).digest())
