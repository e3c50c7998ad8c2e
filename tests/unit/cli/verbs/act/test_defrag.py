"""Tests of what `defrag` prints and with which exit code it ends."""

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from apportion.cli.client.connection import Where
from apportion.cli.exits import (
    INTERRUPTED,
    NOT_NOW,
    REFUSED,
    UNREACHABLE,
    USAGE,
    NotFound,
    Unreachable,
)
from apportion.cli.pods.moving import BY_HAND, Moving
from apportion.cli.pods.resubmit import Unit
from apportion.cli.verbs.act.defrag import (
    BY_SIGNAL,
    CHANGED,
    NOT_AGAIN,
    NOT_PLACED,
    Report,
    _Making,
    _short,
    _show,
    _tell,
    command,
)
from apportion.core.answers.plans import (
    DefragAnswer,
    DefragBlocked,
    DefragMove,
    DefragRequest,
    DefragStep,
)
from apportion.core.answers.reads import CordonAnswer, NodeAnswer, PodAnswer
from apportion.runtime.ledger.port import LedgerUnavailable
from apportion.runtime.service.options import KubeChoice
from apportion_schemas import NodeCordoned, NodeCordonLifted
from apportion_schemas.quantities import Payload
from tests.support.golden import Golden

MOVE = DefragMove("u1", "team", "small", "n-1", "n-2", 1.0, 2.5)
STEP = DefragStep("pod", "team/large", ("team/large",), ("n-1",), 8.0, 1.0, 2.5, (MOVE,))
GANG = DefragStep(
    "gang", "team/job", ("team/w-0", "team/w-1", "team/next"), ("n-1", "n-3"), 16.0, 2.0, 5.0,
    (DefragMove("u2", "team", "a-0", "n-3", "n-4", 1.0, 2.5, "team/a"),
     DefragMove("u3", "team", "a-1", "n-4", "n-4", 1.0, 2.5, "team/a")),
)  # fmt: skip
NODE = DefragStep("node", "n-1", ("team/next",), ("n-1",), 8.0, 1.0, 2.5, (MOVE,))
REASONS: list[DefragBlocked] = [
    DefragBlocked("pod", "team/a", "no-capacity", 3, (), 8.0, 2.5),
    DefragBlocked("gang", "team/b", "pods-stay"),
    DefragBlocked("node", "n-7", "pods-stay", pods=("team/x", "team/y")),
    DefragBlocked("pod", "team/d", "no-place", pods=("team/x",)),
    DefragBlocked("pod", "team/e", "frees-less"),
    DefragBlocked("pod", "team/f", "moves-max"),
    DefragBlocked("pod", "team/g", "lost-max"),
    DefragBlocked("pod", "team/h", "disruption-budget"),
    DefragBlocked("pod", "team/i", "search-limit"),
    DefragBlocked("pod", "team/j", "other-cause"),
]


@pytest.mark.parametrize(
    ("answer", "request_"),
    [
        (DefragAnswer(7, (STEP, GANG), of_kubernetes=True), DefragRequest()),
        (DefragAnswer(7, (NODE,), empty_after=1), DefragRequest(free_nodes=1)),
        (DefragAnswer(7, blocked=tuple(REASONS), other_causes=2),
         DefragRequest(lost_gpu_hours_max=4.0)),
        (DefragAnswer(7, other_causes=1), DefragRequest()),
        (DefragAnswer(7), DefragRequest(free_nodes=1)),
        (DefragAnswer(7, empty_nodes=2, empty_after=2), DefragRequest(free_nodes=1)),
    ],
    ids=["moves", "nodes", "reasons", "nothing", "no node", "empty nodes"],
)  # fmt: skip
def test_what_is_shown(
    answer: DefragAnswer, request_: DefragRequest, golden: Golden, request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The plan shows each move with its cost, and each pod or node without one with the reason."""
    _show(answer, request_)
    golden({request.node.callspec.id: capsys.readouterr().out})


@pytest.mark.parametrize(
    "fields",
    [
        {"moved": {"team/small": "n-2"}, "placed": {"team/large": "n-1"}},
        {
            "left": {"team/small": "not moved yet"},
            "stopped": BY_HAND,
            "cordoned": ["n-1"],
            "author": "ada (defrag 1)",
        },
        {"moved": {"team/small": ""}, "waiting": {"team/b": "no room"}, "freed": ["n-1"]},
    ],
    ids=["done", "stopped", "emptied"],
)
def test_what_was_done(
    fields: dict[str, Any], golden: Golden, request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The report names moved and placed pods, and after a stop also what is left to do."""
    _tell(Report(plan=DefragAnswer(7, (STEP,)), **fields), DefragRequest())
    golden({request.node.callspec.id: capsys.readouterr().out})


@pytest.mark.parametrize(
    ("answer", "free_nodes", "short"),
    [
        (DefragAnswer(7, (STEP,)), 0, False),
        (DefragAnswer(7, (STEP,), tuple(REASONS[:1])), 0, True),
        (DefragAnswer(7, (NODE,), empty_after=1), 2, True),
        (DefragAnswer(7, (NODE,), tuple(REASONS[2:3]), empty_after=1), 1, False),
        (DefragAnswer(7, (NODE,), empty_nodes=1, empty_after=2), 2, False),
        (DefragAnswer(7, (NODE,), empty_nodes=1, empty_after=2), 3, True),
        (DefragAnswer(7), 0, False),
    ],
)
def test_which_plans_fall_short(answer: DefragAnswer, free_nodes: int, *, short: bool) -> None:
    """The exit code is 5 if a pod stays pending, or if fewer nodes become empty than requested."""
    assert _short(answer, DefragRequest(free_nodes=free_nodes)) is short


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"moved": {"team/small": "n-2"}}, 0),
        ({"stopped": BY_SIGNAL}, INTERRUPTED),
        ({"stopped": BY_HAND, "waiting": {"team/small": "no room"}}, INTERRUPTED),
        ({"stopped": NOT_AGAIN, "waiting": {"team/small": "no room"}}, NOT_NOW),
        ({"stopped": NOT_AGAIN, "waiting": {"team/a": ""}, "left": {"team/b": "x"}}, NOT_NOW),
        ({"stopped": NOT_PLACED, "moved": {"team/small": "n-2"}}, NOT_NOW),
        ({"stopped": NOT_PLACED, "left": {"team/b": "the moves stopped before it"}}, NOT_NOW),
        ({"stopped": CHANGED}, REFUSED),
        ({"left": {"team/small": "its budget"}}, REFUSED),
    ],
)
def test_the_exit_code_tells_pending_pods_from_early_stops(
    fields: dict[str, Any], code: int
) -> None:
    """The exit code is 5 if a moved pod or the beneficiary is pending, even after a stop; 1 if the
    moves stopped early for another cause."""
    report = Report(plan=DefragAnswer(7, (STEP,)), **fields)
    assert report.exit_code(DefragRequest()) == code


def test_blocked_pods_can_be_ignored() -> None:
    """With `--ignore-blocked`, the exit code is 0 if there were no moves for some pods. It is still
    5 if a moved pod is pending, and 1 if the moves stopped early."""
    answer = DefragAnswer(7, (STEP,), tuple(REASONS))
    for fields, code in (
        ({}, 0),
        ({"stopped": NOT_AGAIN, "waiting": {"team/small": "no room"}}, NOT_NOW),
        ({"stopped": NOT_PLACED}, NOT_NOW),
        ({"stopped": CHANGED}, REFUSED),
    ):
        report = Report(plan=answer, **fields)
        assert report.exit_code(DefragRequest(), ignore_blocked=True) == code
    assert Report(plan=answer).exit_code(DefragRequest()) == NOT_NOW


def test_nodes_that_are_not_empty_at_the_end_are_never_ignored() -> None:
    """If pods are on a node after the moves that empty it, the exit code is 5."""
    request = DefragRequest(free_nodes=1)
    for freed, code in (([], NOT_NOW), (["n-1"], 0)):
        report = Report(plan=DefragAnswer(7, (NODE,)), moved={"team/small": "n-2"}, freed=freed)
        assert report.exit_code(request, ignore_blocked=True) == code


GANG_NODES = [NodeAnswer(node=f"n-{number}", ready=True) for number in range(1, 5)]
GANG_PODS = [
    PodAnswer("team", "a-0", "u2", "placed", group="team/a", node="n-3"),
    PodAnswer("team", "a-1", "u3", "placed", group="team/a", node="n-4"),
    PodAnswer("team", "a-2", "u4", "pending", group="team/a"),
]
CORDON = CordonAnswer(by="ada", reason="fan", time="2026-01-01T00:00:00Z", revision=3)


@pytest.mark.parametrize(
    ("pods", "nodes", "moved"),
    [
        ({}, {}, 2),
        ({1: {"node": "n-1"}}, {}, 0),
        ({1: {"uid": "u9"}}, {}, 0),
        ({2: {"node": "n-2"}}, {}, 0),
        ({}, {0: {"cordons": (CORDON,)}}, 0),
        ({}, {2: {"unschedulable": True}}, 0),
        ({}, {3: {"ready": False}}, 0),
        ({}, {3: {"node": "other"}}, 0),
        ({}, {1: {"ready": False}}, 2),
    ],
    ids=["as planned", "moved", "recreated", "gang has grown", "cordoned", "unschedulable",
         "target not ready", "target gone", "node of no move"],
)  # fmt: skip
def test_a_step_is_made_only_as_planned(
    pods: dict[int, dict[str, Any]], nodes: dict[int, dict[str, Any]], moved: int, tmp_path: Path
) -> None:
    """A step moves nothing if a pod is elsewhere, its gang has other placed pods, or a node of the
    step takes no pods."""
    where = Where(data=tmp_path, gateway="http://127.0.0.1:1")
    moving = Moving(what="", who="ada", why="", timeout_s=1, kube=KubeChoice(wanted=True))
    making = _Making(where, moving, "x", Report())
    there = [replace(pod, **pods.get(number, {})) for number, pod in enumerate(GANG_PODS)]
    known = [replace(node, **nodes.get(number, {})) for number, node in enumerate(GANG_NODES)]
    units = making._units(
        GANG, {f"{pod.namespace}/{pod.name}": pod for pod in there},
        {node.node: node for node in known},
    )  # fmt: skip
    assert sum(len(unit.pods) for unit in units) == moved


class Making(_Making):
    """Makes the moves with lists of pods and nodes in place of a gateway and a ledger."""

    def __init__(self, report: Report, tmp_path: Path) -> None:
        where = Where(data=tmp_path, gateway="http://127.0.0.1:1")
        kube = KubeChoice(wanted=True, kubeconfig=tmp_path / "none")
        moving = Moving(what="", who="ada", why="", timeout_s=60, kube=kube)
        super().__init__(where, moving, "x", report)
        self.there: list[PodAnswer] = []
        self.known = [NodeAnswer(node="n-1", ready=True), NodeAnswer(node="n-2", ready=True)]
        self.moves, self.moved = True, list[Unit]()
        self.other = NodeAnswer(node="n-9", ready=True)  # written at the same time as our cordon
        self.lost = 0  # writes that fail
        self.revision = 100

    async def _now(self) -> dict[str, int]:
        return {"at_least": self.revision}

    async def _pods(self, *_: object) -> dict[str, PodAnswer]:
        return {f"{pod.namespace}/{pod.name}": pod for pod in self.there}

    async def _using(self, node: str, *_: object) -> list[PodAnswer]:
        return [pod for pod in self.there if pod.node == node]

    async def nodes(self, *_: object) -> dict[str, NodeAnswer]:
        return {node.node: node for node in self.known}

    async def _write(self, data: Payload, *, again: bool = False) -> None:  # noqa: ARG002
        self.lost -= 1
        if self.lost >= 0:
            raise LedgerUnavailable("the callout restarts")
        self.revision += 1
        cordons: dict[str, tuple[CordonAnswer, ...]] = {}
        if isinstance(data, NodeCordoned):
            made = CordonAnswer(data.by, data.reason, "2026-01-01T00:00:00Z", self.revision)
            cordons[data.node] = (made,)
            self.known.append(self.other)
        else:
            assert isinstance(data, NodeCordonLifted)
            cordons[data.node] = ()
        self.known = [
            replace(node, cordons=cordons.get(node.node, node.cordons)) for node in self.known
        ]

    async def move(self, units: list[Unit]) -> None:
        if self.moves:
            await super().move(units)
        self.moved += units
        self.there = [
            replace(pod, node=pod.node or "n-1") for pod in self.there if pod.uid != MOVE.uid
        ]


def placed(name: str, uid: str, **fields: Any) -> PodAnswer:
    """Return a pod of a Job, placed on n-1."""
    return PodAnswer("team", name, uid, "placed", **{"node": "n-1", "owner": "Job/j", **fields})


async def test_after_the_time_limit_no_pod_is_evicted(tmp_path: Path) -> None:
    """After the deadline, no request is sent to the API server."""
    report = Report(plan=DefragAnswer(7, of_kubernetes=True))
    making, units = Making(report, tmp_path), [Unit((placed("small", "u1"),))]
    making._deadline = time.monotonic() - 1
    await making.move(units)
    assert (report.stopped, report.left) == ("after 60 s", {})
    making._deadline = time.monotonic() + 60
    with pytest.raises(Unreachable):
        await making.move(units)


@pytest.mark.parametrize(("node", "waiting"), [("n-2", 0), ("", 1)])
async def test_a_pod_that_ends_by_itself_is_not_waited_for(
    node: str, waiting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step waits for as many new placed pods of a controller as it evicted pods of it. It does
    not matter that other pods of the controller end."""
    monkeypatch.setattr("apportion.cli.verbs.act.defrag.PLACED_WITHIN_S", 0.0)
    report = Report(plan=DefragAnswer(7, of_kubernetes=True), moved={"team/small": ""})
    making = Making(report, tmp_path)
    small = placed("small", "u1")
    before = {f"team/{pod.name}": pod for pod in (small, placed("ends", "u2"))}
    making.there = [placed("again", "u3", node=node)]
    await making.until_again(STEP, [Unit((small,))], before)
    assert len(report.waiting) == waiting
    assert report.stopped == (NOT_AGAIN if waiting else "")


async def test_a_pod_that_is_placed_already_needs_no_moves(tmp_path: Path) -> None:
    """If the pending pod was placed or deleted after the plan, its step is left out."""
    small = placed("small", "u1")
    for there in ([small], [small, PodAnswer("team", "large", "u9", "placed", node="n-2")]):
        report = Report(plan=DefragAnswer(7, (STEP,)), left={"team/small": "not moved yet"})
        making = Making(report, tmp_path)
        making.there = there
        await making._step(STEP)
        assert (report.stopped, report.left, making.revision) == ("", {}, 100)
        assert report.exit_code(DefragRequest()) == 0


@pytest.mark.parametrize("when", ["before", "at once", "never"])
async def test_two_runs_never_move_pods_at_the_same_time(when: str, tmp_path: Path) -> None:
    """A step moves nothing if another run has a cordon, even one that was written at the same
    time, and by the same person."""
    report = Report(plan=DefragAnswer(7, (NODE,)), author="ada (defrag 1)")
    making, others = Making(report, tmp_path), (replace(CORDON, by="ada (defrag 2)"),)
    making.moves, making.there = False, [placed("small", "u1")]
    if when == "before":
        making.known.append(NodeAnswer(node="n-9", ready=True, cordons=others))
    elif when == "at once":
        making.other = NodeAnswer(node="n-9", ready=True, cordons=others)
    await making._step(NODE)
    assert report.stopped == ("" if when == "never" else CHANGED)
    assert len(making.moved) == (when == "never")
    assert len(report.cordoned) == (when != "before")


@pytest.mark.parametrize(
    ("step", "pod", "stopped"),
    [
        (NODE, placed("new", "u7", placed_revision=8), CHANGED),
        (NODE, placed("new", "u7", placed_revision=6), CHANGED),
        (NODE, placed("new", "u7", node="n-2", placed_revision=8), ""),
        (STEP, placed("new", "u7", placed_revision=8), CHANGED),
        (STEP, placed("new", "u7", placed_revision=6), ""),
        (STEP, placed("first", "u7", placed_revision=8), ""),
        (STEP, placed("new", "u7", owner="Job/first", placed_revision=8), ""),
    ],
)  # fmt: skip
async def test_no_pod_is_moved_if_another_one_took_the_room(
    step: DefragStep, pod: PodAnswer, stopped: str, tmp_path: Path
) -> None:
    """A step moves nothing if a pod that the plan does not know is on its nodes after they were
    cordoned. Pods of earlier steps are known."""
    large = PodAnswer("team", "large", "u9", "pending", owner="Job/l")
    report = Report(plan=DefragAnswer(7, (step,)), author="ada (defrag 1)")
    making = Making(report, tmp_path)
    making.moves, making.there = False, [placed("small", "u1"), large, pod]
    making._known = {"team/first", "team/Job/first"}
    await making._step(step)
    assert (report.stopped, bool(making.moved)) == (stopped, not stopped)


@pytest.mark.parametrize(
    ("by", "stale_s", "stays"),
    [("ada (defrag 2)", math.inf, 1), ("ada (defrag 2)", 1000, 0), ("bob (defrag 2)", 1000, 1)],
)
async def test_old_cordons_of_the_same_person_are_removed(
    by: str, stale_s: float, stays: int, tmp_path: Path
) -> None:
    """A cordon that is older than every run can be does not keep the next run from starting. A
    cordon of another person does."""
    making = Making(Report(author="ada (defrag 1)"), tmp_path)
    making._stale_s = stale_s
    making.known = [NodeAnswer(node="n-1", ready=True, cordons=(replace(CORDON, by=by),))]
    with pytest.raises(NotFound) if stays else nullcontext():
        await making.clear()
    assert len(making.known[0].cordons) == stays


async def test_cordons_are_removed_once_the_ledger_answers_again(tmp_path: Path) -> None:
    """A write that fails is tried again, and does not keep other nodes from losing their cordon."""
    report = Report(plan=DefragAnswer(7, (NODE,)), author="ada (defrag 1)", cordoned=["n-1", "n-2"])
    making = Making(report, tmp_path)
    making.lost = 1
    await making._lift()
    assert (report.cordoned, making.revision) == ([], 102)


def test_wrong_usage() -> None:
    """`--apply` needs a reason, and `--free-nodes` takes no names of pods."""
    where = ["--gateway", "http://127.0.0.1:1", "--nats", "nats://127.0.0.1:1"]
    for words, code in (
        (["--apply"], USAGE),
        (["large", "--free-nodes", "1"], USAGE),
        (["--budget", "0"], USAGE),
        (["--max-lost", "nan"], USAGE),
        (["--timeout", "600", "--stale-after", "700"], USAGE),
        (["--max-lost", "inf"], USAGE),
        (["large"], UNREACHABLE),
        (["--apply", "--reason", "x"], UNREACHABLE),
    ):
        assert CliRunner().invoke(command, [*words, *where]).exit_code == code, words
