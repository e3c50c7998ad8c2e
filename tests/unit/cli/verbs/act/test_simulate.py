"""Tests of `simulate`, which changes the health of simulated devices and nodes. It uses the health
that a device's agent reports, and ignores the health that Kubernetes reports. It accepts no reason
for losing a node."""

import pytest
from click.testing import CliRunner

from apportion.cli.exits import USAGE
from apportion.cli.verbs.act.simulate import NO_REASON, command, said_by_agent
from apportion.core.explain.views import device_answers
from apportion_schemas import DeviceHealthChanged
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.ledger_of import Ledger

FAILED = DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79")


@pytest.mark.parametrize("verb", ["lose", "return"])
def test_a_lost_node_has_no_reason_and_that_is_said(verb: str) -> None:
    """`simulate lose` and `simulate return` refuse a reason, and the error explains why."""
    refused = CliRunner().invoke(command, [verb, "n1", "--reason", "PSU"])
    assert refused.exit_code == USAGE
    assert refused.output.endswith(f"Error: {NO_REASON}\n")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (FAILED, "XID 79"),
        (observed(unhealthy_indexes=(0,)), ""),
        (observed(unnamed_families=("nvidia",)), ""),
    ],
)
def test_a_mark_of_kubernetes_is_no_word_of_the_agent(event: Payload, said: str) -> None:
    """If only Kubernetes marks a device as unusable, `simulate` treats it as healthy, since its
    agent reports no failure."""
    node = Ledger(rack("n1", 1), event).state.nodes["n1"]
    (device,) = device_answers(node)
    assert (device.healthy, bool(device.health_reason)) == (False, True)
    assert said_by_agent(device) == said
