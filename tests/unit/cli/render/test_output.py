"""Tests of the tables that verbs print. Markup and control characters in names have no effect on
the terminal."""

import io
import re
from datetime import datetime, timedelta

import pytest
from msgspec import structs

from apportion.cli.client.listing import QUEUES
from apportion.cli.render import tables
from apportion.cli.render.output import Screen, plain, show
from apportion.cli.up import standalone
from apportion.cli.verbs.see.top import BAR_CELLS, bar
from apportion.cli.verbs.see.why import show_why
from apportion.core.answers.reads import QueueAnswer
from apportion.core.explain.explainer import queue_answers
from apportion.core.explain.views import device_answers, gang_answer, node_answer, pod_answer
from apportion.core.explain.why import why
from apportion.core.workloads.dialects.dialect import GPU_MILLI
from apportion_schemas import (
    DeviceCordoned,
    DeviceHealthChanged,
    NodeConstraints,
    NodeCordoned,
    NodeSilent,
    QueueObserved,
    ReportRefused,
)
from apportion_schemas.quantities import Payload
from tests.support.fleet import observed, rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod, shape

WIDE = 250


def printed(thing: object, *, width: int = WIDE) -> str:
    """Return what is printed on a terminal of this width without colours."""
    out = Screen(file=io.StringIO(), width=width, color_system=None)
    out.print(thing)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.mark.parametrize("text", ["[red]x[/red]", "a\x1b[2Jb", "a\nb", "a\x07", "a\u202eb"])
def test_text_from_outside_is_shown_as_it_is(text: str) -> None:
    """Markup, escape sequences, newlines and text-direction marks in names have no effect on the
    terminal."""
    shown = printed(plain(text)).rstrip("\n")
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert all(character.isprintable() for character in shown)
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("used", "total", "cells"),
    [(0, 100, 0), (1, 100, 1), (50, 100, 4), (99, 100, 7), (100, 100, 8), (0, 0, 0), (7, 5, 8)],
)
def test_bar(used: int, total: int, cells: int) -> None:
    """A bar is empty only for zero and full only for the total. It is never longer than its
    width."""
    shown = bar(used, total).plain
    assert (shown.count("█"), len(shown)) == (cells, BAR_CELLS)


def test_tables_say_what_matters(golden: Golden) -> None:
    """The table of pods shows a pending pod's first cause. The tables of devices and nodes show why
    a device or node is unusable."""
    ledger = Ledger(
        rack("n1", 2), pod("a", ask(4000)), pod("b", ask(900_000)),
    ).settle()  # fmt: skip
    ledger.play(
        DeviceHealthChanged(node="n1", device="n1-g1", healthy=False, reason="XID 79"),
        NodeCordoned(node="n1", by="ann", reason="fan"),
    )
    now = datetime.fromisoformat(ledger.pod("a").submitted_time) + timedelta(minutes=5)
    answers = [pod_answer(ledger.state, ledger.pod(uid)) for uid in "ab"]
    shown = printed(tables.pods(answers, tables.Look(now=now)))
    assert " pending " in shown
    assert "refused" not in shown
    assert " 5m " in shown
    assert "never fits" in shown
    golden({"pods": shown})
    shown = printed(tables.devices(device_answers(ledger.node("n1"))))
    assert "failed: XID 79" in shown
    assert "default/a" in shown
    assert "cordoned: fan" in printed(tables.nodes([node_answer(ledger.node("n1"))]))
    ledger.play(ReportRefused(node="n1", cause="implausible-device", message="a T4 of 16 TiB"))
    shown = " ".join(printed(tables.nodes([node_answer(ledger.node("n1"))])).split())
    assert "16 TiB" in shown


def test_queues_on_other_cards_look_other(golden: Golden) -> None:
    """The table of queues fits 80 columns and does not break words."""
    on = {"NVIDIA H100 80GB HBM3": 1, "NVIDIA Tesla T4": 2}
    research = QueueAnswer(queue="research", weight=1, open=True, devices=on, pods=3)
    free = QueueAnswer(queue="free", weight=1, open=True)
    lines = printed(tables.queues([research, free]), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    golden({"80 columns": "\n".join(lines)})
    assert lines[3].split() == ["free", "1", "open", "0", "0", "no", "limit"]


def test_queues_are_shown_as_a_tree(golden: Golden) -> None:
    """In the table of queues, each queue is below its parent queue, with its name indented. Queues
    with the same parent are sorted by name."""
    ledger = Ledger(rack("n1", 1)).play(
        QueueObserved(queue="team-10", parent="lab", capability={GPU_MILLI: 2500}),
        QueueObserved(queue="lab", deserved={"nvidia.com/gpu": 8}, capability={"cpu": 4000}),
        QueueObserved(queue="ml", parent="gone"),
        QueueObserved(queue="nights", parent="team-2", open=False),
        QueueObserved(queue="team-2", parent="lab"),
    )
    assert QUEUES.order is not None
    answers = sorted(queue_answers(ledger.state, sorted(ledger.state.queues)), key=QUEUES.order)
    assert [each.queue for each in answers] == ["lab", "team-2", "nights", "team-10", "ml"]
    assert [len(each.above) for each in answers] == [0, 1, 2, 1, 0]
    golden({"tree": printed(tables.queues(answers), width=100)})


def test_queues_show_their_past_use(golden: Golden) -> None:
    """The table of queues shows past use in device hours if at least one queue has past use."""
    used = {"nvidia": 84_250, "ascend910b": 1_000, "cpu": 1_000, "memory": 4096}
    queues = [
        QueueAnswer(queue="ml", weight=1, open=True, past_use=used),
        QueueAnswer(queue="web", weight=1, open=True),
        QueueAnswer(queue="other", weight=1, open=True, past_use=None),
    ]
    golden({"past use": printed(tables.queues(queues), width=120)})


def test_a_unit_is_said_once(golden: Golden) -> None:
    """In the table of queues, usage and limit are one cell with a single unit, such as `1,024/4,096
    MiB`."""
    queue = QueueAnswer(
        queue="ml", weight=1, open=True,
        capability={"cpu": 512_000, "memory": 4096, "nvidia.com/gpu": 8},
        used={"cpu": 1500, "memory": 1024, "nvidia.com/gpu": 2},
    )  # fmt: skip
    line = printed(tables.queues([queue]), width=160).splitlines()[-1]
    assert re.findall(r"[\d.,]+/[\d.,]+", line) == ["1.5/512", "1,024/4,096", "2/8"]
    golden({"capability": line})


def test_what_a_tenant_is_not_told_of_a_queue_is_no_zero(golden: Golden) -> None:
    """In the table of queues, values that the user may not see are shown as `-`, not as zero."""
    queue = QueueAnswer(
        queue="ml", weight=1, open=True, capability={"cpu": 4000}, cards={"A100": 2},
        used=None, devices=None, pods=None, waiting=None,
    )  # fmt: skip
    line = printed(tables.queues([queue]), width=160).splitlines()[-1]
    golden({"without what is held": line})
    assert line.split()[:6] == ["ml", "1", "open", "-", "-", "-"]


def test_a_card_in_mig_mode_has_no_cores_to_give() -> None:
    """The table of devices shows no free cores for a GPU in MIG mode."""
    ledger = Ledger(rack("n1", 1))
    [card] = device_answers(ledger.node("n1"))
    whole = printed(tables.devices([card]))
    assert " 100/100 " in whole
    mig = printed(tables.devices([structs.replace(card, mode="mig")]))
    assert "100/100" not in mig
    assert " - " in mig


def test_a_device_says_each_reason_with_its_own_word() -> None:
    """The state of an unusable device lists all the reasons: a failure, a cordon of the device and
    a cordon of the node."""
    ledger = Ledger(
        rack("n1", 1),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"),
        DeviceCordoned(device="n1-g0", by="ann", reason="fan"),
        NodeCordoned(node="n1", by="bob", reason="move"),
    )
    (device,) = device_answers(ledger.node("n1"))
    said = tables.device_state(device).plain
    assert [each.partition(" (")[0] for each in said.split("; ")] == [
        "failed: XID 79", "cordoned: fan", "node cordoned: move",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        (NodeSilent(node="n1", grace_s=40), "agent not reporting"),
        (observed("n1", ready=False), "node not ready"),
    ],
)
def test_a_device_of_a_node_that_nobody_hears_is_not_ok(closed: Payload, said: str) -> None:
    """A device is not shown as ok while its node is silent or not ready. If the device itself
    failed, that is shown first."""
    ledger = Ledger(rack("n1", 1), closed)
    (device,) = device_answers(ledger.node("n1"))
    assert (device.node_ready, bool(device.node_silent)) == (False, said == "agent not reporting")
    assert tables.device_state(device).plain == said
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"))
    (device,) = device_answers(ledger.node("n1"))
    assert tables.device_state(device).plain == f"failed: XID 79; {said}"


def test_a_ready_node_says_which_of_its_devices_are_closed_and_why(golden: Golden) -> None:
    """The table of nodes lists a ready node's unusable devices with their reasons. It replaces
    control characters in a reason."""
    ledger = Ledger(
        rack("n1", 3),
        DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID\x1b 79"),
        DeviceCordoned(device="n1-g1", by="ann", reason="fan"),
    )
    shown = printed(tables.nodes([node_answer(ledger.node("n1"))]))
    assert "XID\N{REPLACEMENT CHARACTER} 79" in shown
    golden({"one failed, one cordoned": shown})
    assert " 1/3 " in shown


@pytest.mark.parametrize("width", [WIDE, 60])
def test_both_pods_of_an_eviction_say_so(golden: Golden, width: int) -> None:
    """The table of pods shows an eviction in the row of the evicted pod, and in the row of the pod
    that takes its place."""
    ledger = Ledger(rack("n1", 1), pod("low", cards(1))).settle()
    ledger.submit(pod("high", cards(1), priority=9)).settle()
    answers = [pod_answer(ledger.state, ledger.pod(uid)) for uid in ("low", "high")]
    now = datetime.fromisoformat(ledger.pod("low").submitted_time)
    shown = printed(tables.pods(answers, tables.Look(now=now)), width=width)
    assert "placed, evicted" in shown
    golden({"evicted, and who it is for": shown})


def test_lists_say_who_is_on_a_node_that_is_not_heard() -> None:
    """The table of pods marks pods on a silent node, and the table of gangs marks gangs on a silent
    node."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), gang("team/job", 2))
    ledger.submit(member("m0", cards(1)), member("m1", cards(1))).settle()
    lost = ledger.where("m0")
    ledger.play(NodeSilent(node=lost, grace_s=40))
    shown = printed(
        tables.pods([pod_answer(ledger.state, ledger.pod(uid)) for uid in ("m0", "m1")])
    )
    said = f"; the agent of {lost} has stopped reporting (detected at "
    assert [said in line for line in shown.splitlines()[1:]] == [True, False]
    gangs = tables.gangs([gang_answer(ledger.state, "team/job", ledger.state.groups["team/job"])])
    assert f"2 placed; 1 on {lost} (not ready)" in printed(gangs)


def test_the_wide_list_of_pods_has_what_they_ask_of_their_nodes() -> None:
    """Requests for CPU and memory are only in the wide table of pods."""
    wants = shape(ask(4000), node=NodeConstraints(cpu_milli=1500, memory_mib=2048))
    ledger = Ledger(rack("n1", 1), pod("a", shape=wants))
    answer = pod_answer(ledger.state, ledger.pod("a"))
    for wide in (True, False):
        shown = printed(tables.pods([answer], tables.Look(wide=wide)))
        assert ("1.5  2,048 MiB" in shown) == ("CPU" in shown) == wide


def test_a_node_says_each_reason_and_when_it_was_found_silent(golden: Golden) -> None:
    """The table of nodes shows that a node is cordoned and since when its agent has been silent."""
    ledger = Ledger(
        rack("n1", 4),
        NodeCordoned(node="n1", by="bob", reason="move"),
        NodeSilent(node="n1", grace_s=40),
    )
    answer = node_answer(ledger.node("n1"))
    golden({"cordoned and silent": tables.node_state(answer).plain})
    assert " 0/4 " in printed(tables.nodes([answer]))


def test_columns_without_room_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a table has too little room for some columns, a note on standard error names them."""
    ledger = Ledger(rack("n1", 4))
    for width, wanted in (("200", ""), ("60", "hidden columns: MEMORY")):
        monkeypatch.setenv("COLUMNS", width)
        show(tables.nodes([node_answer(ledger.node("n1"))]))
        said = capsys.readouterr()
        assert "hidden columns" not in said.out
        assert said.err.startswith(wanted)
        assert bool(said.err) is bool(wanted)


def test_why_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """On a narrow terminal, `why` wraps long lines between words. Into a pipe, it does not wrap."""
    ledger = Ledger(rack("n1", 1), rack("n2", 1), pod("a", ask(40_000)), pod("b", ask(60_000)))
    ledger.settle().submit(pod("late", ask(70_000))).settle()
    answer = why(ledger.state, ledger.pod("late"))
    for width in (60, 80):
        out = Screen(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        show_why(out, answer)
        assert isinstance(out.file, io.StringIO)
        lines = out.file.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert answer.sentence in " ".join(line.rstrip() for line in lines)
        assert "needed 70,000 MiB" in " ".join(lines)
    assert "hidden columns" not in capsys.readouterr().err
    pipe = Screen(file=io.StringIO(), width=60)
    show_why(pipe, answer)
    assert isinstance(pipe.file, io.StringIO)
    assert answer.sentence in pipe.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80])
def test_why_breaks_no_name_on_a_narrow_terminal(
    golden: Golden, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a narrow terminal `why` neither breaks a name nor drops an amount."""
    name, worker = f"retrieval-{'research-' * 2}worker-0", "large-language-model-worker"
    ledger = Ledger(rack("gpu-node-eu-west-1a-07", 1), pod("a", ask(4000), name=name))
    ledger.settle().play(gang("default/gang", 2)).submit(
        *(
            member(f"m{each}", cards(), group="default/gang", name=f"{worker}-{each}")
            for each in "01"
        )
    )
    ledger.settle()
    out = Screen(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show_why(out, why(ledger.state, ledger.pod("m0")))
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line for line in lines if f"default/{name}" in line]
    assert [line for line in lines if f"default/{worker}-0" in line]
    golden({f"{width} columns": out.file.getvalue()})
    assert capsys.readouterr().err == ""
    show_why(Screen(file=io.StringIO(), width=40), why(ledger.state, ledger.pod("a")))
    assert "MODEL" in capsys.readouterr().err


def test_a_pod_on_a_failed_device_says_so_before_what_it_holds() -> None:
    """If a pod's device has failed, the table of pods shows that before the pod's shares."""
    ledger = Ledger(rack("n1", 1), pod("a", ask(4000))).settle()
    ledger.play(DeviceHealthChanged(node="n1", device="n1-g0", healthy=False, reason="XID 79"))
    row = printed(tables.pods([pod_answer(ledger.state, ledger.pod("a"))])).splitlines()[1]
    assert 0 < row.index("XID 79") < row.index("4,000 MiB")


def test_why_counts_no_nodes_for_a_limit() -> None:
    """If a pod is pending because of a queue's limit, `why` prints no number of nodes."""
    ledger = Ledger(rack("n1", 1)).play(QueueObserved(queue="ml", capability={"pods": 0}))
    ledger.submit(pod("p", ask(1000), queue="ml")).settle()
    out = Screen(file=io.StringIO(), width=200)
    show_why(out, why(ledger.state, ledger.pod("p")))
    assert isinstance(out.file, io.StringIO)
    header, row = out.file.getvalue().splitlines()[1:3]
    assert header.split() == ["CAUSE", "FIX"]
    assert re.search(r"\bml\b.*\b0\b.*\b1\b", row)
    assert "node" not in row


def test_samples_take_a_line_or_two_on_a_narrow_terminal() -> None:
    """The sample pods that `up` prints fit 80 columns, with complete names of pods and nodes."""
    names = [f"distributed-gpu-training-worker-{number}" for number in range(4)]
    ledger = Ledger(
        rack("l40s-mps-1", 8), *(pod(name, cards(2)) for name in names), pod("b", ask(900_000)),
    ).settle()  # fmt: skip
    pods = [pod_answer(ledger.state, ledger.pod(name)) for name in (*names, "b")]
    whys = {"b": why(ledger.state, ledger.pod("b"))}
    out = io.StringIO()
    standalone.show_samples(Screen(file=out, width=80), standalone.Samples(pods, whys, [], 0.0))
    lines = out.getvalue().splitlines()
    assert len(lines) <= 1 + 2 * len(pods)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert lines[0].split() == ["POD", "NODE", "SHARES", "OR", "REASON"]
    assert [line.split()[:2] for line in lines if "worker" in line] == [
        [name, "l40s-mps-1"] for name in names
    ]
