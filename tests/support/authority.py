"""Create a certificate authority (CA) for a test, and issue certificate files for servers and
clients."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


class Pair(NamedTuple):
    """The paths of a certificate file and its key file."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority for one test. `ca` is its certificate file, which clients trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._begun(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.ca = folder / f"{name}.crt"
        self.ca.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *hosts: str, to: Path | None = None, ends: timedelta = DAY) -> Pair:
        """Issue a certificate for these hosts, as files in `to` or in the CA's folder.

        Existing files of the same name are replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            self._begun(subject, key, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.SubjectAlternativeName(map(_host, hosts or (name,))), critical=False
            )
        )
        pair = Pair(*((to or self._folder) / f"{name}.{end}" for end in ("crt", "key")))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        return pair

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, ends: timedelta = DAY
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + ends)
        )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
