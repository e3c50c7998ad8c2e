"""Reads and writes NATS's JSON Web Tokens: authorization requests and their answers.

Invariants: an unreadable request is refused as a whole. An answer copies nothing from the request
except the keys that the server itself made."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from apportion.core.identity.permissions import ANSWER_S, Permissions
from apportion.runtime.process.reach import KeyPair
from apportion_schemas.decoding import from_outside

REQUEST_BYTES_MAX: Final = 256 << 10
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_encode = msgspec.json.Encoder(order="sorted").encode

PAYLOAD_MAX_BYTES: Final = 1 << 20  # nats-server's limit for one message


class NoRequest(ValueError):
    """The error for bytes that are not an authorization request of a nats-server."""


class _Server(Struct, frozen=True):
    id: str
    name: str = ""


class Shown(Struct, frozen=True):
    """The credentials that a client sent to the server; its token is in `password`."""

    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""


class _Client(Struct, frozen=True):
    host: str = ""


class _Nats(Struct, frozen=True):
    server_id: _Server
    user_nkey: str
    connect_opts: Shown = Shown()
    client_info: _Client = _Client()
    type: str = ""


class _Claims(Struct, frozen=True):
    nats: _Nats
    aud: str = ""


class Request(Struct, frozen=True):
    """A request from `server` to authorize a client on `host` as a user with the key `user_key`."""

    server: str
    user_key: str
    host: str
    shown: Shown


_decode = from_outside(msgspec.json.Decoder(_Claims).decode)


def read_request(data: bytes) -> Request:
    """Decode an authorization request. Raises NoRequest."""
    if len(data) > REQUEST_BYTES_MAX:
        raise NoRequest(f"larger than {REQUEST_BYTES_MAX} bytes")
    try:
        claims = _decode(payload_of(data))
    except (msgspec.MsgspecError, ValueError) as error:
        raise NoRequest(str(error)[:200]) from None
    nats = claims.nats
    if nats.type != "authorization_request":
        raise NoRequest(f"type is {nats.type[:40]!r}, not 'authorization_request'")
    return Request(nats.server_id.id, nats.user_nkey, nats.client_info.host, nats.connect_opts)


def payload_of(token: bytes) -> bytes:
    """Return a token's payload without verifying its signature. Raises ValueError."""
    parts = token.split(b".")
    if len(parts) != 3:  # noqa: PLR2004 - header, payload, signature
        raise ValueError("not a JSON Web Token")
    try:
        return base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def user_claims(
    name: str, account: str, may: Permissions, *, subs: int, user_key: str, ends_s: int
) -> dict[str, Any]:
    """Return a user's claims: at most `subs` subscriptions, valid until `ends_s` (Unix time)."""
    nats: dict[str, Any] = {
        "pub": {"allow": may.publish, "deny": may.deny_publish},
        "sub": {"allow": may.subscribe},
        "subs": subs,
        "data": -1,
        "payload": PAYLOAD_MAX_BYTES,
        "type": "user",
        "version": 2,
    }
    if may.responses:
        nats["resp"] = {"max": 1, "ttl": ANSWER_S * 1_000_000_000}
    return {"aud": account, "exp": ends_s, "name": name, "nats": nats, "sub": user_key}


def answer_claims(request: Request, *, user: str = "", refused: str = "") -> dict[str, Any]:
    """Return the claims of an answer: the user's token, or the error to log."""
    nats: dict[str, Any] = {"type": "authorization_response", "version": 2}
    nats |= {"error": refused} if refused else {"jwt": user}
    return {"aud": request.server, "nats": nats, "sub": request.user_key}


def signed(claims: Mapping[str, Any], key: KeyPair, *, now_s: int) -> str:
    """Encode the claims as a token signed with `key`."""
    whole = {**claims, "iat": now_s, "iss": key.public}
    digest = hashlib.sha256(_encode(whole)).digest()
    whole["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_text(_encode(_HEADER))}.{_text(_encode(whole))}"
    return f"{text}.{_text(key.sign(text.encode()))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
