"""TLS for clients: which CA to trust and which certificate to present.

Files are checked before every connection, so a renewed certificate needs no restart. Invariants: a
server is always verified. If a file becomes unusable, the previous content stays in use."""

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec

from apportion.runtime.process.config import ConfigError

BYTES_MAX = 1 << 20
# prefix of the variables that name the TLS files for the ledger's server
NATS_TLS = "APPORTION_NATS"

_NAMES = ("CA", "CERT", "CERT_KEY")
_log = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles(msgspec.Struct, frozen=True):
    """PEM files for client TLS."""

    setting: str  # the prefix of the files' settings
    ca: str = ""  # replaces the system's CAs
    certificate: str = ""
    key: str = ""

    @property
    def named(self) -> bool:
        """Return True if any file is set, so that a connection must use TLS."""
        return bool(self.ca or self.certificate or self.key)


def files_of(setting: str, environ: Mapping[str, str] | None = None) -> TlsFiles:
    """Return the files that `<setting>_CA`, `_CERT` and `_CERT_KEY` name. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    ca, certificate, key = (environ.get(f"{setting}_{name}", "") for name in _NAMES)
    if bool(certificate) != bool(key):
        missing, there = ("CERT_KEY", "CERT") if certificate else ("CERT", "CERT_KEY")
        raise ConfigError(
            f"{setting}_{missing}", "", f"also set the PEM file that belongs to {setting}_{there}"
        )
    return TlsFiles(setting, ca, certificate, key)


def forget_files(setting: str) -> None:
    """Unset the environment variables of TLS files, because `apportion up` uses no TLS."""
    for name in _NAMES:
        os.environ.pop(f"{setting}_{name}", None)


class ClientTls:
    """Builds the TLS context for connections, and rebuilds it after a file has changed."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._stamp: _Stamp = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a connection now. Raises ConfigError if there is none."""
        try:
            files = self.files
            named = zip(_NAMES, (files.ca, files.certificate, files.key), strict=True)
            stamp = tuple(_stamp(f"{files.setting}_{name}", path) for name, path in named if path)
            if self._context is None or stamp != self._stamp:
                authorities = None
                if files.ca:
                    authorities = read_pem(f"{files.setting}_CA", files.ca)
                try:
                    context = ssl.create_default_context(cadata=authorities)
                except (ssl.SSLError, ValueError) as error:
                    if not files.ca:
                        raise
                    why = f"the file has no readable certificate ({_reason(error)})"
                    fix = f"{why}; name the CA's PEM file"
                    raise ConfigError(f"{files.setting}_CA", files.ca, fix) from None
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                if files.certificate:
                    pair = Path(files.certificate), Path(files.key)
                    load_pair(context, f"{files.setting}_CERT", *pair)
                self._context, self._stamp = context, stamp
        except ConfigError as error:
            if self._context is None:
                raise
            _log.warning("cannot load new certificates, keeping the previous ones: %s", error)
        return self._context


def load_pair(context: ssl.SSLContext, setting: str, certificate: Path, key: Path) -> None:
    """Make `context` present this certificate. Raises ConfigError if it is unusable."""
    try:
        # Without this callback the library would prompt for a password on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        why = f"the certificate or its key cannot be read ({_reason(error)})"
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            why = "the private key does not belong to the certificate"
        fix = f"{why}; give the path of a PEM certificate and of its unencrypted PEM key"
        raise ConfigError(setting, str(certificate), fix) from None
    except OSError as error:
        why = f"the certificate or its key cannot be read ({error.strerror})"
        fix = f"{why}; give the paths of PEM files"
        raise ConfigError(setting, str(certificate), fix) from None


def read_pem(setting: str, path: str) -> str:
    """Return a PEM file's text. Raises ConfigError if the file is unreadable or too large."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(BYTES_MAX + 1)
    except OSError as error:
        fix = f"the file cannot be read ({error.strerror}); give the path of a PEM file"
        raise ConfigError(setting, path, fix) from None
    if len(found) > BYTES_MAX:
        raise ConfigError(
            setting, path, f"the file has more than {BYTES_MAX} bytes; give the path of a PEM file"
        )
    return found.decode("ascii", errors="replace")


def explained(failure: BaseException, setting: str) -> str:
    """Return why a TLS handshake failed, with a fix; empty if TLS is not the cause."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        text = failure.verify_message.rstrip(".")
        if "ostname" in text or "IP address" in text:
            return f"{text}: connect to the server by a name in its certificate"
        if "expired" in text or "not yet valid" in text:
            return f"the server's {text}: renew it, or check this machine's clock"
        return f"the server's certificate is not trusted ({text}): name its CA in {setting}_CA"
    if isinstance(failure, ssl.SSLError):
        return (
            f"the TLS handshake failed ({_reason(failure)}): if the server requires a client "
            f"certificate, name one in {setting}_CERT and {setting}_CERT_KEY"
        )
    return ""


def _stamp(setting: str, path: str) -> tuple[int, int, int]:
    try:
        found = Path(path).stat()
    except OSError as error:
        fix = f"the file cannot be read ({error.strerror}); give the path of a PEM file"
        raise ConfigError(setting, path, fix) from None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", "") or str(error) or type(error).__name__
    return str(reason).replace("_", " ").lower()[:200]
