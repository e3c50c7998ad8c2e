"""Requests to the gateway: the client combines pages, and every refusal has its exit code."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import click
import msgspec
import pytest

from apportion.cli.client.gateway_client import Gateway, refused
from apportion.cli.exits import NotFound, Unreachable, Wrong
from apportion.core.answers.reads import ErrorAnswer, GangAnswer, GangPage, RevisionAnswer


class _Answering(BaseHTTPRequestHandler):
    """A gateway with three gangs that records its requests."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
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
    """A client of a server on a free port."""
    _Answering.asked = []
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
    """A list is read page by page to its end, with one request for each page."""
    revision, gangs = gateway.items("gangs", GangAnswer)
    assert (revision, [gang.group for gang in gangs]) == (7, ["g0", "g1", "g2"])
    assert len(_Answering.asked) == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [("404", NotFound), ("400", Wrong), ("408", Unreachable), ("503", Unreachable)],
)
def test_refusals(gateway: Gateway, status: str, kind: type[Exception]) -> None:
    """A refusal is raised with the gateway's error and fix, and the exit code of its kind."""
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
    """An error about a field names the verb's option for it, if there is one."""
    options = [click.Option(["--add"]), click.Option(["--at"])]
    answer = ErrorAnswer(error=error, field=field, fix="do y", rest=rest)
    with click.Context(click.Command("plan", params=[*options])):
        assert refused(answer, 400).message == said
        assert refused(answer, 404).message == f"{error}; do y"
    assert refused(answer, 400).message == f"{error}; do y"


def test_answer_that_is_none_of_ours(gateway: Gateway) -> None:
    """An answer of another web server raises an error that asks whether the URL is a gateway's."""
    with pytest.raises(Unreachable, match="is it an Apportion gateway"):
        gateway.ask("broken", answer=RevisionAnswer)


def test_names_are_quoted(gateway: Gateway) -> None:
    """A name with a slash or question mark is quoted in the path."""
    with pytest.raises(NotFound):
        gateway.ask("pods", "a/b?c", "404", answer=RevisionAnswer)
    assert _Answering.asked == ["/api/v1/pods/a%2Fb%3Fc/404"]


def test_an_empty_name_is_wrong_usage(gateway: Gateway) -> None:
    """An empty name is wrong usage, without a request."""
    with pytest.raises(Wrong, match="empty name"):
        gateway.ask("pods", "default", "", "why", answer=RevisionAnswer)
    assert _Answering.asked == []


def test_connection_that_was_closed_meanwhile(gateway: Gateway) -> None:
    """A closed connection is opened again without an error."""
    asked = {"close": 1}
    assert gateway.ask("revision", answer=RevisionAnswer, query=asked).revision == 7
    assert gateway.ask("revision", answer=RevisionAnswer).revision == 7


def test_nobody_there() -> None:
    """A refused connection is an error with the address."""
    with pytest.raises(Unreachable, match=r"cannot reach .*127\.0\.0\.1:1: "):
        Gateway("http://127.0.0.1:1").ask("revision", answer=RevisionAnswer)


@pytest.mark.parametrize("url", ["127.0.0.1:8470", "ftp://h", "http://", ""])
def test_url_that_is_none(url: str) -> None:
    """A URL without a valid scheme and host is wrong usage, with the expected form."""
    with pytest.raises(Wrong, match="http://HOST:PORT"):
        Gateway(url)
