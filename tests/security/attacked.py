"""A real NATS server with two attackers as users: an agent of one node, and a named auditor.

To remove a guard that is a permission, a test edits the generated configuration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from apportion.core.identity.configuration import (
    WITH_PASSWORDS,
    User,
    configuration,
    password_variable,
)
from apportion.core.identity.identity import Identity
from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.server.embedded import EmbeddedServer, find_binary
from apportion.runtime.jetstream.wire import STREAM, call_api
from tests.simulation.hostile import NODE
from tests.support.nats import Bus
from tests.support.polling import until

AGENT = Identity("agent", "agent-taken-over", nodes=(NODE,))
"""A compromised agent, which may report only its own node."""
FLOODERS = ("flooder-1", "flooder-2")
FLOODER = Identity("agent", "agent-that-floods", nodes=FLOODERS)
"""A compromised agent that floods the intake with plausible reports."""
AUDITOR = Identity("auditor", "auditor-of-the-fuzz")
Widen = Callable[[str], str]


def user_of(identity: Identity) -> User:
    """Return the NATS user of this identity.

    The environment variable that holds the user's password is named after the identity."""
    return User(identity, password_variable=password_variable(identity.name))


USERS: Sequence[User] = (*WITH_PASSWORDS, user_of(AGENT), user_of(FLOODER), user_of(AUDITOR))
HONEST = Identity("agent", "agent", nodes=(*(f"n-{n}" for n in range(1, 9)), "tenants"))
"""The honest agent of the fuzz's other nodes. It may report these nodes only."""
OF_NAMED_NODES: Sequence[User] = (
    *(each for each in USERS if each.identity.name != "agent"),
    user_of(HONEST),
)


class AttackedServer(EmbeddedServer):
    """A nats-server that has the attackers as additional users. Before it starts, the function
    `widen` changes its configuration."""

    def __init__(self, folder: Path, widen: Widen = str, users: Sequence[User] = USERS) -> None:
        super().__init__(folder, port=-1)
        self._folder = folder
        self._text = widen(configuration(users))
        self._words = {user.identity.name: f"p{secrets.token_hex(16)}" for user in users}
        self._server: asyncio.subprocess.Process | None = None
        self._client_port = 0

    @property
    def port(self) -> int:
        return self._client_port

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def url_for(self, role: str) -> str:
        return f"nats://{role}:{self._words[role]}@127.0.0.1:{self._client_port}"

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "nats.conf"
        config.write_text(self._text, "utf-8")
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "NATS_HOST": "127.0.0.1",
            "NATS_PORT": "-1",
            "NATS_MONITOR": '"127.0.0.1:-1"',
            "NATS_STORE_DIR": str(self._folder / "store"),
            "NATS_MAX_STORE": "4GB",
            **{password_variable(name): word for name, word in self._words.items()},
        }
        with (self._folder / "nats-server.log").open("wb") as log:
            self._server = server = await asyncio.create_subprocess_exec(
                find_binary(), "--config", config, "--ports_file_dir", self._folder,
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

        async def serves() -> int:
            with contextlib.suppress(FileNotFoundError, ValueError, LookupError):
                ports = self._folder / f"nats-server_{server.pid}.ports"
                urls: dict[str, list[str]] = json.loads(ports.read_text("utf-8"))
                self._monitor_port = _port(urls["monitoring"])
                return _port(urls["nats"])
            return 0

        self._client_port = await until(serves, "nats-server to serve")

    async def stop(self) -> None:
        if self._server is not None and self._server.returncode is None:
            self._server.terminate()
            await self._server.wait()


def _port(urls: list[str]) -> int:
    return int(urls[0].rpartition(":")[2])


@contextlib.asynccontextmanager
async def attacked(
    folder: Path, widen: Widen = str, users: Sequence[User] = USERS
) -> AsyncIterator[Bus]:
    """Run a NATS server that also accepts the attackers as users."""
    bus = Bus(folder)
    bus.server = AttackedServer(folder, widen, users)
    try:
        await bus.start()
        yield bus
    finally:
        await bus.stop()


async def pull_nothing(ledger: JetStreamLedger, reply: str) -> None:
    """Request records from the user's own empty consumer, with `reply` as the reply subject. The
    server then sends an empty reply to that subject.

    Returns once the server has sent its reply."""
    name = f"{ledger.wire.user}-0"
    config = {"name": name, "ack_policy": "none", "filter_subject": "apportion.v1.nothing"}
    body = {"stream_name": STREAM, "config": config}
    await call_api(ledger.wire, f"CONSUMER.CREATE.{STREAM}.{name}.apportion.v1.nothing", body)
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}"
    pull = b'{"batch":1,"no_wait":true}'
    await ledger.wire.publish(subject, pull, reply=reply, headers={})
    await ledger.request(subject, pull, 5)  # answered in turn
