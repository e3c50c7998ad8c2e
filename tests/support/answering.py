"""Run a gateway that returns fixed answers, for tests of command-line verbs that only read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import msgspec

from apportion.core.answers.past import PodNames
from apportion.core.answers.reads import Answer, ErrorAnswer, NodeDetail, Page
from apportion.core.explain.views import device_answers, node_answer
from tests.support.ledger_of import Ledger

NOT_THERE = ErrorAnswer(error="there is none")


@contextmanager
def answering(answers: Mapping[str, Answer]) -> Iterator[str]:
    """Serve each answer at its path below /api/v1/, and 404 at any other path. Yield the server's
    URL."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(urlsplit(self.path).path.removeprefix("/api/v1/"), NOT_THERE)
            body = msgspec.json.encode(answer)
            self.send_response(404 if isinstance(answer, ErrorAnswer) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def answers_of(ledger: Ledger) -> dict[str, Answer]:
    """Return a gateway's answers about the nodes and devices of a ledger, with no pods."""
    nodes = ledger.state.nodes.values()
    cards = tuple(each for node in nodes for each in device_answers(node))
    shown: dict[str, Any] = {
        f"nodes/{node.name}": NodeDetail(9, node_answer(node), tuple(device_answers(node)))
        for node in nodes
    }
    shown["nodes"] = Page(revision=9, items=tuple(map(node_answer, nodes)))
    shown["devices"] = Page(revision=9, items=cards)
    shown["pods"] = Page(revision=9, items=())
    return shown


def without_pods(name: str) -> dict[str, Answer]:
    """Return the gateway's history of a pod that never existed."""
    return {f"history/pods/{name}": PodNames(revision=9, items=())}
