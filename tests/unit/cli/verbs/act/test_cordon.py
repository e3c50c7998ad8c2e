"""Tests of what `cordon` and `uncordon` print if another cordon exists."""

import pytest

from apportion.cli.client.cordons import stands_since
from apportion.cli.verbs.act.cordon import not_cordoned, still_off
from apportion.core.answers.reads import NodeDetail
from apportion.core.devices.cordons import cordoning
from apportion.core.explain.views import device_answers, node_answer
from apportion_schemas import DeviceCordoned, DeviceHealthChanged, NodeCordoned
from apportion_schemas.quantities import Payload
from tests.support.fleet import rack
from tests.support.ledger_of import Ledger
from tests.support.pods import placed, pod, share

FAILED = DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79")
HELD = placed(shares=[share("n1-g1")])
CORDONED = DeviceCordoned(device="n1-g1", by="ann", reason="fan")
OF_NODE = NodeCordoned(node="n1", by="bob", reason="move")


def detail_after(events: tuple[Payload, ...]) -> NodeDetail:
    """Return the gateway's answer about a node with two devices after these events, at revision
    7."""
    node = Ledger(rack("n1", 2), *events).state.nodes["n1"]
    return NodeDetail(7, node=node_answer(node), devices=tuple(device_answers(node)))


@pytest.mark.parametrize(
    ("events", "device", "said"),
    [
        ((), "", ""),
        ((FAILED,), "", "still not schedulable: n1-g0 has failed: XID 79"),
        ((CORDONED,), "", "still not schedulable: n1-g1 has its own cordon: fan (ann)"),
        (
            (FAILED, CORDONED), "",
            "still not schedulable: n1-g0 has failed: XID 79, n1-g1 has its own cordon: fan (ann)",
        ),
        ((pod(), HELD, rack("n1", 1)), "", "still not schedulable: n1-g1 is no longer reported"),
        ((CORDONED,), "n1-g1", ""),
        ((FAILED,), "n1-g1", ""),
        ((FAILED,), "n1-g0", "still not schedulable: n1-g0 has failed: XID 79"),
    ],
)  # fmt: skip
def test_what_is_off_offer_for_another_reason(
    events: tuple[Payload, ...], device: str, said: str
) -> None:
    """After uncordoning a node or device, `uncordon` prints what is still unschedulable there, and
    why."""
    assert still_off(detail_after(events), device) == said


@pytest.mark.parametrize(
    ("events", "device", "said"),
    [
        ((), "", ""),
        ((CORDONED,), "", "; still not schedulable: n1-g1 has its own cordon: fan (ann)"),
        ((CORDONED,), "n1-g0", ""),
        ((OF_NODE,), "n1-g0", "; its node n1 is: move (bob)"),
        ((FAILED,), "n1-g0", "; still not schedulable: n1-g0 has failed: XID 79"),
    ],
)  # fmt: skip
def test_who_uncordons_a_node_for_its_card_is_told(
    events: tuple[Payload, ...], device: str, said: str
) -> None:
    """If the node given to `uncordon` is not cordoned, the message lists its cordoned devices. If
    the device given is not cordoned, the message names its node's cordon."""
    told = not_cordoned(detail_after(events), device)
    assert told.startswith(f"{device or 'n1'} is not cordoned")
    assert told.endswith(f" 7{said}")


@pytest.mark.parametrize(
    ("device", "by", "reason", "since"),
    [
        ("", "ann", "drain: fan", 2),
        ("", "ann", "fan", 0),
        ("", "bob", "drain: fan", 0),
        ("n1-g1", "ann", "fan", 3),
        ("n1-g0", "ann", "fan", 0),
    ],
)
def test_a_cordon_that_stands_already(device: str, by: str, reason: str, since: int) -> None:
    """If the same person cordons an object again for the same reason, the first cordon stays in
    effect."""
    said = NodeCordoned(node="n1", by="ann", reason="drain: fan")
    node = Ledger(rack("n1", 2), said, CORDONED).state.nodes["n1"]
    detail = NodeDetail(3, node=node_answer(node), devices=tuple(device_answers(node)))
    assert stands_since(detail, cordoning("n1", device, by=by, reason=reason)) == since
