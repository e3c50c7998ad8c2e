"""Tests of each key of `top`, and of what it shows, without a terminal."""

import io

import pytest
from msgspec import structs
from rich.console import Console

from apportion.cli.render.tables import devices as get_rows
from apportion.cli.verbs.see.top import SORTS, View, _headline
from apportion.cli.verbs.see.top import _devices as top_rows
from apportion.core.answers.reads import DeviceAnswer
from apportion.core.explain.views import device_answers, summary_answer
from tests.support.fleet import rack
from tests.support.golden import Golden
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, pod

ROWS = 4


def devices() -> list[DeviceAnswer]:
    """Return the devices of twelve nodes with two GPUs each. A pod uses one of the GPUs."""
    ledger = Ledger(*(rack(f"node-{number}", 2) for number in range(1, 13)))
    ledger.submit(pod("trainer", ask(9_000))).settle()
    return [each for node in ledger.state.nodes.values() for each in device_answers(node)]


def test_what_is_counted_by_phase_is_named(golden: Golden) -> None:
    """The headline of `top` shows the number of pods in each phase, with the phase's name."""
    state = Ledger(rack("n1", 2)).submit(pod("a", ask(9_000)), pod("b", ask(90_000))).settle().state
    said = _headline(summary_answer(state)).plain
    golden({"one placed, one waiting": said})


def names(view: View) -> list[str]:
    """Return the nodes that the view shows."""
    return [device.node for device in view.shown(devices(), ROWS)[0]]


def pressed(*keys: str) -> View:
    """Return a view in which these keys were pressed."""
    view = View()
    for key in keys:
        view.press(key, rows=ROWS)
        view.shown(devices(), ROWS)
    return view


def test_scrolling_ends_at_both_ends() -> None:
    """Scrolling by lines or pages stops at both ends of the list. Nodes are in natural order, so n2
    comes before n10."""
    assert names(pressed()) == ["node-1", "node-1", "node-2", "node-2"]
    assert names(pressed("down", "down")) == ["node-2", "node-2", "node-3", "node-3"]
    assert names(pressed("page-down")) == ["node-3", "node-3", "node-4", "node-4"]
    assert names(pressed("end")) == ["node-11", "node-11", "node-12", "node-12"]
    assert names(pressed("end", "down", "page-down")) == names(pressed("end"))
    assert names(pressed("end", "home", "up")) == names(pressed())


def test_sorting_goes_round() -> None:
    """Sorting by usage shows the most used device first. The key to change the sort order cycles
    through all orders."""
    shown, _ = pressed("s").shown(devices(), ROWS)
    assert shown[0].holders[0].pod == "trainer"
    assert names(pressed(*["s"] * len(SORTS))) == names(pressed())


def test_filtering() -> None:
    """A filter matches nodes and pods. While a user types a filter, keys are text, and Esc clears
    the filter."""
    view = pressed("/", *"node-12", "enter")
    assert names(view) == ["node-12", "node-12"]
    assert "of 2 matching 'node-12'" in view.status(2, 2)
    assert len(names(pressed("/", *"trainer", "enter"))) == 1
    assert names(pressed("/", *"q", "backspace", "enter")) == names(pressed())
    assert not pressed("/", "q").done
    assert names(pressed("/", *"none", "enter")) == []
    assert names(pressed("/", *"none", "enter", "escape")) == names(pressed())


def test_it_is_quit() -> None:
    """The key `q` quits. Unknown keys do nothing."""
    assert pressed("q").done
    assert not View().press("x", rows=ROWS)


def test_it_fits_eighty_columns() -> None:
    """`top` fits 80 columns, with one line per device that shows memory and pods."""
    out = Console(file=io.StringIO(), width=80, color_system=None)
    out.print(top_rows(devices()[:3], long=False))
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert "MEMORY GiB" in lines[0]
    assert "PODS" in lines[0]
    assert any("trainer" in line for line in lines)


def test_what_of_the_slots_is_told_stands_in_the_head() -> None:
    """The header of the slots column says what is counted: used slots in `top`, free slots in `get
    devices`."""
    [held] = [each for each in devices() if each.holders]
    for made, of_slots in ((top_rows([held]), "1/10"), (get_rows([held]), "9/10")):
        out = Console(file=io.StringIO(), width=250, color_system=None)
        out.print(made)
        assert isinstance(out.file, io.StringIO)
        head, row = out.file.getvalue().splitlines()
        word = "USED" if of_slots == "1/10" else "FREE"
        at = head.index(f"SLOTS {word}") + len(f"SLOTS {word}")
        assert row[:at].endswith(of_slots)


def test_a_card_in_mig_mode_has_no_bar_of_cores() -> None:
    """`top` draws no bar of cores for a GPU in MIG mode."""
    [card] = devices()[:1]
    for mode, empty in (("shared", True), ("mig", False)):
        out = Console(file=io.StringIO(), width=200, color_system=None)
        out.print(top_rows([structs.replace(card, mode=mode, memory_free_mib=0)]))
        assert isinstance(out.file, io.StringIO)
        assert ("░" in out.file.getvalue()) == empty


@pytest.mark.parametrize("long", [True, False], ids=["once", "on the screen"])
def test_a_long_state_does_not_push_its_line_out_of_the_terminal(*, long: bool) -> None:
    """A long device state is wrapped if `top` prints once, and cut with an ellipsis in the live
    view."""
    cordon = "fan replaced on Monday by the people of the second shift (root, 2026-11-26 05:11)"
    out = Console(file=io.StringIO(), width=80, color_system=None)
    out.print(top_rows([structs.replace(devices()[0], cordon=cordon)], long=long))
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    assert ("shift" in said, "…" in said) == (long, not long)
