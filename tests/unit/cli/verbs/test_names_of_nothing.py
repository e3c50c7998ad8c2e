"""Tests of what verbs print for names that do not exist, and for pods that they cannot act on."""

import pytest
from click.testing import CliRunner

from apportion.cli.client.listing import UNDECLARED
from apportion.cli.main import root
from apportion.core.answers.reads import (
    AMBIGUOUS_DEVICE,
    ErrorAnswer,
    Page,
    PodAnswer,
    PodDetail,
    QueueAnswer,
)
from apportion.core.explain.views import pod_answer
from tests.support.answering import answering, answers_of, without_pods
from tests.support.fleet import gpu, node
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

CARD = "GPU-1a2b3c4d-0001"
FLEET = Ledger(node("t4-1", gpu(CARD, index=0)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("t4-11", "pod 't4-11' has ever existed; did you mean t4-1?\n"),
        ("nosuch", "; list names with `apportion get pods`, "),
        ("GPU-", "'GPU-' is too short; write more of the id\n"),
    ],
)
def test_history_says_what_may_be_meant_by_a_name_of_nothing(name: str, said: str) -> None:
    """For an unknown name, `history` suggests a similar node, a device by its full id, or a verb
    that lists names."""
    short = ErrorAnswer(
        error="'GPU-' is too short", fix="write more of the id", field="device",
        code=AMBIGUOUS_DEVICE,
    )  # fmt: skip
    told = answers_of(FLEET) | without_pods(name) | {"history/devices/GPU-": short}
    with answering(told) as url:
        done = CliRunner().invoke(root, ["history", name, "--gateway", url])
    assert done.exit_code == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "said"), [("training", "did you mean train?\n"), ("default", "known: train\n")]
)
def test_a_queue_that_nobody_declared_is_no_slip_of_the_pen_alone(name: str, said: str) -> None:
    """For an undeclared queue, `get queues` states the defaults: weight 1 and no limits. It also
    suggests a declared queue."""
    queues = Page(revision=9, items=(QueueAnswer("train", weight=2, open=True),))
    with answering(answers_of(FLEET) | {"queues": queues}) as url:
        done = CliRunner().invoke(root, ["get", "queues", name, "--gateway", url])
    assert done.exit_code == 1
    assert f"no queue {name!r} at revision 9; {UNDECLARED}; {said}" in done.stderr


def test_an_empty_list_names_its_filters() -> None:
    """If no pod matches the filters of `get pods`, the message names these filters."""
    with answering(answers_of(FLEET) | {"pods": Page(revision=9, items=())}) as url:
        done = CliRunner().invoke(root, ["get", "pods", "--gateway", url, "--namespace", "team"])
        bare = CliRunner().invoke(root, ["get", "pods", "--gateway", url])
    assert (done.exit_code, done.stderr) == (0, "no pods at revision 9 with namespace team\n")
    assert bare.stderr == "no pods at revision 9\n"


@pytest.mark.parametrize("verb", ["cordon", "drain"])
@pytest.mark.parametrize("name", ["train", "team/train"])
def test_a_pod_is_no_target_of_what_is_done_to_nodes(verb: str, name: str) -> None:
    """If a user gives `cordon` or `drain` the name of a pod, the verb refuses and suggests the
    pod's node."""
    there = Page(revision=9, items=(PodAnswer("team", "train", "1", "allocated", node="t4-1"),))
    with answering(answers_of(FLEET) | {"pods": there}) as url:
        done = CliRunner().invoke(root, [verb, name, "--reason", "fan", "--gateway", url])
    assert done.exit_code == 1
    assert f"'{name}'" in done.stderr
    assert done.stderr.endswith(" t4-1\n")


def test_a_pod_that_waits_is_said_to_wait_where_it_cannot_be_resized() -> None:
    """`resize` refuses a pod that is pending, and the error says so."""
    waiting = Ledger(node("t4-1", gpu(CARD, index=0)), pod("p", ask(999_999))).settle()
    detail = PodDetail(9, pod_answer(waiting.state, waiting.state.pods["p"]))
    with answering({"pods/default/p": detail}) as url:
        done = CliRunner().invoke(root, ["resize", "p", "--memory", "1", "--gateway", url])
    assert done.exit_code == 1
    assert "default/p is pending" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"), [("gpu-1a2b3c4d", "GPU-1a2b3c4d"), (CARD.lower(), CARD)]
)
def test_a_device_in_other_letters_is_found_as_tables_show_it(name: str, meant: str) -> None:
    """If a device id differs only in case, a verb refuses it and suggests the right id."""
    with answering(answers_of(FLEET)) as url:
        done = CliRunner().invoke(root, ["cordon", name, "--reason", "fan", "--gateway", url])
    assert f"; did you mean {meant}?\n" in done.stderr


@pytest.mark.parametrize("typed", ["top --json", "get devices"])
@pytest.mark.parametrize(
    ("name", "said"), [("t4-11", "did you mean t4-1?"), ("zzz", "the nodes are t4-1")]
)
def test_what_is_asked_of_a_node_that_is_not_there_says_which_are(
    typed: str, name: str, said: str
) -> None:
    """If `--node` is unknown, a verb suggests a similar node or lists all nodes."""
    refused = ErrorAnswer(error=f"no node '{name}'", fix="list them at /api/v1/nodes", field="node")
    with answering(answers_of(FLEET) | {"devices": refused}) as url:
        done = CliRunner().invoke(root, [*typed.split(), "--node", name, "--gateway", url])
    assert (done.exit_code, done.stderr) == (1, f"Error: no node '{name}'; {said}\n")
