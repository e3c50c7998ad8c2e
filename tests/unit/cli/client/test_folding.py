"""Tests that the CLI waits while a gateway folds the ledger, and fails if the gateway stays
unready."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from apportion.cli.client.gateway_client import Gateway
from apportion.cli.exits import Unreachable
from apportion.core.answers.reads import RevisionAnswer


@contextmanager
def answering(*answers: tuple[int, bytes, str]) -> Iterator[str]:
    """Run a server that gives these answers in turn and then repeats the last one. Yield its
    URL."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, retry_after = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


FOLDING = (503, b'{"error": "the gateway is not ready: reading the ledger, at revision 7"}', "1")
HALTED = (503, b'{"error": "the gateway is not ready: halted"}', "")


def test_it_is_waited_for_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """While the gateway is folding the ledger, the CLI waits and prints a single note on standard
    error."""
    with answering(FOLDING, FOLDING, (200, b'{"revision": 9}', "")) as url:
        assert Gateway(url).ask("revision", answer=RevisionAnswer).revision == 9
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("at revision 7") == 1


@pytest.mark.parametrize(("answer", "patience_s"), [(HALTED, 60.0), (FOLDING, 0.1)])
def test_patience_has_an_end(answer: tuple[int, bytes, str], patience_s: float) -> None:
    """The CLI stops waiting at its timeout, or at once if the gateway does not say when to
    retry."""
    with answering(answer) as url, pytest.raises(Unreachable, match="not ready"):
        Gateway(url, patience_s=patience_s).ask("revision", answer=RevisionAnswer)
