"""Make a ServiceAccount token that has expired.

No API server issues a token for less than ten minutes, and no test waits that long. Invariant: the
token is signed with the API server's own key, so it is invalid only because of its age."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

DAY_S = 86_400


def a_day_later(token: str, key: Path) -> str:
    """Return a copy of `token` whose times are a day earlier, signed with the API server's key
    `key`."""
    head, text, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(f"{text}=="))
    claims |= {name: claims[name] - DAY_S for name in ("exp", "iat", "nbf")}
    signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
    signing = serialization.load_pem_private_key(key.read_bytes(), password=None)
    assert isinstance(signing, RSAPrivateKey)
    return f"{signed}.{_encoded(signing.sign(signed.encode(), PKCS1v15(), hashes.SHA256()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
