"""TLS as a client: whom to trust and who we are, from files that may be renewed while we run.

The files are looked at before every connection, so a renewed certificate needs no restart.
Invariants: a server is always checked, against the CA that was named or else the system's; a file
that cannot be used is named with its setting, and changes nothing of what was used before."""

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec

from apportion.runtime.process.config import ConfigError

BYTES_MAX = 1 << 20
NATS_TLS = "APPORTION_NATS"
"""What the variables begin with that name the files of TLS with the ledger's server."""

_NAMES = ("CA", "CERT", "CERT_KEY")
_log = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles(msgspec.Struct, frozen=True):
    """PEM files by the names of the settings that name them; empty where nothing is named.

    `ca` is whom to trust instead of the system's CAs; `certificate` and `key` are our own."""

    setting: str
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def named(self) -> bool:
        """Whether any file is named: then nothing but TLS will do."""
        return bool(self.ca or self.certificate or self.key)


def files_of(setting: str, environ: Mapping[str, str] | None = None) -> TlsFiles:
    """The files that `<setting>_CA`, `_CERT` and `_CERT_KEY` of the environment name.

    Raises ConfigError: a certificate without its key, or a key without its certificate."""
    environ = os.environ if environ is None else environ
    ca, certificate, key = (environ.get(f"{setting}_{name}", "") for name in _NAMES)
    if bool(certificate) != bool(key):
        missing, there = ("CERT_KEY", "CERT") if certificate else ("CERT", "CERT_KEY")
        raise ConfigError(
            f"{setting}_{missing}", "", f"name the PEM file that belongs to {setting}_{there}"
        )
    return TlsFiles(setting, ca, certificate, key)


def forget_files(setting: str) -> None:
    """Name none any more, here and in processes that are started: for a server without TLS.

    The one of `apportion up` is on this machine, whatever else is told of others."""
    for name in _NAMES:
        os.environ.pop(f"{setting}_{name}", None)


class ClientTls:
    """The context for the next connection, made anew when a file has changed."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._stamp: _Stamp = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """What to connect with now.

        Raises ConfigError: a file cannot be used, and none could be before."""
        try:
            files = self.files
            named = zip(_NAMES, (files.ca, files.certificate, files.key), strict=True)
            stamp = tuple(_stamp(f"{files.setting}_{name}", path) for name, path in named if path)
            if self._context is None or stamp != self._stamp:
                self._context = self._made()
                self._stamp = stamp
        except ConfigError as error:
            if self._context is None:
                raise
            _log.warning("certificates: %s; those of before are used on", error)
        return self._context

    def _made(self) -> ssl.SSLContext:
        files = self.files
        authorities = None
        if files.ca:
            authorities = read_pem(f"{files.setting}_CA", files.ca)
        try:
            context = ssl.create_default_context(cadata=authorities)
        except (ssl.SSLError, ValueError) as error:
            if not files.ca:
                raise
            fix = f"no certificate can be read in it ({_reason(error)}); name the CA's PEM file"
            raise ConfigError(f"{files.setting}_CA", files.ca, fix) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.certificate:
            load_pair(context, f"{files.setting}_CERT", Path(files.certificate), Path(files.key))
        return context


def load_pair(context: ssl.SSLContext, setting: str, certificate: Path, key: Path) -> None:
    """Present this certificate from now on.

    Raises ConfigError: the two cannot be used, or do not belong together."""
    try:
        # Asked for a password the library would ask whoever sits at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        why = f"or its key, cannot be read ({_reason(error)})"
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            why = "has another key than the private key that comes with it"
        fix = f"{why}; name a PEM certificate and its unencrypted PEM key"
        raise ConfigError(setting, str(certificate), fix) from None
    except OSError as error:
        fix = f"or its key, cannot be read ({error.strerror}); name PEM files"
        raise ConfigError(setting, str(certificate), fix) from None


def read_pem(setting: str, path: str) -> str:
    """The text of a PEM file.

    Raises ConfigError: it cannot be read, or is too large to be one."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(BYTES_MAX + 1)
    except OSError as error:
        fix = f"cannot be read ({error.strerror}); name a PEM file"
        raise ConfigError(setting, path, fix) from None
    if len(found) > BYTES_MAX:
        raise ConfigError(setting, path, f"is over {BYTES_MAX} bytes; name a PEM file")
    return found.decode("ascii", errors="replace")


def explained(failure: BaseException, setting: str) -> str:
    """Why a server was not believed, with what to do; empty where TLS is not the cause."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        text = failure.verify_message.rstrip(".")
        if "ostname" in text or "IP address" in text:
            return f"{text}: call the server by a name that its certificate has"
        if "expired" in text or "not yet valid" in text:
            return f"the server's {text}: renew it, or look at this machine's clock"
        return f"the server's certificate is not trusted ({text}): name its CA in {setting}_CA"
    if isinstance(failure, ssl.SSLError):
        return (
            f"no TLS with this server ({_reason(failure)}): if it wants to see a certificate, "
            f"name one in {setting}_CERT and {setting}_CERT_KEY"
        )
    return ""


def _stamp(setting: str, path: str) -> tuple[int, int, int]:
    try:
        found = Path(path).stat()
    except OSError as error:
        fix = f"cannot be read ({error.strerror}); name a PEM file"
        raise ConfigError(setting, path, fix) from None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", "") or str(error) or type(error).__name__
    return str(reason).replace("_", " ").lower()[:200]
