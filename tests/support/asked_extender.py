"""Run a kube-scheduler extender that records the nodes that kube-scheduler offers, and rejects all
of them.

No pod is ever placed, so the cluster is the same each time kube-scheduler judges a pod."""

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
"""The extender's entry in a kube-scheduler's configuration, without its address."""


@contextmanager
def asked_extender() -> Iterator[tuple[str, dict[str, set[str]]]]:
    """Run the extender. Yield its URL and, for each pod, the nodes that passed kube-scheduler's
    filters."""
    fits: dict[str, set[str]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            # Go ignores case in field names
            asked = {key.lower(): value for key, value in body.items()}
            fits[asked["pod"]["metadata"]["name"]] = set(asked["nodenames"])
            answer = json.dumps({"nodenames": [], "failedNodes": {}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Log nothing, because the test itself reports failures."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fits
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
