"""Where a page goes on, sealed: what a tenant carries from page to page names nothing to him.

A list goes on behind an item, and the item may be another's: the name of his gang, the uid of his
pod. A tenant gets it sealed, and may not make one up: behind which items a page goes on would tell
whether there is one of some name. The key comes from the ledger's, which all gateways of a cluster
share, so a page may be asked of any of them; without it each process has its own.
Invariant: what was sealed for one path opens at no other.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from functools import cached_property
from typing import TYPE_CHECKING, Final

from apportion.gateway.api.query import RequestRefused

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SEALED_MAX: Final = 1_024
_PURPOSE: Final = b"apportion gateway cursors"
_KEY_BYTES: Final = 32


class Cursors:
    """Seals and opens by a key that is derived from `secret`; without one it is of this object."""

    def __init__(self, secret: bytes = b"") -> None:
        self._key = hmac.digest(secret or secrets.token_bytes(_KEY_BYTES), _PURPOSE, "sha256")

    @cached_property
    def _fernet(self) -> Fernet:
        """Where nobody is a tenant, as on one machine, it is never loaded."""
        from cryptography.fernet import Fernet  # noqa: PLC0415

        return Fernet(urlsafe_b64encode(self._key))

    def seal(self, path: str, cursor: str) -> str:
        """What stands for a cursor of the list at `path`; a revision names nothing and stays."""
        if not cursor or _is_revision(cursor):
            return cursor
        return self._fernet.encrypt(f"{path}\n{cursor}".encode()).decode()

    def open(self, path: str, sealed: str) -> str:
        """The cursor that was sealed for `path`. Raises RequestRefused."""
        if not sealed or _is_revision(sealed):
            return sealed
        from cryptography.fernet import InvalidToken  # noqa: PLC0415

        try:
            if len(sealed) > SEALED_MAX or not sealed.isascii():
                raise InvalidToken
            of, _, cursor = self._fernet.decrypt(sealed).decode().partition("\n")
            if of != path:
                raise InvalidToken
        except InvalidToken:
            raise RequestRefused(
                400,
                f"continue is none that a page of {path} gave, or the gateway has a new key since",
                field="continue",
                fix="begin again without continue, and go on with what each page gives",
            ) from None
        return cursor


def _is_revision(text: str) -> bool:
    return text.isascii() and text.isdecimal()
