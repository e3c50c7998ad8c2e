"""Clients of the in-memory API server. A `KubeLink` simulates the network between them.

Invariant: these clients behave as `runtime.kube.client` does with a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from apportion.runtime.kube.client import (
    JSON,
    TIMEOUT_S,
    Answer,
    KubeApi,
    KubeSilent,
    KubeUnavailable,
)
from tests.support.memory_kube import MemoryKube, Refused, status_body
from tests.support.memory_kube_store import BOOKMARK_S, Feed, Forgotten


class KubeLink(Protocol):
    """The simulated network between one client and the API server."""

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:
        """Let the server run `act`, unless the request is lost, and return the answer.

        Raises KubeUnavailable if the request or its answer is lost."""

    async def carry(self, lines: list[bytes], idle_s: float) -> tuple[list[bytes], bool]:
        """Return the lines of a watch that arrive, and whether the connection is still open.

        Raises KubeUnavailable if the connection was already broken, and KubeSilent if nothing
        arrived for `idle_s`."""


class PerfectKubeLink:
    """A network that loses nothing and takes no time."""

    async def ask(self, method: str, act: Callable[[], Answer]) -> Answer:  # noqa: ARG002
        await asyncio.sleep(0)
        return act()

    async def carry(
        self,
        lines: list[bytes],
        idle_s: float,  # noqa: ARG002 - all alike
    ) -> tuple[list[bytes], bool]:
        await asyncio.sleep(0)
        return lines, True


class MemoryKubeApi(KubeApi):
    """A client of the API server in memory; requests and watches go over a simulated network."""

    def __init__(
        self, server: MemoryKube, link: KubeLink | None = None, *, bookmark_s: float = BOOKMARK_S
    ) -> None:
        self._server = server
        # None if longer than any watch, because no server promises bookmarks
        self._bookmark_s = bookmark_s
        self._link: KubeLink = link or PerfectKubeLink()

    @property
    def url(self) -> str:
        return "memory"

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        def act() -> Answer:
            return self._server.handle(
                method, path, query=query, body=body, content_type=content_type
            )

        try:
            async with asyncio.timeout(timeout_s):
                return await self._link.ask(method, act)
        except TimeoutError as error:
            raise KubeUnavailable(f"{method} {path}: no answer within {timeout_s:g} s") from error

    async def lines(
        self, path: str, query: Mapping[str, str], *, idle_s: float
    ) -> AsyncIterator[bytes]:
        opened: list[Feed] = []

        def act() -> Answer:
            try:
                opened.append(self._server.watch(path, query["resourceVersion"]))
            except Refused as refused:
                return refused.answer
            return Answer(200, b"")

        try:
            async with asyncio.timeout(idle_s):
                answer = await self._link.ask("WATCH", act)
        except TimeoutError as error:
            raise KubeSilent(f"WATCH {path}: silent for {idle_s:g} s") from error
        if not answer.ok:
            raise answer.refusal()
        try:
            yield b""
            async for line in self._follow(opened[-1], float(query["timeoutSeconds"]), idle_s):
                yield line
        finally:
            for feed in opened:
                feed.close()

    async def _follow(self, feed: Feed, span_s: float, idle_s: float) -> AsyncIterator[bytes]:
        now_s = asyncio.get_running_loop().time
        heard_s = now_s()
        ends_s, bookmark_s = now_s() + span_s, now_s() + self._bookmark_s
        while now_s() < ends_s:
            if feed.broken:
                raise KubeUnavailable("the connection was lost")
            try:
                found = feed.take()
            except Forgotten:
                found = [_expired()]
                ends_s = 0.0
            if not found and now_s() >= bookmark_s:
                found, bookmark_s = feed.bookmark(), now_s() + self._bookmark_s
            if found:
                carried, holds = await self._link.carry(found, idle_s)
                for line in carried:
                    yield line
                if not holds:
                    raise KubeUnavailable("the connection was lost")
                heard_s = now_s()
            else:
                ends = min(bookmark_s, ends_s, heard_s + idle_s)
                await _wait(feed.news, ends - now_s())
                if now_s() >= heard_s + idle_s:
                    raise KubeSilent(f"silent for {idle_s:g} s")

    async def close(self) -> None:
        """Implement `KubeApi.close`, which has nothing to close here."""


async def _wait(news: asyncio.Event, longest_s: float) -> None:
    try:
        async with asyncio.timeout(longest_s):
            await news.wait()
    except TimeoutError:
        return


def _expired() -> bytes:
    body = status_body(410, "Expired", "too old resource version")
    return b'{"type":"ERROR","object":%b}' % body
