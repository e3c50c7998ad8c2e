"""The settings of a service, read once from options and environment.

Invariants: an option takes precedence over its environment variable. A wrong setting is reported
with key, value and fix before anything starts. No message contains a password."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

import msgspec

from apportion.runtime.process.reach import Reach

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]

# Option name to environment variable, for `--help` and the documentation.
ENVIRONMENT = {
    "nats_url": "APPORTION_NATS_URL",
    "nats_key": "APPORTION_NATS_KEY",
    "nats_token": "APPORTION_NATS_TOKEN",
    "ledger_key": "APPORTION_LEDGER_KEY",
    "health": "APPORTION_HEALTH",
    "metrics_token": "APPORTION_METRICS_TOKEN",
    "log_level": "APPORTION_LOG_LEVEL",
    "log_format": "APPORTION_LOG_FORMAT",
    "stop_timeout_s": "APPORTION_STOP_TIMEOUT_S",
}

_DEFAULTS = {
    "health": "127.0.0.1:0",
    "log_level": "info",
    "log_format": "console",
    "stop_timeout_s": "20",
}
_MAX_PORT = 65_535
_MAX_STOP_TIMEOUT_S = 3_600.0


class ConfigError(Exception):
    """Error: a setting is unusable. The message has the setting, its value and the fix."""

    def __init__(self, key: str, found: object, fix: str) -> None:
        said = "not set" if found in (None, "") else "set" if found is True else repr(found)
        super().__init__(f"{key} is {said}; {fix}")
        self.key = key
        self.found = found
        self.fix = fix


class Address(msgspec.Struct, frozen=True):
    """An address to listen on. Port 0 picks a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServiceConfig(msgspec.Struct, frozen=True):
    """The settings that all services have in common."""

    nats_url: str  # do not print: it may contain a password
    health: Address
    log_level: LogLevel
    log_format: LogFormat
    stop_timeout_s: float
    nats_key: Path | None = None
    nats_token: Path | None = None
    ledger_key: Path | None = None
    metrics_token: Path | None = None  # need not exist yet

    @property
    def reach(self) -> Reach:
        """Return the settings for the service's connection to its ledger."""
        return Reach(self.nats_url, self.nats_key, self.nats_token, self.ledger_key)


def read_config(
    options: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None
) -> ServiceConfig:
    """Read the settings from `options`, then from `environ`. Raises ConfigError."""
    given = dict(options or {})
    environ = os.environ if environ is None else environ

    def text(name: str) -> tuple[str, str]:
        key = ENVIRONMENT[name]
        if given.get(name) is not None:
            return f"--{name.replace('_', '-')}", str(given[name])
        return key, environ.get(key, "") or _DEFAULTS.get(name, "")

    metrics_token = text("metrics_token")[1]
    return ServiceConfig(
        nats_url=_nats_url(*text("nats_url")),
        health=parse_address(*text("health")),
        log_level=cast("LogLevel", _one_of(*text("log_level"), get_args(LogLevel))),
        log_format=cast("LogFormat", _one_of(*text("log_format"), get_args(LogFormat))),
        stop_timeout_s=_seconds(*text("stop_timeout_s")),
        nats_key=_file(*text("nats_key")),
        nats_token=_file(*text("nats_token")),
        ledger_key=_file(*text("ledger_key")),
        metrics_token=Path(metrics_token) if metrics_token else None,
    )


def parse_address(key: str, found: str) -> Address:
    """Parse `host:port`, with an IPv6 host in brackets. Raises ConfigError."""
    fix = "write host:port, such as 0.0.0.0:8080; port 0 picks a free port"
    host, _, port = found.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ConfigError(key, found, fix)
    return Address(host, int(port))


def _nats_url(key: str, found: str) -> str:
    fix = (
        "write nats://user:password@host:port, or nats://user@host:port with a key or a token; "
        "separate several servers with commas"
    )
    if not found:
        raise ConfigError(key, found, fix)
    for part in found.split(","):
        try:
            url = urlsplit(part.strip())
            usable = url.scheme in {"nats", "tls"} and bool(url.hostname) and url.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(key, part.rpartition("@")[2], fix)
    return found


def _file(key: str, found: str) -> Path | None:
    if not found:
        return None
    path = Path(found)
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ConfigError(key, found, "name an existing file that this user can read")
    return path


def _one_of(key: str, found: str, allowed: tuple[str, ...]) -> str:
    if found.lower() not in allowed:
        raise ConfigError(key, found, f"use one of {', '.join(allowed)}")
    return found.lower()


def _seconds(key: str, found: str) -> float:
    fix = f"write a number of seconds between 0 and {_MAX_STOP_TIMEOUT_S:g}, such as 20"
    try:
        seconds = float(found)
    except ValueError:
        raise ConfigError(key, found, fix) from None
    if not 0 <= seconds <= _MAX_STOP_TIMEOUT_S:
        raise ConfigError(key, found, fix)
    return seconds
