"""An attacker with an agent's or an auditor's password, which tries everything that it permits.

    python -m tests.security.attacker agent --seed 1      the URL is in APPORTION_NATS_URL
    python -m tests.security.attacker flood --node NODE    plausible usage records, without a pause
    python -m tests.security.attacker connections          as many connections as it gets

Half of the payloads are invalid. Each second the attacker prints its actions as a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import resource
import secrets
import socket
import threading
from collections import Counter
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from click import echo

from apportion.core.identity.configuration import SUBSCRIPTIONS_OF_A_FLEET
from apportion.core.identity.identity import EVERY_NODE, Identity
from apportion.core.identity.permissions import permissions_of
from apportion.core.intake.answers import decode_answer, subject_of_node
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.client import JetStreamLedger, connect
from apportion.runtime.ledger.port import LedgerError
from apportion.runtime.ledger.reader import Reader, StateFold
from apportion.runtime.process.clock import SystemClock, rfc3339
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import Event, Host, NodeReported, encode
from tests.security.attacked import AGENT, AUDITOR
from tests.simulation.hostile import NODE, SUBJECT, Hostile

IDENTITIES: Final = {"agent": AGENT, "auditor": AUDITOR}
CLOCK: Final = SystemClock()
READING: Final = "apportion.reading."
PERMISSIONS_OF_ALL: Final = permissions_of(Identity("agent", "agent", (EVERY_NODE,))).publish
"""Subjects on which an agent of all nodes may publish, such as the server's API."""
EACH_S: Final = 0.01
MOST: Final = SUBSCRIPTIONS_OF_A_FLEET
GARBAGE: Final = (b"", b"{}", b"[" * 500, b"\xff\xfe", b'{"batch":1000000}', b"x" * 100_000)


class Attacker:
    """An attacker with one identity, which attacks at random from a seed."""

    def __init__(self, ledger: JetStreamLedger, role: str, seed: int) -> None:
        self._ledger = ledger
        self._chance = random.Random(f"{seed}/{role}")
        self._may = permissions_of(IDENTITIES[role])
        self._role = role
        self._hostile = Hostile(self._chance)
        self._cluster = StateFold(quiet=True)
        self.done: Counter[str] = Counter()

    @property
    def _state(self) -> State:
        return self._cluster.state

    async def read_along(self, ledger: JetStreamLedger) -> None:
        """Follow the ledger to learn what to attack.

        Ends early if the reader fails, for example because an auditor's own attacks broke its
        consumer."""
        reader: Reader[Any] = Reader(ledger, self._cluster, metrics=Metrics())
        try:
            await reader.run()
        except LedgerError:
            self.done["reader ended"] += 1

    async def attack(self) -> None:
        """Attack again and again until cancelled."""
        deeds = [self._permitted, self._permitted, self._forbidden, self._listen]
        if self._role == "agent":
            deeds += [self._ask] * 6
        while True:
            deed = self._chance.choice(deeds)
            try:
                await deed()
            except LedgerError as error:
                self.done[type(error).__name__] += 1
            self.done[deed.__name__.strip("_")] += 1
            await CLOCK.pause(EACH_S)

    async def _ask(self) -> None:
        """Send hostile reports to the intake, on the subject of the agent's node."""
        for payload in self._hostile.payloads(self._state):
            await self._send(SUBJECT, payload)

    async def _permitted(self) -> None:
        subject = self._filled(self._chance.choice(self._may.publish))
        await self._send(subject, self._payload(subject))

    async def _forbidden(self) -> None:
        node = self._name()
        subject = self._chance.choice(
            (f"apportion.v1.inventory.{node}", f"apportion.v1.placement.{node}",
             f"apportion.intake.{node}", f"apportion.beat.agent.{node}",
             f"apportion.usage.{node}", "$JS.API.STREAM.PURGE.APPORTION",
             "$JS.API.STREAM.DELETE.APPORTION", f"apportion.command.agent.{node}",
             "$JS.API.CONSUMER.CREATE.APPORTION.scheduler-0",
             "$JS.API.CONSUMER.DELETE.APPORTION.binder", "_INBOX_scheduler.x.1")
        )  # fmt: skip
        await self._send(subject, self._payload(subject))

    async def _listen(self) -> None:
        """On every 50th call, subscribe to a subject pattern that the server permits."""
        if self.done["listen"] % 50 == 0:
            pattern = self._filled(self._chance.choice(self._may.subscribe))
            await self._ledger.serve(pattern, _ignore)

    async def _send(self, subject: str, payload: bytes) -> None:
        await self._ledger.wire.publish(
            subject, payload, reply=self._reply(), headers=self._headers()
        )

    def _reply(self) -> str:
        """Return a reply subject: mostly the attacker's own inbox, sometimes a forbidden
        subject."""
        own = self._ledger.wire.new_inbox()
        others = (
            "apportion.v1.placement.n-1", f"apportion.v1.inventory.{self._name()}",
            "$JS.API.STREAM.DELETE.APPORTION",
            "$JS.ACK.APPORTION.binder.1.1.1.1.0", "_INBOX_scheduler.x.1", "_INBOX_intake.x.1",
            "$JS.API.STREAM.PURGE.APPORTION", SUBJECT, "",
        )  # fmt: skip
        return own if self._chance.random() < 0.6 else self._chance.choice(others)

    def _headers(self) -> dict[str, str]:
        if self._chance.random() < 0.5:
            return {}
        waiting = [pod for pod in self._state.pods.values() if pod.placement is None]
        fence = f"{waiting[0].uid}/{waiting[0].attempt}/placed" if waiting else "x/1/placed"
        every = {
            "Nats-Msg-Id": fence,
            "Nats-Expected-Last-Subject-Sequence": str(self._chance.randrange(1000)),
            "Nats-Batch-Id": f"b{self._chance.randrange(10_000)}",
            "Nats-Batch-Sequence": str(self._chance.randrange(3)),
            "Nats-Batch-Commit": "1",
            "Nats-Rollup": "all",
            "Nats-TTL": "1s",
            "X": "y" * 2000,
        }
        names = self._chance.sample(sorted(every), self._chance.randint(1, 4))
        return {name: every[name] for name in names}

    def _payload(self, subject: str) -> bytes:
        if self._chance.random() < 0.3:
            return self._chance.choice(GARBAGE)
        if "CONSUMER.CREATE" in subject:
            return self._consumer(subject)
        if "beat" in subject or "usage" in subject:
            return msgspec.json.encode(
                {"nodes": [self._name(), self._name()], "node": self._name(), "time": "t"}
            )
        if subject.startswith(READING):
            return self._reading()
        if "MSG.GET" in subject:
            return msgspec.json.encode({"seq": self._chance.randrange(-5, 10_000)})
        return next(iter(self._hostile.payloads(self._state)))

    def _reading(self) -> bytes:
        """Return a read request for the intake. Most of these requests are ones that the intake
        must refuse."""
        apis = [each.removeprefix("$JS.API.") for each in PERMISSIONS_OF_ALL if "API" in each]
        api = self._filled(self._chance.choice(apis))
        body = self._chance.choice(
            (self._consumer("$JS.API.CONSUMER.CREATE.APPORTION.x"), *GARBAGE, b'{"seq":1}')
        )
        try:
            return msgspec.json.encode({"api": api, "body": msgspec.json.decode(body)})
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return b'{"api":"' + api.encode() + b'","body":' + body + b"}"

    def _consumer(self, subject: str) -> bytes:
        """Return settings for a consumer, with a randomly chosen subject for its deliveries."""
        name = subject.split(".")[5]
        deliver = self._chance.choice(
            ("", self._ledger.wire.new_inbox(), "apportion.v1.placement.n-1", SUBJECT,
             "$JS.API.CONSUMER.DELETE.APPORTION.binder", f"apportion.intake.{self._name()}")
        )  # fmt: skip
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": self._chance.choice(("none", "explicit")),
            "deliver_policy": "all",
            "mem_storage": True,
            "inactive_threshold": 1_000_000_000,
        }
        if deliver:
            config["deliver_subject"] = deliver
        if self._chance.random() < 0.3:
            config["filter_subject"] = "apportion.v1.>"
        action = self._chance.choice(("", "create", "update"))
        return msgspec.json.encode({"stream_name": "APPORTION", "config": config, "action": action})

    def _filled(self, pattern: str) -> str:
        parts = [self._name() if part in "*>" else part for part in pattern.split(".")]
        return ".".join(parts)

    def _name(self) -> str:
        known = sorted(self._state.nodes)[:50] or ["n-1"]
        return self._chance.choice((*known, "binder", "scheduler-0", "x"))


async def _ignore(_subject: str, _payload: bytes) -> None:
    return None


async def _flood(ledger: JetStreamLedger, node: str, done: Counter[str]) -> None:
    """Report the node again and again, eight reports at a time.

    Each report has new labels, which are very long."""

    async def reports(worker: int) -> None:
        for number in itertools.count():
            label = f"{worker}-{number}-{secrets.token_hex(4)}"
            host = Host(cpu_milli=1, memory_mib=1, labels={f"l{n}": label * 60 for n in range(90)})
            report = NodeReported(node=node, devices=(), host=host)
            event = Event(id=label, source=f"agent/{node}", time=rfc3339(CLOCK.now()), data=report)
            try:
                said = await ledger.request(subject_of_node(node), encode(event), 10)
            except LedgerError as error:
                done[type(error).__name__] += 1
                continue
            answer = decode_answer(said)
            done[answer.refused or ("again" if answer.again_s else "appended")] += 1

    async with asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(reports(worker))


def _take_connections(url: str, done: Counter[str]) -> None:
    """Open connections with the maximum number of subscriptions each, and never read from them.

    The first connection determines how many subscriptions a connection may have.
    """
    found = urlsplit(url)
    login = {"user": found.username, "pass": found.password, "verbose": False, "protocol": 1}
    hears = f"_INBOX_{found.username}"
    lines = [f"SUB {hears}.{number} {number}\r\n".encode() for number in range(1, MOST)]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held: list[socket.socket] = []
    while True:
        try:
            opened = socket.create_connection((found.hostname, found.port or 0), timeout=5)
            held.append(opened)
            opened.sendall(b"CONNECT %s\r\nPING\r\n" % json.dumps(login).encode())
            _read_answer(opened)
            opened.sendall(b"".join(lines))
            if not done["open"]:
                opened.sendall(b"PING\r\n")
                del lines[MOST - 1 - _read_answer(opened) :]
                done["subscriptions"] = len(lines)
            done["open"] += 1
        except OSError:
            if held:
                held.pop().close()
            done["refused"] += 1
            threading.Event().wait(0.1)


def _read_answer(opened: socket.socket) -> int:
    """Read until the reply to a PING. Return the number of errors before it.

    Raises ConnectionRefusedError if the server closes the connection."""
    said = b""
    while b"PONG" not in said:
        more = opened.recv(65_536)
        if not more:
            raise ConnectionRefusedError
        said += more
    return said.count(b"-ERR")


async def main() -> None:
    """Run the attacker until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=[*sorted(IDENTITIES), "flood", "connections"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--node", default=NODE)
    wanted = parser.parse_args()
    os.nice(10)  # others attack from a machine of their own
    url = os.environ["APPORTION_NATS_URL"]
    done: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        if wanted.role == "connections":
            threading.Thread(target=_take_connections, args=(url, done), daemon=True).start()
        else:
            ledger = await connect(url, name=f"attacker {wanted.role}")
            if wanted.role == "flood":
                group.create_task(_flood(ledger, wanted.node, done))
            else:
                attacker = Attacker(ledger, wanted.role, wanted.seed)
                done = attacker.done
                # One node's agent cannot read the ledger, so an auditor supplies it.
                told = os.environ.get("APPORTION_AUDITOR_URL", url)
                ears = await connect(told, name=f"attacker {wanted.role} reads")
                group.create_task(attacker.read_along(ears))
                group.create_task(attacker.attack())
        while True:
            await CLOCK.pause(1.0)
            echo(json.dumps(dict(done)))


if __name__ == "__main__":
    asyncio.run(main())
