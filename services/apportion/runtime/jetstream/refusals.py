"""Why a server is none for us, or lets us not do something: errors that name what to look at.

Invariant: no message shows a password, a key or a token.
"""

from __future__ import annotations

from apportion.runtime.jetstream.nats_client import LeavingClient, Unencrypted
from apportion.runtime.ledger.port import LedgerError, LedgerUnavailable, NotPermitted
from apportion.runtime.process.reach import CannotShow, Reach
from apportion.runtime.process.tls import NATS_TLS, ClientTls, explained, files_of


def secure(client: LeavingClient, reach: Reach) -> None:
    """Have the client hold servers to TLS, by the files that are named. Raises ConfigError."""
    tls = ClientTls(files_of(NATS_TLS))
    required = reach.encrypted or tls.files.named
    if required:
        tls.context()  # a file that cannot be used is told at once
    client.secure(tls, required=required)


def distrust(failure: Exception) -> str:
    """Why the server is not believed, with what to do; empty where that is not the failure."""
    if isinstance(failure, Unencrypted):
        return str(failure)
    return explained(failure, NATS_TLS)


def refusal(reach: Reach, distrusted: str) -> LedgerError:
    """Why it is no use to wait for this server; a newcomer with a token waits all the same."""
    if distrusted:
        return LedgerUnavailable(f"cannot connect to {reach.shown}: {distrusted}")
    said = f"{reach.shown} refuses user {reach.user!r}: user or {_shows(reach)}"
    return LedgerUnavailable(said) if reach.token else NotPermitted(said)


def refuses(failure: Exception) -> bool:
    """Whether we are nobody to the server; or have nothing to show: a revoked key is removed."""
    nothing_to_show = isinstance(failure.__cause__, CannotShow)
    return nothing_to_show or "authorization violation" in str(failure).lower()


def turned_away(reach: Reach, distrusted: str) -> LedgerError:
    """The server knew this user, and does so no more, or we do not believe it any more."""
    if distrusted:
        return refusal(reach, distrusted)
    return NotPermitted(f"{reach.shown} lets user {reach.user!r} in no more: the {_ended(reach)}")


def forbidden(reach: Reach, verb: str, subject: str) -> NotPermitted:
    """The server does not let this user do that."""
    return NotPermitted(
        f"{reach.shown} forbids user {reach.user!r} to {verb} {subject}; "
        "connect as the role that owns this subject (nats.conf lists the roles)"
    )


def _ended(reach: Reach) -> str:
    """What is good no more, and where another comes from."""
    if reach.key:
        return (
            f"key {reach.key} was revoked, or is gone; `apportion user list` tells who may "
            "connect, and `apportion user add` makes another"
        )
    if reach.token:
        return (
            f"token {reach.token} was revoked or has expired; put a new one there, as `kubectl "
            "create token` makes it, and begin again"
        )
    return "password was revoked or changed; see the user and password in APPORTION_NATS_URL"


def _shows(reach: Reach) -> str:
    """What he showed, and where it is looked up."""
    if reach.key:
        return f"key is wrong, or was revoked; check {reach.key}"
    if reach.token:
        return f"token {reach.token} is wrong, or nobody is there who knows: see the callout"
    return "password is wrong; check the user and password in APPORTION_NATS_URL"
