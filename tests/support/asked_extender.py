"""An extender of kube-scheduler that notes which nodes passed its filters, and lets none through.

So nothing is ever placed, and each pod is asked about beside the very same others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SETTINGS = {
    "filterVerb": "filter", "prioritizeVerb": "", "bindVerb": "", "managedResources": [],
    "nodeCacheCapable": True,
}  # fmt: skip
"""What a kube-scheduler's configuration says of it, beside its address."""


@contextmanager
def asked_extender() -> Iterator[tuple[str, dict[str, set[str]]]]:
    """Its address, and by pod the nodes that kube-scheduler found to fit."""
    fits: dict[str, set[str]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = {key.lower(): value for key, value in body.items()}  # as Go reads it
            fits[asked["pod"]["metadata"]["name"]] = set(asked["nodenames"])
            answer = json.dumps({"nodenames": [], "failedNodes": {}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing: the test says what went wrong."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fits
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
