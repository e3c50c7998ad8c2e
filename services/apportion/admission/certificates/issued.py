"""Certificates that we make ourselves: each is its own root, so what verifies it is itself.

The only module that knows the cryptography library. Invariant: what is issued is valid now, for
exactly the names asked for; what is read back has a key that fits it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW = timedelta(minutes=5)
"""A certificate begins so long before it is made, for clocks that are behind ours."""
COMMON_NAME = "apportion"
_COMMON_NAME_MAX = 64


class CertificateError(Exception):
    """A certificate or a key that cannot be used; the message says why."""


class Issued(msgspec.Struct, frozen=True):
    """A certificate with its key, both PEM; `made_s` and `ends_s` are Unix time."""

    certificate: bytes
    key: bytes
    names: frozenset[str]
    made_s: float
    ends_s: float


def issue(names: Iterable[str], *, now_s: float, life_s: float) -> Issued:
    """A new certificate for these names, some of which may be IP addresses."""
    wanted = tuple(names)
    now = datetime.fromtimestamp(now_s, UTC).replace(microsecond=0)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted[0][:_COMMON_NAME_MAX])])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(seconds=max(round(life_s), 1)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(_name, wanted)), critical=False)
        .sign(key, hashes.SHA256())
    )
    written = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return read(made.public_bytes(serialization.Encoding.PEM), written)


def read(certificate: bytes, key: bytes) -> Issued:
    """A certificate and its key from PEM; further certificates of the chain may follow the first.

    Raises:
        CertificateError: either cannot be read, or they do not belong together.
    """
    try:
        first = x509.load_pem_x509_certificates(certificate)[0]
        private = serialization.load_pem_private_key(key, password=None)
        names = _names(first)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"cannot be read ({str(error)[:200]})") from None
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if first.public_key().public_bytes(*form) != private.public_key().public_bytes(*form):
        raise CertificateError("has another key than the private key that comes with it")
    return Issued(
        certificate=certificate,
        key=key,
        names=names,
        made_s=(first.not_valid_before_utc + SKEW).timestamp(),
        ends_s=first.not_valid_after_utc.timestamp(),
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in found)
