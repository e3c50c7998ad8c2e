"""Collect the evidence of a failed round, so that the cause can be found.

The history has each fault and the servers' log lines in order of time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.servers import Cluster
from tests.faults.services import Service
from tests.faults.shaking import Deed

SERVICE_LINES = 5
HISTORY = "history"
_SAID = re.compile(r"\[\d+\] \d{4}/\d\d/\d\d (\d\d:\d\d:\d\d\.\d+) \[(\w+)\] (.*)")
_TELLING = re.compile(
    r"new (stream|metadata) leader|reset|truncat|recover|snapshot|catchup|Starting nats-server",
    re.IGNORECASE,
)
_NOISE = re.compile(r"Healthcheck failed|authentication error|Error trying to connect to route")


def history(cluster: Cluster, deeds: Sequence[Deed]) -> list[str]:
    """Return all faults, and the servers' log lines about leaders, stores and errors, in order of
    time."""
    lines = [(deed.time, f"{deed.time} -- {deed.what}") for deed in deeds]
    for server in cluster.servers:
        lines += _said(server.name, server.log_path)
    return [line for _, line in sorted(lines)]


def _said(name: str, log: Path) -> Iterator[tuple[str, str]]:
    last = ""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        said = _SAID.fullmatch(line)
        if said is None or _NOISE.search(line):
            continue
        time, level, text = said.groups()
        if text != last and (level != "INF" or _TELLING.search(text)):
            yield time, f"{time} {name} [{level}] {text}"
        last = text


async def holdings(cluster: Cluster) -> list[str]:
    """Return one line for each server: the revisions in its store, and the leader it reports."""
    lines = []
    for server in cluster.servers:
        held = await server.holds()
        told = "says nothing"
        if held is not None:
            told = f"holds {held.first} to {held.last}, its leader is {held.leader or 'nobody'}"
        lines.append(f"{server.name} {told}")
    return lines


def last_words(services: Sequence[Service]) -> list[str]:
    """Return the last log lines of each service."""
    words = []
    for service in services:
        said = [line for line in service.log if line.get("level") != "debug"][-SERVICE_LINES:]
        words.append(f"{service.name}: {said}")
    return words


def write(folder: Path, services: Sequence[Service], lines: Sequence[str]) -> None:
    """Write the services' logs and the history into the round's folder."""
    (folder / HISTORY).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for service in services:
        text = "".join(json.dumps(line) + "\n" for line in service.log)
        (folder / f"{service.name}.log").write_text(text, encoding="utf-8")
