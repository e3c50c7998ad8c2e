"""Tests of the CLI's requests to the gateway: it joins the pages of a list, and each kind of error
has its exit code."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click
import msgspec
import pytest

from apportion.cli.client.connection import TOKEN_ENV
from apportion.cli.client.gateway_client import Gateway, refused
from apportion.cli.exits import NotFound, Unreachable, Wrong
from apportion.core.answers.reads import ErrorAnswer, GangAnswer, GangPage, RevisionAnswer


class _Answering(BaseHTTPRequestHandler):
    """A fake gateway that lists three gangs in pages and records its requests."""

    protocol_version = "HTTP/1.1"
    asked: list[str]
    logins: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.logins.append(self.headers.get("Authorization", ""))
        parts = urlsplit(self.path)
        status, body = 200, b""
        if parts.path == "/api/v1/revision":
            body = msgspec.json.encode(RevisionAnswer(revision=7))
        elif parts.path == "/api/v1/gangs":
            after = int(parse_qs(parts.query).get("continue", ["0"])[0])
            gang = GangAnswer(group=f"g{after}", declared=True, min_available=1)
            after_this = str(after + 1) if after < 2 else ""
            body = msgspec.json.encode(GangPage(revision=7, items=(gang,), next=after_this))
        elif parts.path == "/api/v1/broken":
            body = b"<html>"
        else:
            status = int(parts.path.rpartition("/")[2])
            body = msgspec.json.encode(ErrorAnswer(error="no", field="x", fix="do y"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if parts.query == "close=1":
            self.close_connection = True  # without an answer, like a server that stops
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """Provide a client of the fake gateway."""
    _Answering.asked, _Answering.logins = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    client = Gateway(f"http://127.0.0.1:{server.server_port}")
    yield client
    client.close()
    server.shutdown()
    server.server_close()
    thread.join()


def test_pages_are_put_together(gateway: Gateway) -> None:
    """The client reads a list to its end, with one request for each page."""
    revision, gangs = gateway.items("gangs", GangAnswer)
    assert (revision, [gang.group for gang in gangs]) == (7, ["g0", "g1", "g2"])
    assert len(_Answering.asked) == 3


def test_a_renewed_token_is_used(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads its token for each request, because the kubelet renews the file. It reads a
    pipe only once."""
    token = tmp_path / "token"
    monkeypatch.setenv(TOKEN_ENV, str(token))
    for each in ("first", "second"):
        token.write_text(each)
        gateway.ask("revision", answer=RevisionAnswer)
    token.unlink()
    os.mkfifo(token)
    gateway.ask("revision", answer=RevisionAnswer)
    assert _Answering.logins == ["Bearer first", "Bearer second", "Bearer second"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [("404", NotFound), ("400", Wrong), ("408", Unreachable), ("503", Unreachable)],
)
def test_refusals(gateway: Gateway, status: str, kind: type[Exception]) -> None:
    """If the gateway refuses a request, the client raises the gateway's error and fix, with the
    exit code of that kind of error."""
    with pytest.raises(kind, match="no; do y"):
        gateway.ask(status, answer=RevisionAnswer)


@pytest.mark.parametrize(
    ("error", "field", "rest", "said"),
    [
        ("add is '0x': no node", "add", " is '0x': no node", "--add is '0x': no node; do y"),
        (
            "at: 'noon' is not a time",
            "at",
            ": 'noon' is not a time",
            "--at: 'noon' is not a time; do y",
        ),
        ("devices: model 'X'", "add", "", "--add: devices: model 'X'; do y"),
        ("address is 7", "add", "", "--add: address is 7; do y"),
        ("limit is 'x'", "limit", " is 'x'", "limit is 'x'; do y"),
        ("no", "", "", "no; do y"),
    ],
)
def test_what_is_wrong_is_said_of_the_option(error: str, field: str, rest: str, said: str) -> None:
    """If an error is about a request field, the message names the command-line option for that
    field, if the verb has one."""
    options = [click.Option(["--add"]), click.Option(["--at"])]
    answer = ErrorAnswer(error=error, field=field, fix="do y", rest=rest)
    with click.Context(click.Command("plan", params=[*options])):
        assert refused(answer, 400).message == said
        assert refused(answer, 404).message == f"{error}; do y"
    assert refused(answer, 400).message == f"{error}; do y"


def test_answer_that_is_none_of_ours(gateway: Gateway) -> None:
    """If another web server answers, the error asks whether the URL is that of a gateway."""
    with pytest.raises(Unreachable, match="is it an Apportion gateway"):
        gateway.ask("broken", answer=RevisionAnswer)


def test_names_are_quoted(gateway: Gateway) -> None:
    """A slash or question mark in a name is percent-encoded in the request path."""
    with pytest.raises(NotFound):
        gateway.ask("pods", "a/b?c", "404", answer=RevisionAnswer)
    assert _Answering.asked == ["/api/v1/pods/a%2Fb%3Fc/404"]


def test_an_empty_name_is_wrong_usage(gateway: Gateway) -> None:
    """An empty name is a usage error, and the client sends no request."""
    with pytest.raises(Wrong, match="empty name"):
        gateway.ask("pods", "default", "", "why", answer=RevisionAnswer)
    assert _Answering.asked == []


def test_connection_that_was_closed_meanwhile(gateway: Gateway) -> None:
    """If the gateway has closed an idle connection, the client opens a new one without an error."""
    asked = {"close": 1}
    assert gateway.ask("revision", answer=RevisionAnswer, query=asked).revision == 7
    assert gateway.ask("revision", answer=RevisionAnswer).revision == 7


def test_nobody_there() -> None:
    """If the gateway refuses the connection, the error has its address."""
    with pytest.raises(Unreachable, match=r"cannot reach .*127\.0\.0\.1:1: "):
        Gateway("http://127.0.0.1:1").ask("revision", answer=RevisionAnswer)


@pytest.mark.parametrize("url", ["127.0.0.1:8470", "ftp://h", "http://", ""])
def test_url_that_is_none(url: str) -> None:
    """A URL without a valid scheme and host is a usage error that shows the expected form."""
    with pytest.raises(Wrong, match="http://HOST:PORT"):
        Gateway(url)
