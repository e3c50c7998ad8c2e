"""Addresses, Services and names of a cluster on this machine, for pods that run under podman.

Each pod has its own network namespace and address. A Service has its ClusterIP on an interface of
this machine, where a relay passes each connection on to a ready pod, as kube-proxy did in its
userspace mode. A DNS server answers for Services and their pods. NetworkPolicies, UDP and
session affinity are not supported. Invariant: the interface and the network are gone after the
block."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
from collections.abc import Iterator
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from tests.support.containers import Podman
from tests.support.kube_api import KubeApi
from tests.support.polling import until

NETWORK: Final = "apportion-stand"
INTERFACE: Final = "stand0"
HOST: Final = "10.78.0.1"
"""This machine's address in the pod network: of the nodes and the DNS server."""
PODS: Final = "10.77"
SERVICES: Final = "10.96.0.0/16"
DOMAIN: Final = "cluster.local"
KUBERNETES: Final = ("default", "kubernetes")
LOOK_S: Final = 0.3
FOREVER_S: Final = 864_000.0
A, IN = 1, 1


Address = tuple[str, int]
"""An IP address and a port."""


class Network:
    """The network of one cluster. `async with` makes and removes it."""

    def __init__(self, api: KubeApi, server: int) -> None:
        """Configure the network of the API server that listens on this port."""
        self._api = api
        self._server = server
        self._names: dict[str, list[str]] = {}
        self._ports: dict[Address, tuple[Address, ...]] = {}
        """By address of a Service: the ready pods behind it."""
        self._relays: dict[Address, asyncio.Server] = {}
        self._turns = count()
        self._open: set[asyncio.Task[Any]] = set()
        self._looking: asyncio.Task[Any] | None = None
        self._dns: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        self._remove()
        _ip("link", "add", INTERFACE, "type", "bridge")
        _ip("addr", "add", f"{HOST}/32", "dev", INTERFACE)
        _ip("link", "set", INTERFACE, "up")
        subnet = (f"--subnet={PODS}.0.0/16", f"--gateway={PODS}.0.1")
        Podman().run("network", "create", "--disable-dns", *subnet, NETWORK)
        loop = asyncio.get_running_loop()
        self._dns, _ = await loop.create_datagram_endpoint(
            lambda: Names(self._names), local_addr=(HOST, 53)
        )
        await self._look()
        looking = until(self._look, "the end", timeout_s=FOREVER_S, interval_s=LOOK_S)
        self._looking = asyncio.create_task(looking)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for relay in self._relays.values():
            relay.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open)
        if self._dns is not None:
            self._dns.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(AssertionError):
            Podman().run("network", "rm", "--force", NETWORK)
        _ip("link", "del", INTERFACE, check=False)

    async def _look(self) -> bool:
        """Serve the Services that exist now. Return False, so that `until` calls this method
        again."""
        slices = "/apis/discovery.k8s.io/v1/endpointslices"
        with contextlib.suppress(AssertionError):  # the API server is busy
            services = await asyncio.to_thread(self._api.request, "GET", "/api/v1/services")
            found = await asyncio.to_thread(self._api.request, "GET", slices)
            await self._serve(services["items"], found["items"])
        return False

    async def _serve(self, services: list[dict[str, Any]], slices: list[dict[str, Any]]) -> None:
        names: dict[str, list[str]] = {}
        ports: dict[Address, tuple[Address, ...]] = {}
        for service in services:
            about, ip = service["metadata"], service["spec"].get("clusterIP", "None")
            key = (about["namespace"], about["name"])
            mine = [each for each in slices if _owner(each) == key]
            base = f"{key[1]}.{key[0]}.svc.{DOMAIN}"
            if ip != "None":
                names[base] = [ip]
                for port in service["spec"]["ports"]:
                    targets = tuple(_targets(mine, port.get("name")))
                    if key == KUBERNETES:
                        targets = (("127.0.0.1", self._server),)
                    ports[ip, port["port"]] = targets
                continue
            unready = service["spec"].get("publishNotReadyAddresses", False)
            names[base] = []
            for each in _endpoints(mine, unready=unready):
                names[base] += each["addresses"]
                if host := each.get("hostname"):
                    names[f"{host}.{base}"] = each["addresses"]
        self._names.clear()
        self._names.update(names)
        self._ports = ports
        for gone in self._relays.keys() - ports.keys():
            self._relays.pop(gone).close()
        for new in sorted(ports.keys() - self._relays.keys()):
            _ip("addr", "replace", f"{new[0]}/32", "dev", INTERFACE)
            self._relays[new] = await asyncio.start_server(partial(self._relay, new), *new)

    async def _relay(
        self, port: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        targets = self._ports.get(port, ())
        try:
            if targets:
                await passed_on(targets[next(self._turns) % len(targets)], reader, writer)
            else:
                await _closed(writer)
        except asyncio.CancelledError:
            pass  # at the end of the cluster
        finally:
            self._open.discard(task)


async def passed_on(
    target: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Pass a connection on to this address, until both sides have closed it.

    Return False if the address cannot be reached."""
    try:
        there, away = await asyncio.open_connection(*target)
    except OSError:
        await _closed(writer)
        return False

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        with contextlib.suppress(OSError):
            sink.close()

    try:
        await asyncio.gather(pump(reader, away), pump(there, writer))
    finally:
        await asyncio.gather(_closed(writer), _closed(away))
    return True


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Names(asyncio.DatagramProtocol):
    """A DNS server for the names of a cluster. It knows no other names."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self._names = names

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        """Answer with the addresses of a name, or that the name does not exist."""
        number, _, *_ = struct.unpack("!6H", data[:12])
        labels, at = [], 12
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode().lower())
            at += 1 + size
        question = data[12 : at + 5]
        (kind,) = struct.unpack("!H", data[at + 1 : at + 3])
        found = self._names.get(".".join(labels))
        ips = found if found and kind == A else []
        flags = 0x8580 | (0 if found is not None else 3)
        answer = struct.pack("!6H", number, flags, 1, len(ips), 0, 0) + question
        for ip in ips:
            answer += struct.pack("!HHHIH", 0xC00C, A, IN, 1, 4) + socket.inet_aton(ip)
        self._transport.sendto(answer, address)


def _owner(each: dict[str, Any]) -> tuple[str, str]:
    about = each["metadata"]
    return about["namespace"], about.get("labels", {}).get("kubernetes.io/service-name", "")


def _endpoints(slices: list[dict[str, Any]], *, unready: bool = False) -> Iterator[dict[str, Any]]:
    for each in slices:
        for endpoint in each["endpoints"] or ():
            if unready or endpoint["conditions"].get("ready", True):
                yield endpoint


def _targets(slices: list[dict[str, Any]], name: str | None) -> Iterator[Address]:
    for each in slices:
        for port in each["ports"] or ():
            if port.get("name", "") == (name or ""):
                for endpoint in _endpoints([each]):
                    yield from ((ip, port["port"]) for ip in endpoint["addresses"])


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["/usr/sbin/ip", *words], check=check, capture_output=True)
