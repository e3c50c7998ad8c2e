"""Make simulated GPUs fail and recover, and wait until the gateway reports the change.

Without the wait a failure may go unrecorded, because the agent checks its GPUs only now and then.
"""

from __future__ import annotations

from tests.support.polling import wait_until
from tests.support.standalone import Standalone


def fail(cluster: Standalone, *cards: str, reason: str) -> None:
    """Make simulated GPUs fail, and wait until the gateway reports the failure."""
    for card in cards:
        done = cluster.run("simulate", "fail", card, "--reason", reason)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: _said(cluster, cards) == {reason}, "cards to have failed")


def recover(cluster: Standalone, *cards: str) -> None:
    """Make simulated GPUs recover, and wait until the gateway reports the recovery."""
    for card in cards:
        done = cluster.run("simulate", "recover", card)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: _said(cluster, cards) == {""}, "cards to have recovered")


def _said(cluster: Standalone, cards: tuple[str, ...]) -> set[str]:
    """Return the reasons that the gateway gives for the health of these devices. A healthy device
    has the reason ""."""
    devices = cluster.json("get", "devices")["items"]
    return {each["health_reason"] for each in devices if each["device"] in cards}
