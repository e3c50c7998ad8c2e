"""Tests of what an intake reads from NATS for an agent, and of the agent's part of the state."""

import json

import pytest

from apportion.core.identity.identity import Identity, readers_of_node
from apportion.core.identity.permissions import permissions_of
from apportion.core.intake.answers import node_of_subject, subject_of_node
from apportion.core.intake.sight import (
    FOR_ALL,
    SUBJECT,
    Call,
    NotForAgents,
    call_of,
    part_of,
    read_asked,
    shown,
    subjects_of_node,
)
from apportion.core.ledger import snapshot
from apportion.core.ledger.agent_view import handed
from apportion.core.ledger.rationale import placed_of
from apportion.core.ledger.state import State
from apportion.runtime.jetstream.examining import covers
from apportion_schemas import PodPlaced
from tests.support.fleet import gpu, node
from tests.support.happenings import happen
from tests.support.pods import ask, member, placed, pod, share

GET = "STREAM.MSG.GET.APPORTION"
NAMES = ["n1", "gpu.example", "a b", "ü", "*", ">", "n" * 253]


def call(name: str, api: str, body: object) -> Call:
    return call_of(name, read_asked(json.dumps({"api": api, "body": body}).encode()))


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_reads_what_is_of_its_node_and_what_is_for_all(name: str) -> None:
    """An agent may read only the subjects of its own node, and the subjects that all agents
    share."""
    assert node_of_subject(subject_of_node(name, SUBJECT), SUBJECT) == name
    for subject in (*subjects_of_node(name), *FOR_ALL):
        query = {"seq": 1, "next_by_subj": subject}
        for each in (query, {"last_by_subj": subject}):
            assert json.loads(call(name, GET, each).body) == each
        asked = call(name, GET, query)
        with_it = subject.replace(".*", ".pod").replace(".>", ".format.X")
        answer = json.dumps({"message": {"seq": 1, "subject": with_it}}).encode()
        assert shown(name, asked, answer) == answer
        if subject not in FOR_ALL:
            assert json.loads(shown("other", asked, answer))["error"]["err_code"] == 10037
            with pytest.raises(NotForAgents):
                call("other", GET, query)


@pytest.mark.parametrize(
    "subject",
    [
        "apportion.v1.placement.n1x",
        "apportion.v1.placement.n1.x",
        "apportion.v1.adoption.n12.pod",
        "apportion.v1.workload.n1",
        "apportion.v1.operator.configuration.x",
        "apportion.v1.operator.policy",
    ],
)
def test_a_record_of_another_subject_is_not_there(subject: str) -> None:
    """If NATS returns a record of a subject that the agent may not read, or unreadable bytes, the
    agent gets "not found"."""
    answer = json.dumps({"message": {"subject": subject}}).encode()
    for each in (answer, b"[" * 10_000, b"\xff"):
        assert json.loads(shown("n1", call("n1", GET, {"seq": 1}), each))["error"]["code"] == 404


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"api":1}', b"\xff", b'{"api":"x","y":1}'])
def test_what_cannot_be_read_is_refused(payload: bytes) -> None:
    """If the intake cannot decode a request, it raises NotForAgents."""
    with pytest.raises(NotForAgents):
        read_asked(payload)


@pytest.mark.parametrize(
    "body", [{"seq": -1}, {"seq": 1, "last_by_subj": 2}, {"start_time": "x"}, [], {"SEQ": 1}]
)
def test_a_body_that_is_none_is_refused(body: object) -> None:
    """The intake refuses requests with invalid or unknown fields. NATS ignores case, so `SEQ` would
    count as `seq`."""
    with pytest.raises(NotForAgents):
        call("n1", GET, body)


@pytest.mark.parametrize(
    "api",
    [
        "STREAM.DELETE.APPORTION",
        "STREAM.PURGE.APPORTION",
        "STREAM.MSG.DELETE.APPORTION",
        "STREAM.MSG.GET.KV_APPORTION",
        "CONSUMER.LIST.APPORTION",
        "CONSUMER.DELETE.APPORTION.binder",
        f"CONSUMER.DELETE.APPORTION.{readers_of_node('n2')[0]}",
        f"CONSUMER.INFO.OTHER.{readers_of_node('n1')[0]}",
        "",
    ],
)
def test_any_other_request_is_refused(api: str) -> None:
    """An agent may send no request that deletes records, or that concerns a consumer of another
    node or of the binders."""
    with pytest.raises(NotForAgents):
        call("n1", api, {})
    for each in readers_of_node("n1"):
        own = f"CONSUMER.DELETE.APPORTION.{each}"
        assert call("n1", own, {"seq": 1}) == Call(own), "the intake passes no body on"


def test_the_part_of_a_node_is_a_state_that_can_be_restored() -> None:
    """An agent's partial state can be restored like a snapshot.

    It has only the agent's node and the pods on that node."""
    state = State()
    for data in (
        node("n1", gpu("g0")),
        node("n2", gpu("g1")),
        pod("mine", ask(1000)),
        pod("other", ask(1000)),
        pod("waits", ask(1000)),
        member("ganged", ask(1000)),
        placed("mine", "n1", [share("g0")]),
        placed("ganged", "n1", [share("g0")]),
        placed("other", "n2", [share("g1")]),
    ):
        happen(state, data)
    part = snapshot.restore(snapshot.take(part_of(state, "n1")))
    assert (part.revision, list(part.nodes)) == (9, ["n1"])
    assert list(part.pods) == list(part.nodes["n1"].pods) == ["mine", "ganged"]
    assert part.groups == {}
    assert list(state.pods) == ["mine", "other", "waits", "ganged"]
    nothing = snapshot.restore(snapshot.take(part_of(state, "unknown")))
    assert (nothing.revision, nothing.nodes, nothing.pods) == (9, {}, {})


def test_the_part_has_all_that_containers_are_given() -> None:
    """An agent's partial state has all data that containers receive, such as HAMi-core controls.

    It has no pod labels."""
    state = State()
    happen(state, node("n1", gpu("g0")))
    submitted = pod(
        "mine", ask(1000), labels={"a": "b"}, group="team/job", containers=("main", "side"),
        borrowing=(ask(500, container="side"),), controls={"main": {"LIBCUDA_LOG_LEVEL": "3"}},
        high_priority=("main",),
    )  # fmt: skip
    happen(state, submitted)
    happen(state, placed("mine", "n1", [share("g0")]))
    part = snapshot.restore(snapshot.take(part_of(state, "n1")))
    given = [_given(each) for each in (state, part)]
    assert given[0] == given[1]
    assert (len(given[0].borrowed), len(given[0].controls)) == (1, 1)
    assert part.pods["mine"].submitted.labels == {}


def _given(state: State) -> PodPlaced:
    found = state.pods["mine"]
    assert found.placement is not None
    devices = [each.device for each in state.nodes["n1"].devices]
    return handed(placed_of(found, found.placement), found.submitted, devices)


@pytest.mark.parametrize("nodes", [("n1",), ()])
def test_the_agent_of_one_node_has_no_right_at_the_servers_api(nodes: tuple[str, ...]) -> None:
    """An agent of one node may not call the JetStream API.

    It may acknowledge flow control, but only of consumers that an intake created for it."""
    may = permissions_of(Identity("agent", "gpu-1", nodes))
    assert not [each for each in may.publish if each.startswith(("$JS.API", "$JS.STORE", "$O."))]
    for each in nodes:
        assert covers(may.publish, f"$JS.FC.APPORTION.{readers_of_node(each)[0]}.x")
    assert not covers(may.publish, f"$JS.FC.APPORTION.{readers_of_node('n2')[0]}.x")


@pytest.mark.parametrize("nodes", [("*",), ("n1", "n2")])
def test_the_agent_of_several_nodes_reads_the_ledger_itself(nodes: tuple[str, ...]) -> None:
    """An agent of several nodes, as in a simulation, reads the ledger directly."""
    may = permissions_of(Identity("agent", "fleet", nodes))
    assert covers(may.publish, "$JS.API.CONSUMER.CREATE.APPORTION.fleet-0")
    assert not permissions_of(Identity("agent", "fleet", nodes)).deny_publish


def test_an_intake_never_touches_the_queue_of_binders() -> None:
    """An intake may create and delete only the consumers for agents. It is denied the binders'
    consumer."""
    may = permissions_of(Identity("intake", "intake"))
    for verb in ("CREATE", "INFO", "DELETE"):
        assert covers(may.publish, f"$JS.API.CONSUMER.{verb}.APPORTION.{readers_of_node('n1')[0]}")
        assert covers(may.deny_publish, f"$JS.API.CONSUMER.{verb}.APPORTION.binder")
