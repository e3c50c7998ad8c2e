"""The public keys that `receipt` and `verify` check signatures with."""

from __future__ import annotations

from pathlib import Path

from apportion.cli.exits import Wrong
from apportion.runtime.files.signing import KeyInvalid, VerifyingKey, read_verifying_key


def read_keys(files: tuple[Path, ...]) -> list[VerifyingKey]:
    """Raises Wrong: one of them is no public key."""
    try:
        return [read_verifying_key(file) for file in files]
    except (KeyInvalid, OSError) as error:
        raise Wrong(f"--key: {error}") from None
