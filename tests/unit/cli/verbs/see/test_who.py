"""Tests of what `apportion who` prints about pods on a device or node."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from click.testing import CliRunner

from apportion.cli.verbs.see.who import command, trouble, trouble_of_node
from apportion.core.answers.past import WhoPage, WhoRow
from apportion.core.answers.reads import Answer, ErrorAnswer, NodeDetail
from apportion.core.explain.views import device_answers, node_answer
from apportion_schemas import DeviceHealthChanged, NodeSilent
from tests.support.fleet import gpu, node, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, pod


def test_who_is_on_a_failed_card_is_told_what_moves_him() -> None:
    """For a failed device with pods, `who` suggests draining it. Without pods, `who` suggests
    nothing."""
    ledger = Ledger(rack("n1", 2), pod("a", cards())).settle()
    (share,) = ledger.shares("a")
    for held in ledger.node("n1").devices:
        ledger.play(
            DeviceHealthChanged(node="n1", device=held.device.id, healthy=False, reason="XID 79")
        )
    said = {each.device: trouble(each).plain for each in device_answers(ledger.node("n1"))}
    on = said.pop(share.device)
    assert f"`apportion drain {share.device} --reason REASON`" in on
    (other,) = said.values()
    assert "XID 79" in other
    assert "drain" not in other


class _Decisions(BaseHTTPRequestHandler):
    """A fake gateway that serves the shares of a node in pages of two rows."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        status: int = 404
        answer: Answer = ErrorAnswer(error="no node")
        if parts.path == "/api/v1/who":
            skip = int(parse_qs(parts.query).get("continue", ["0"])[0])
            rows = tuple(DECIDED[skip : skip + 2])
            more = str(skip + 2) if DECIDED[skip + 2 :] else ""
            status, answer = 200, WhoPage(revision=9, since=9, items=rows, next=more)
        if parts.path == "/api/v1/nodes/n1":
            status, answer = 200, NodeDetail(9, node_answer(NODE), tuple(device_answers(NODE)))
        body = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def gateway() -> Iterator[str]:
    """Run the fake gateway and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Decisions) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_who_held_the_cards_of_a_node_is_told_card_by_card(gateway: str) -> None:
    """`who` for a node lists shares by device index. Shares of devices that were removed come
    last."""
    by_card = [("n1-z", 8), ("n1-b", 7), ("n1-b", 8), ("n1-a", 9), ("n1-0", 6)]
    asked = ["n1", "--gateway", gateway]
    wide = {"COLUMNS": "200"}
    shown = CliRunner(env=wide).invoke(command, asked).stdout
    lines = [line.split() for line in shown.splitlines()]
    at = lines[0].index("DEVICE")
    assert [(line[at], int(line[-1])) for line in lines[1:-1]] == by_card[:-1]
    assert lines[-1][:2] == ["n1", "n1-0"], "it has no number any more"
    assert lines[0][:3] == ["NODE", "#", "DEVICE"]
    assert [line[1] for line in lines[1:-1]] == ["0", "1", "1", "2"]
    assert [line[lines[0].index("CORES") + 1] for line in lines[1:-1]] == ["30", "30", "50", "-"]
    said = json.loads(CliRunner().invoke(command, [*asked, "--json"]).stdout)
    assert [(row["device"], row["decision_revision"]) for row in said["items"]] == by_card


def held(device: str, decision: int, *, cores: int = 30) -> WhoRow:
    """Return a row about a share of this device. `decision` is the revision of the share's
    placement."""
    return WhoRow(
        namespace="default", pod="a", uid="a", container="main", device=device, node="n1",
        memory_mib=1000, cores=cores, from_revision=decision, from_time="2026-01-01T00:00:00Z",
        to_revision=0, to_time="", decision_revision=decision,
    )  # fmt: skip


DECIDED = [held("n1-0", 6), held("n1-b", 7), held("n1-b", 8, cores=50), held("n1-z", 8)]
DECIDED += [held("n1-a", 9, cores=0)]
CARDS = [gpu(name, index=index) for index, name in enumerate(("n1-z", "n1-b", "n1-a"))]
NODE = Ledger(node("n1", *CARDS)).node("n1")


def test_who_is_on_a_node_that_is_not_heard_is_told_what_moves_him() -> None:
    """For a silent node with pods, `who` suggests draining it. Without pods, `who` suggests
    nothing."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), pod("a", cards())).settle()
    on = ledger.where("a")
    for name in ("n1", "n2"):
        ledger.play(NodeSilent(node=name, grace_s=40))
        said = trouble_of_node(node_answer(ledger.node(name))).plain
        assert "not reporting" in said
        assert (f"`apportion drain {name} --reason REASON`" in said) == (name == on)
