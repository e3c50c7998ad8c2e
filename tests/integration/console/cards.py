"""Cards that are made to fail and to recover, until the gateway has heard of it.

An order is none of the ledger's facts: those follow from the agent's own look, however long a busy
machine takes for it. Of a card that recovers before that look nobody ever hears that it failed."""

from __future__ import annotations

from tests.support.polling import wait_until
from tests.support.standalone import Standalone


def fail(cluster: Standalone, *cards: str, reason: str) -> None:
    """Let simulated cards fail, and wait until the gateway knows."""
    for card in cards:
        done = cluster.run("simulate", "fail", card, "--reason", reason)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: _said(cluster, cards) == {reason}, "cards to have failed")


def recover(cluster: Standalone, *cards: str) -> None:
    """Let them recover, and wait until the gateway knows."""
    for card in cards:
        done = cluster.run("simulate", "recover", card)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: _said(cluster, cards) == {""}, "cards to have recovered")


def _said(cluster: Standalone, cards: tuple[str, ...]) -> set[str]:
    """What is the matter with them; of a healthy one nothing is."""
    devices = cluster.json("get", "devices")["items"]
    return {each["health_reason"] for each in devices if each["device"] in cards}
