"""Tests of the code that all handlers of the read API share."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from apportion.gateway.api import answering
from apportion.gateway.api.answering import write_in_time


async def test_who_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a client does not read its answer, the gateway closes the connection after the write
    timeout."""
    monkeypatch.setattr(answering, "WRITE_TIMEOUT_S", 0.2)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await write_in_time(request, response, bytes(1 << 20))
        except ConnectionError as error:
            ended.set_result(str(error))
        return response

    application = web.Application()
    application.router.add_get("/", endless)
    async with TestServer(application) as server, asyncio.timeout(20):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await ended
        writer.transport.abort()
