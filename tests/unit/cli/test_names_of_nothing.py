"""What verbs on pods say of a name that no pod has."""

import pytest
from click.testing import CliRunner

from apportion.cli.main import root
from apportion.core.explain.answers import ErrorAnswer
from tests.support.answering import answering, answers_of, without_pods
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger

CARD = "GPU-1a2b3c4d-0001"
FLEET = Ledger(node("t4-1", gpu(CARD, index=0)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("t4-11", "or a pod 't4-11'; did you mean t4-1?\n"),
        ("nosuch", "; `apportion get pods`, `get nodes` and `get devices` list those that are "),
        ("GPU-", "'GPU-' is too little of a device id; write more of the id\n"),
    ],
)
def test_history_says_what_may_be_meant_by_a_name_of_nothing(name: str, said: str) -> None:
    """A like node, that a device wants more of its id, or which verbs list what there is."""
    short = ErrorAnswer(
        error="'GPU-' is too little of a device id", fix="write more of the id", field="device"
    )
    told = answers_of(FLEET) | without_pods(name) | {"history/devices/GPU-": short}
    with answering(told) as url:
        done = CliRunner().invoke(root, ["history", name, "--gateway", url])
    assert done.exit_code == 1
    assert said in done.stderr
