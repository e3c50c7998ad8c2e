"""Tests of the tokens that the callout exchanges with a NATS server: authorization requests and
signed answers."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from apportion.callout.claims import (
    REQUEST_BYTES_MAX,
    NoRequest,
    answer_claims,
    read_request,
    signed,
    user_claims,
)
from apportion.callout.main import issuer
from apportion.core.identity.permissions import Permissions
from apportion.runtime.process.config import ConfigError

KEY = issuer("x" * 40)


def _token(payload: object) -> bytes:
    text = base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=")
    return b"e30." + text + b".c2ln"


def _question(**nats: Any) -> dict[str, Any]:
    known = {"server_id": {"id": "N1"}, "user_nkey": "U1", "type": "authorization_request"}
    return {"nats": known | nats}


def test_a_question_says_who_asks_and_what_is_shown() -> None:
    """The callout decodes the server, the client and the password of a request. It ignores unknown
    fields."""
    shown = {"user": "s-1", "pass": "token", "lang": "go"}
    request = read_request(_token(_question(connect_opts=shown, client_info={"host": "h"})))
    assert (request.server, request.user_key, request.host) == ("N1", "U1", "h")
    assert (request.shown.user, request.shown.password) == ("s-1", "token")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a.b",
        b"a.%%%.c",
        _token([]),
        _token({"nats": {}}),
        _token(_question(type="user")),
        _token(_question(user_nkey=5)),
        b"x" * (REQUEST_BYTES_MAX + 1),
    ],
)
def test_what_is_no_question_is_none(data: bytes) -> None:
    """Decoding a malformed authorization request raises NoRequest."""
    with pytest.raises(NoRequest):
        read_request(data)


def test_an_answer_is_signed_for_the_server_that_asked() -> None:
    """An answer is signed with the issuer's key and addressed to the server that sent the
    request."""
    request = read_request(_token(_question()))
    may = Permissions(("a.>",), ("a.b",), ("c",), responses=True)
    user = user_claims("s-1", "APPORTION", may, subs=7, user_key="U1", ends_s=99)
    token = signed(answer_claims(request, user=signed(user, KEY, now_s=1)), KEY, now_s=1)
    head, body, signature = token.split(".")
    raw = base64.b32decode(KEY.public + "=" * (-len(KEY.public) % 8))[1:33]
    Ed25519PublicKey.from_public_bytes(raw).verify(
        base64.urlsafe_b64decode(signature + "=="), f"{head}.{body}".encode()
    )
    said = json.loads(base64.urlsafe_b64decode(body + "=="))
    assert (said["aud"], said["sub"], said["iss"]) == ("N1", "U1", KEY.public)
    inner = json.loads(base64.urlsafe_b64decode(said["nats"]["jwt"].split(".")[1] + "=="))
    assert inner["nats"]["pub"] == {"allow": ["a.>"], "deny": ["a.b"]}
    assert inner["nats"]["resp"] == {"max": 1, "ttl": 60_000_000_000}
    assert (inner["aud"], inner["exp"], inner["sub"]) == ("APPORTION", 99, "U1")
    refusal = answer_claims(request, refused="no role")
    assert refusal["nats"]["error"] == "no role"
    assert "jwt" not in refusal["nats"]


def test_the_issuers_key_is_made_of_the_secret_alone() -> None:
    """The issuer's key depends only on the callout's secret. Short secrets are refused."""
    assert issuer("x" * 40).public == KEY.public
    assert issuer("y" * 40).public != KEY.public
    assert KEY.public.startswith("A")
    with pytest.raises(ConfigError, match="APPORTION_CALLOUT_ISSUER"):
        issuer("short")
