"""Find the ledger and the gateway from the options, or from a running `apportion up`.

`up` keeps the ledger, its passwords (`credentials.json`) and `connection.json` in one folder.
Invariant: an explicit address wins, and is printed without its password."""

import functools
import os
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from apportion.cli.exits import Unreachable
from apportion.cli.usage import CONNECTION as CONNECTION_OPTIONS
from apportion.cli.usage import FILE
from apportion.runtime.process.reach import Reach
from apportion.runtime.process.tls import NATS_TLS, forget_files
from apportion.runtime.service.options import client_tls_options, keep, with_options

CONNECTION = "connection.json"
LOOK_S = 1.0
DATA_ENV = "APPORTION_DATA"
NATS_ENV = "APPORTION_NATS_URL"
NATS_KEY_ENV = "APPORTION_NATS_KEY"
NATS_TOKEN_ENV = "APPORTION_NATS_TOKEN"  # noqa: S105 - the name of a variable
LEDGER_KEY_ENV = "APPORTION_LEDGER_KEY"
GATEWAY_ENV = "APPORTION_GATEWAY"
MAX_BYTES_ENV = "APPORTION_MAX_BYTES"
TOKENS_ENV = "APPORTION_TOKENS"
TOKEN_ENV = "APPORTION_TOKEN"  # noqa: S105 - the name of a variable
CLUSTER = "kubernetes:"  # as a gateway's URL: through the API server of the kubeconfig
GATEWAY_TLS = GATEWAY_ENV  # prefix of the variables that name the TLS files for the gateway

Command = Callable[..., None]
Option = Callable[[Command], Command]


class Connection(msgspec.Struct, frozen=True):
    """The gateway's URL and the process ids of a running `apportion up`."""

    gateway: str
    processes: dict[str, int] = {}


class Where(msgspec.Struct, frozen=True):
    """The options that locate the ledger and the gateway; an empty field means not given."""

    data: Path
    nats: str = ""
    gateway: str = ""
    nats_key: Path | None = None
    nats_token: Path | None = None
    ledger_key: Path | None = None

    def reach(self, role: str = "operator") -> Reach:
        """Return how `role` connects to the ledger. Raises Unreachable."""
        if self.nats:
            return Reach(self.nats, self.nats_key, self.nats_token, self.ledger_key)
        if self.gateway == CLUSTER:  # never a ledger of this machine with the gateway of a cluster
            raise Unreachable(
                "this command also connects to the ledger, which `kubectl apportion` cannot reach "
                f'through the API server; set --nats URL or {NATS_ENV} (see "Connect for changes" '
                "in docs/get-started/kubernetes.md)"
            )
        from apportion.runtime.jetstream.server.embedded import ServerFailed, load_credentials

        forget_files(NATS_TLS)
        try:
            known = load_credentials(self.data)
        except ServerFailed as error:
            raise Unreachable(str(error)) from None
        if not self.running():  # if it runs, the server may be down for now, and we wait for it
            try:
                socket.create_connection((known.host, known.port), LOOK_S).close()
            except OSError:
                raise Unreachable(
                    f"no ledger is running in {self.data}; start `apportion up`, pass its folder "
                    f"with --data DIR, or name a ledger with --nats URL or {NATS_ENV}"
                ) from None
        return known.reach_for(role)

    def running(self) -> bool:
        """Return True if an `up` of this data folder is running."""
        return (self.data / CONNECTION).exists()

    def gateway_url(self) -> str:
        """Return the gateway's URL. Raises Unreachable."""
        if self.gateway:
            return self.gateway.rstrip("/")
        return read_connection(self.data).gateway


def default_data() -> Path:
    """Return APPORTION_DATA, or else `apportion` in XDG_STATE_HOME (`~/.local/state`)."""
    given = os.environ.get(DATA_ENV)
    return Path(given) if given else _state_folder()


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "apportion"


def elsewhere(data: Path) -> str:
    """Return the environment variables with which a verb in another terminal uses `data`.

    Our own APPORTION_DATA is ignored, because another terminal may not have it."""
    needs = {} if data == _state_folder() else {DATA_ENV: str(data)}
    if token := os.environ.get(TOKEN_ENV):
        needs[TOKEN_ENV] = str(Path(token).absolute())
    return "".join(f"{name}={shlex.quote(value)} " for name, value in needs.items())


def read_connection(data: Path) -> Connection:
    """Read the `connection.json` that an `up` wrote in this folder. Raises Unreachable."""
    path = data / CONNECTION
    try:
        return msgspec.json.decode(path.read_bytes(), type=Connection)
    except FileNotFoundError:
        raise Unreachable(
            f"no `apportion up` is running in {data}; start one, pass its folder with --data DIR, "
            f"or name a gateway with --gateway URL or {GATEWAY_ENV}"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise Unreachable(f"cannot read {path}: {error}") from None


def write_connection(data: Path, connection: Connection) -> None:
    """Write `connection.json`, readable by its owner only."""
    from apportion.runtime.files.atomic import write_whole

    write_whole(data / CONNECTION, msgspec.json.encode(connection), mode=0o600)


_DATA: Option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Data folder of a running `apportion up`.  [{DATA_ENV}]",
)
_NATS: Option = click.option(
    "--nats", default="", metavar="URL", help=f"URL of the ledger.  [{NATS_ENV}]"
)
_KEY: Option = click.option(
    "--nats-key", type=FILE, metavar="FILE", envvar=NATS_KEY_ENV, show_envvar=True,
    help="File with the nkey seed for the login to the ledger (--nats).",
)  # fmt: skip
_TOKEN: Option = click.option(
    "--nats-token", type=FILE, metavar="FILE", envvar=NATS_TOKEN_ENV, show_envvar=True,
    help="File with the token for the login to the ledger (--nats).",
)  # fmt: skip
_LEDGER_KEY: Option = click.option(
    "--ledger-key", type=FILE, metavar="FILE", envvar=LEDGER_KEY_ENV, show_envvar=True,
    help="File with the key that all writers of the ledger share. Verbs that append events need "
    "it with --nats.",
)  # fmt: skip
_GATEWAY: Option = click.option(
    "--gateway", default="", metavar="URL", help=f"URL of the gateway.  [{GATEWAY_ENV}]"
)


_GATEWAY_TOKEN: Option = click.option(
    "--token", metavar="FILE", envvar=TOKEN_ENV, callback=keep, expose_value=False,
    help=f"Token for a gateway that requires a login.  [{TOKEN_ENV}]",
)  # fmt: skip
_NATS_TLS: Option = client_tls_options("nats", NATS_TLS, "the ledger's")
_GATEWAY_TLS: Option = client_tls_options("gateway", GATEWAY_TLS, "the gateway's")
JSON: Option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def connection_options(command: Command, *options: Option) -> Command:
    """Add `options` and --data to a command, but not to its --help."""
    others = {*getattr(command, "__click_params__", ())}
    command = with_options(command, *options, _DATA)
    CONNECTION_OPTIONS.update({*command.__click_params__} - others)  # type: ignore[attr-defined]
    return command


def _where(*options: Option) -> Option:
    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            keys = {
                name: given.pop(name, None) for name in ("nats_key", "nats_token", "ledger_key")
            }
            where = Where(
                data=given.pop("data") or default_data(),
                nats=given.pop("nats", "") or os.environ.get(NATS_ENV, ""),
                gateway=given.pop("gateway", "") or os.environ.get(GATEWAY_ENV, ""),
                **keys,
            )
            command(where=where, **given)

        return connection_options(JSON(wrapped), *options)

    return decorate


# Gives a command `where` and `as_json`, and the options for a gateway.
_OF_GATEWAY = (_GATEWAY, _GATEWAY_TOKEN, _GATEWAY_TLS)
_OF_LEDGER = (_NATS, _KEY, _TOKEN, _LEDGER_KEY, _NATS_TLS)
BOTH = (*_OF_LEDGER, *_OF_GATEWAY)
asks_gateway = _where(*_OF_GATEWAY)
asks_ledger = _where(*_OF_LEDGER)  # The same for a ledger.
asks_both = _where(*BOTH)  # The same for both.
