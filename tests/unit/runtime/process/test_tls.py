"""Tests of a client's TLS files: how renewed files take effect, and which errors unusable files
cause."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.tls import ClientTls, TlsFiles, explained, files_of
from tests.support.authority import Authority

SETTING = "APPORTION_X"


def test_a_certificate_comes_with_its_key() -> None:
    """If only one of certificate and key is set, the error names the missing variable."""
    assert not files_of(SETTING, {}).named
    assert files_of(SETTING, {"APPORTION_X_CA": "ca.crt"}) == TlsFiles(SETTING, "ca.crt")
    with pytest.raises(
        ConfigError, match=r"APPORTION_X_CERT_KEY is not set.* belongs to APPORTION_X_CERT"
    ):
        files_of(SETTING, {"APPORTION_X_CERT": "a.crt"})
    with pytest.raises(ConfigError, match=r"APPORTION_X_CERT is not set.* to APPORTION_X_CERT_KEY"):
        files_of(SETTING, {"APPORTION_X_CERT_KEY": "a.key"})


def test_renewed_files_are_taken_and_broken_ones_are_not(tmp_path: Path) -> None:
    """A client uses renewed files. While the renewed files are broken or missing, the client
    continues with the old files."""
    authority = Authority(tmp_path)
    pair = authority.issue("mine")
    tls = ClientTls(TlsFiles(SETTING, str(authority.ca), str(pair.certificate), str(pair.key)))
    first = tls.context()
    assert tls.context() is first
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert first.check_hostname
    assert len(first.get_ca_certs()) == 1
    pair.key.write_text("")
    assert tls.context() is first
    pair.key.unlink()
    assert tls.context() is first
    authority.issue("mine")
    assert tls.context() is not first


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("ca", "APPORTION_X_CA is .*ca.crt.* no readable certificate"),
        ("cert", "APPORTION_X_CERT is .*mine.crt.* cannot be read"),
        ("key", "APPORTION_X_CERT is .*mine.crt.* cannot be read"),
        ("other", "APPORTION_X_CERT is .*mine.crt.* does not belong"),
        ("gone", "APPORTION_X_CA is .*ca.crt.* cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(broken: str, words: str, tmp_path: Path) -> None:
    """If a TLS file is unusable, the error names its variable and path."""
    authority = Authority(tmp_path)
    pair, other = authority.issue("mine"), authority.issue("other")
    match broken:
        case "ca":
            authority.ca.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
        case "cert":
            pair.certificate.write_text("nothing")
        case "key":
            pair.key.write_text("nothing")
        case "other":
            pair.key.write_bytes(other.key.read_bytes())
        case "gone":
            authority.ca.unlink()
    tls = ClientTls(TlsFiles(SETTING, str(authority.ca), str(pair.certificate), str(pair.key)))
    with pytest.raises(ConfigError, match=words):
        tls.context()


def _handshake(trusted: Authority, server: tuple[Path, Path], host: str) -> Exception | None:
    """Return the client's error in a TLS handshake with a server that uses this certificate. Return
    None if the handshake succeeds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = context.wrap_bio(there, back, server_side=True)
    client = ClientTls(TlsFiles(SETTING, str(trusted.ca))).context()
    asking = client.wrap_bio(back, there, server_hostname=host)
    for _ in range(4):
        for side in (asking, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
    return None


def test_why_a_server_is_not_believed_is_said_with_what_to_do(tmp_path: Path) -> None:
    """If a server's certificate cannot be verified, the error says why (wrong CA, wrong name or
    expired) and what to do."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    good = ours.issue("good", "ledger.example")
    assert _handshake(ours, good, "ledger.example") is None
    cases = [
        (_handshake(theirs, good, "ledger.example"), "name its CA in APPORTION_X_CA"),
        (_handshake(ours, good, "else.example"), "by a name in its certificate"),
        (
            _handshake(ours, ours.issue("old", "a", ends=-timedelta(hours=1)), "a"),
            "certificate has expired: renew it",
        ),
    ]
    for error, words in cases:
        assert error is not None
        assert words in explained(error, SETTING)
    assert explained(OSError("no route"), SETTING) == ""
