"""An operator investigates a node that broke at a known time.

One test uses only the CLI; the other test uses only the console, in Chromium. Each test has its own
`apportion up` of 200 nodes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import follow, opened, running_browser, skip_unless_here
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow
POOLS = (("h200", 1, "8xH200-141GB"), ("h100", 4, "8xH100-80GB"), ("a100", 60, "8xA100-40GB"),
         ("t4", 135, "4xT4"))  # fmt: skip
NODES = sum(count for _, count, _ in POOLS)
BROKEN = "h200-1"
CARDS = 8
QUIET_S = 2
REASON = "PSU lost"
PRICES = 'currency = "EUR"\n[models]\n"*H200*" = 36000\n"*H100*" = 24000\n"*" = 400\n'
"""Dear, so that a day of a minute costs something."""
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  annotations: {{nvidia.com/use-gputype: "{model}"}}
spec:
  schedulerName: apportion
  containers:
  - {{name: main, image: x, resources: {{limits: {{nvidia.com/gpu: {cards}}}}}}}
"""
MOVABLE = ("chat-1", "chat-2", "chat-3")
HIT = (*(f"serving/{name}" for name in MOVABLE), "bio/fold-0")


def pod(namespace: str, name: str, model: str, cards: int = 1) -> str:
    """Return the manifest of a pod that requests `cards` whole GPUs of `model`."""
    return POD.format(namespace=namespace, name=name, model=model, cards=cards)


class Day(NamedTuple):
    """The running cluster, the file with its prices, and the last time before the node breaks.

    `before` is in UTC, to the second. The methods run verbs as the operator."""

    up: Standalone
    prices: Path
    before: str

    def said(self, *words: str, code: int = 0, stdin: str = "") -> str:
        """Run a verb, check that it exits with `code`, and return its output."""
        done = self.up.run(*words, stdin=stdin.encode())
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submitted(self, *documents: str, code: int = 0) -> str:
        """Run `submit --wait` for these manifests, and return its output."""
        return self.said("submit", "--wait", "-f", "-", code=code, stdin="---\n".join(documents))


def start(up: Standalone) -> None:
    """Submit the morning's pods: training on all H100s, services on the only node with H200s, and
    small jobs on other GPUs. Then end one training job."""
    day = Day(up, Path(), "")
    trainings = [pod("pretrain", f"llm-{number}", "H100", CARDS) for number in range(1, 5)]
    others = [pod("notebooks", f"nb-{number}", "A100") for number in range(1, 41)]
    day.submitted(*trainings, *others, *(pod("ci", f"test-{n}", "T4") for n in range(1, 21)))
    day.submitted(*(pod("serving", name, "H200,H100") for name in MOVABLE))
    day.submitted(pod("bio", "fold-0", "H200"))
    day.said("delete", "pretrain/llm-4")
    wait_until(lambda: "bound" not in day.said("get", "pods"), "all that is placed to run")


def break_it(up: Standalone, prices: Path) -> Day:
    """Fail all GPUs of a node, and submit a pod that needs one of them.

    Wait before the failure, because the console's time bar moves in whole seconds."""
    began = datetime.now(UTC)
    wait_until(lambda: (datetime.now(UTC) - began).total_seconds() > QUIET_S, "some quiet")
    day = Day(up, prices, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}")
    cards = re.findall(r"GPU-\w+", day.said("get", "devices", "--node", BROKEN))
    assert len(cards) == CARDS
    for card in cards:
        day.said("simulate", "fail", card, "--reason", REASON)
    node = ("get", "devices", "--node", BROKEN)
    wait_until(lambda: day.said(*node).count(f"failed: {REASON}") == CARDS, "all to have failed")
    day.submitted(pod("bio", "fold-1", "H200"), code=1)
    return day


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """Provide a cluster of 200 nodes with the morning's pods, on which one node has just failed."""
    fleet, prices = tmp_path / "fleet.yaml", tmp_path / "prices.toml"
    prices.write_text(PRICES)
    monkeypatch.setenv("APPORTION_PRICES", str(prices))
    rows = [f'- {{node: {name}-{at}, devices: "{spec}"}}'
            for name, count, spec in POOLS for at in range(1, count + 1)]  # fmt: skip
    fleet.write_text("\n".join(["nodes:", *rows]) + "\n")
    with Standalone(tmp_path / "data", "--no-samples", "--fleet", str(fleet)) as up:
        up.up()
        start(up)
        yield break_it(up, prices)
    up.nothing_left()


def test_with_the_verbs(day: Day) -> None:
    """With CLI verbs the operator finds the affected pods, the cause, and the node's state before
    the failure.

    The operator then plans for the node's loss, drains the node and reports the cost."""
    assert f"{CARDS} of" in line_of(day.said("doctor", code=1), "devices")
    assert BROKEN in line_of(day.said("doctor", code=1), "devices")
    told = day.said("tail", "--from", day.before, "--no-follow")
    assert len(re.findall(rf"of {BROKEN} failed: {REASON}", told)) == CARDS

    who_was_hit(day)
    why = day.said("why", "bio/fold-1")
    assert f"No node fits: device is unhealthy (1 of {NODES} nodes)" in why
    what_it_looked_like(day)
    what_would_happen(day)
    drained(day)
    reported(day)


def line_of(table: str, name: str) -> str:
    """Return the line of a table that begins with `name`."""
    [line] = [line for line in table.splitlines() if line.split(" ")[0] == name]
    return line


def who_was_hit(day: Day) -> None:
    """Check that `who` lists the same pods before and after the node's failure, and that `why`
    names the failed device."""
    for asked in (("who", BROKEN), ("who", BROKEN, "--at", day.before)):
        said = day.said(*asked)
        assert all(pod in said for pod in HIT), said
        assert len(said.splitlines()) == 1 + len(HIT)
    why = day.said("why", HIT[0])
    assert f"is allocated on {BROKEN}" in why
    assert "its device GPU-" in why.split(". ")[0]
    assert f"has failed ({REASON})" in why


def what_it_looked_like(day: Day) -> None:
    """Check that `top`, `diff` and `history` show the node before and after the failure."""
    once = ("top", "--once", "--node", BROKEN)
    assert "failed" not in day.said(*once, "--at", day.before)
    assert f"failed: {REASON}" in day.said("get", "devices", "--node", BROKEN)
    differs = day.said("diff", "--from", day.before)
    assert differs.count(f"failed: {REASON}") == CARDS
    assert f"agent/{BROKEN}" in differs
    assert f"failed: {REASON}" in day.said("history", BROKEN)
    assert REASON not in day.said("history", BROKEN, "--at", day.before)


def what_would_happen(day: Day) -> None:
    """Check the plan for the node's loss: its services would move to H100s, and no GPU fits the pod
    that needs an H200."""
    held = day.said("who", BROKEN)
    planned = day.said("plan", "--lose", BROKEN, code=6)
    for name in MOVABLE:
        assert re.search(rf"serving/{name} +fits +{BROKEN} +h100-\d", planned), planned
    assert re.search(rf"bio/fold-0 +never fits +{BROKEN}", planned), planned
    assert day.said("who", BROKEN) == held, "a plan changes nothing"


def drained(day: Day) -> None:
    """Check that a drain moves the pods as planned, and that the cordon names the user and the
    reason."""
    done = day.said("drain", BROKEN, "--reason", REASON, "--by", "ada", code=5)
    assert "bio/fold-0" in done
    assert day.said("who", BROKEN) == ""
    pods = day.said("get", "pods")
    for name in MOVABLE:
        assert re.search(rf"serving +{name} +\w+ +h100-\d", pods), pods
    assert re.search(r"bio +fold-0 +pending", pods), pods
    assert re.search(rf"{BROKEN} .*{REASON}.*ada", day.said("get", "nodes")), day.said(
        "get", "nodes"
    )
    hit = day.said("who", BROKEN, "--since", day.before)
    assert all(pod in hit for pod in HIT), "who was hit is known after the drain as well"


def reported(day: Day) -> None:
    """Check that the cost report has every namespace with GPUs, adds up, and includes unhealthy
    GPUs."""
    asked = ("report", "cost", "--prices", str(day.prices))
    assert "unhealthy" in day.said(*asked)
    [*rows, nobody] = csv.DictReader(day.said(*asked, "--format", "csv").splitlines())
    costs = {row["key"]: float(row["cost"]) for row in rows}
    assert set(costs) == {"bio", "ci", "notebooks", "pretrain", "serving"}
    assert all(cost > 0 for cost in costs.values())
    assert (nobody["key"], float(nobody["cost"])) == ("", 0.0)
    assert float(nobody["unhealthy_gpu_hours"]) > 0


def test_with_the_console(day: Day) -> None:
    """With the console's links and buttons the operator finds the same answers as with the verbs.
    The console shows actions, but they are disabled."""
    skip_unless_here()
    assert day.up.data is not None
    base = json.loads((day.up.data / "connection.json").read_text())["gateway"]
    assert base in day.up.said("Console: ")
    with running_browser() as browser, opened(browser, base) as page:
        page.goto("/")
        broken_card(page)
        waiting_pod(page)
        the_past(page, day.before)
        the_cost(page)
        assert offences(page) == []


def open_page(page: Page, name: str) -> None:
    """Follow a link of the navigation."""
    page.get_by_role("navigation").get_by_role("link", name=re.compile(f"^{name}")).click()


def broken_card(page: Page) -> None:
    """In the console, follow links from the count of unhealthy GPUs to the What if page for the
    node's loss."""
    page.get_by_role("link", name=f"{CARDS} unhealthy").click()
    page.get_by_text(f"{CARDS} GPUs", exact=True).click()
    page.get_by_role("link", name=f"{BROKEN} device 0").click()
    panel = page.get_by_role("region", name="Details")
    expect(panel).to_contain_text(REASON)
    expect(panel.get_by_role("button", name=re.compile("^Cordon"))).to_have_count(0)
    panel.locator(".holders").get_by_role("link", name=HIT[0]).click()
    expect(page.locator("h1 .c-bad")).to_contain_text("failed")
    expect(page.get_by_role("main")).to_contain_text(REASON)
    page.go_back()
    page.get_by_role("link", name="Simulate node loss").click()
    hit = page.locator("section", has_text="Displaced pods")
    for name in HIT:
        expect(hit.get_by_role("row", name=name)).to_be_visible()
    expect(hit.get_by_role("row", name=HIT[0])).to_contain_text("h100-")
    expect(hit.get_by_role("row", name="bio/fold-0")).to_contain_text("never")


def waiting_pod(page: Page) -> None:
    """Check the pending pod: its row in the queue, the cause, and its own page."""
    open_page(page, "Pending")
    expect(page.get_by_role("heading", level=1)).to_contain_text("1 pod needs 1 GPU")
    expect(page.get_by_role("main")).to_contain_text("device is unhealthy")
    page.get_by_role("row", name="bio/fold-1").get_by_role("link", name="bio/fold-1").click()
    first = page.get_by_role("heading", level=1)
    expect(first).to_contain_text(f"no node fits: device is unhealthy (1 of {NODES} nodes)")
    open_page(page, "Doctor")
    expect(page.get_by_role("main")).to_contain_text(BROKEN)


def the_past(page: Page, before: str) -> None:
    """Check that the time bar's first mark is the failure, and that no GPU is unhealthy before
    it."""
    open_page(page, "Fleet")
    answer = page.get_by_role("heading", level=1)
    expect(answer).to_contain_text(f"{CARDS} unhealthy")
    page.locator("#t-marks .mk").first.click()
    together = page.locator("#t-list:popover-open")
    if together.count():  # what failed within a moment is one mark, and lists them
        together.get_by_role("button", name=f"of {BROKEN} failed: {REASON}").first.click()
    expect(answer).to_contain_text("1 unhealthy")
    page.get_by_role("slider").press("ArrowLeft")
    expect(answer).to_contain_text("0 unhealthy")
    expect(page.locator("html")).to_have_class("past")
    open_page(page, "Pending")
    expect(answer).to_contain_text("No pending pods")
    open_page(page, "Pods")
    expect(page.get_by_role("row", name=HIT[0])).to_contain_text(BROKEN)
    page.get_by_role("button", name="Now").click()
    open_page(page, "Events")
    follow(page, page.get_by_role("link", name="Compare…"))
    follow(page, page.get_by_role("link", name="Around").first)
    expect(answer).to_contain_text(re.compile(r"\bGPUs\b.* changed"))
    around_the_break(page, before)


def around_the_break(page: Page, before: str) -> None:
    """Check that a comparison from just before the failure shows exactly the failed GPUs as
    changed.

    The page suggests an earlier start time, so the test enters `before` instead."""
    first, last = (page.get_by_label(name, exact=True) for name in ("From", "To"))
    shown = before.replace("T", " ")
    assert first.input_value() <= shown <= last.input_value()
    first.fill(shown)
    page.get_by_role("button", name="Compare", exact=True).click()
    answer = page.get_by_role("heading", level=1)
    expect(answer).to_contain_text(re.compile(rf"\b{CARDS} GPUs\b.* changed"))
    failed = page.get_by_role("listitem").filter(has_text=f"failed: {REASON}")
    expect(failed).to_have_count(CARDS)


def the_cost(page: Page) -> None:
    """Check that the report shows each namespace's cost and the unhealthy GPUs."""
    open_page(page, "Reports")
    expect(page.get_by_role("main")).to_contain_text("EUR at list price")
    for name in ("bio", "ci", "notebooks", "pretrain", "serving"):
        row = page.get_by_role("row", name=re.compile(rf"^{name} "))
        expect(row).to_contain_text(re.compile(r"[1-9][\d,.]* EUR"))
    expect(page.get_by_role("row", name=re.compile("^Unhealthy .*%"))).to_be_visible()
