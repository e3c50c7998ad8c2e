"""The What if page, reports and doctor agree with the command line, and change nothing."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

from apportion.core.answers.reads import NO_PRICES
from apportion.core.workloads.reading import TAKEN
from tests.integration.console.cards import fail, recover
from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

NEVER = """\
apiVersion: v1
kind: Pod
metadata: {name: giant}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 64}}}
"""


def newest(cluster: Standalone) -> int:
    """Return the newest revision of the ledger."""
    return int(cluster.json("get", "pods")["revision"])


def test_a_lost_node_says_who_is_hit_and_appends_nothing(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """For a lost node, the What if page lists every pod of the node with its new node. It appends
    no event."""
    held = [pod["name"] for pod in cluster.json("get", "pods")["items"] if pod["node"] == "t4-1"]
    assert held
    before = newest(cluster)
    with opened(browser, base) as page:
        visit(page, "#/whatif?lose=t4-1")
        section = page.locator("section", has_text="Displaced pods")
        for name in held:
            expect(section).to_contain_text(name)
        expect(page.locator("#same")).to_contain_text("apportion plan --lose t4-1")
        expect(page.locator(".mcards .gauge.broken").first).to_be_visible()
        assert offences(page) == []
        page.get_by_label("Remove t4-1").click()
        expect(page.locator("h1")).to_contain_text("Start with a manifest")
        rows = page.request.get("/api/v1/log?limit=150").json()["items"]
    # agents and schedulers also append on their own: what nodes use, or that one is silent
    later = [row for row in rows if row["revision"] > before]
    assert not [row for row in later if row["type"].startswith("Pod") or "/" not in row["source"]]


def third_card(cluster: Standalone) -> str:
    """Return the id of device 2 of node h100-1."""
    [card] = [
        each["device"] for each in cluster.json("get", "devices", "--node", "h100-1")["items"]
        if each["index"] == 2
    ]  # fmt: skip
    return str(card)


def test_a_card_to_lose_is_offered_once_its_node_is_named(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """Once a node is entered, the What if page offers that node's GPUs. If a GPU is chosen, only
    that GPU is drawn as failed."""
    card = third_card(cluster)
    with opened(browser, base) as page:
        visit(page, "#/whatif")
        field = page.get_by_label("Lost nodes or devices")
        cards = page.locator("#nodes option[label]")
        field.fill("h100-")
        expect(page.locator("#nodes option")).to_have_count(3)
        expect(cards).to_have_count(0)
        field.fill("h100-1")
        expect(cards).to_have_count(8)
        expect(cards.nth(2)).to_have_attribute("label", "h100-1 device 2, H100 80GB")
        expect(cards.nth(2)).to_have_attribute("value", card)
        field.fill(card)
        field.press("Enter")
        expect(page.locator("#same")).to_contain_text(f"apportion plan --lose {card}")
        expect(page.locator("#result .cmp")).to_contain_text("GPUs unhealthy")
        after = page.locator(".ba > div", has_text="After").locator(".mn", has_text="h100-1")
        expect(after.first.locator(".gauge.broken")).to_have_count(1)
        expect(page.locator(".ba .gauge.broken")).to_have_count(1)
        assert offences(page) == []
        field.fill("h100-1")
        expect(cards).to_have_count(7)


def test_a_card_is_named_by_its_node_and_number(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The What if page accepts NODE:NUMBER for a GPU in its address. An unknown name is copied
    whole into the suggested CLI command."""
    card = third_card(cluster)
    with opened(browser, base) as page:
        visit(page, "#/whatif?lose=h100-1:2")
        expect(page.locator("#result .cmp")).to_contain_text("GPUs unhealthy")
        expect(page.locator("#same")).to_contain_text(f"apportion plan --lose {card}")
        assert page.url.endswith(f"#/whatif?lose={card}")
        visit(page, "#/whatif?lose=card%2099")
        expect(page.locator("#same")).to_contain_text("apportion plan --lose 'card 99'")


def test_who_waits_already_is_counted(browser: Browser, base: str) -> None:
    """The What if page lists the pods that were already pending separately from those that the loss
    of a node displaces."""
    with opened(browser, base) as page:
        visit(page, "#/whatif?lose=t4-1")
        section = page.locator("section", has=page.get_by_text(re.compile("^Pending")))
        expect(section).to_contain_text(re.compile(r"\d+ pods? would stay pending"))
        expect(section.locator("li")).to_have_count(1)


def test_on_a_phone_the_answer_comes_into_sight(browser: Browser, base: str) -> None:
    """On a phone the What if page scrolls to the answer below the form. The form does not suggest
    nodes that are already lost."""
    with opened(browser, base, size=NARROW) as page:
        visit(page, "#/whatif")
        page.locator("#lose").fill("t4-")
        expect(page.locator("#nodes option[value='t4-1']")).to_have_count(1)
        page.locator("#lose").fill("t4-1")
        page.keyboard.press("Enter")
        expect(page.locator("#result .again")).to_be_in_viewport()
        page.locator("#lose").fill("t4-")
        expect(page.locator("#nodes option[value='t4-1']")).to_have_count(0)
        assert offences(page) == []


def test_never_is_told_apart_from_not_now(browser: Browser, base: str) -> None:
    """The What if page shows whether a manifest fits, never fits, or is invalid."""
    with opened(browser, base) as page:
        visit(page, "#/whatif")
        page.locator("#manifest").fill(NEVER.replace("64", "1"))
        expect(page.locator("#result .chip").first).to_have_text("fits")
        page.locator("#manifest").fill(NEVER)
        expect(page.locator("#result .chip").first).to_have_text("never fits")
        page.locator("#manifest").fill("kind: [")
        expect(page.locator("#main")).to_contain_text(re.compile("YAML|cannot|document"))


def test_all_that_is_asked_is_in_the_address(browser: Browser, base: str) -> None:
    """The What if page keeps all inputs in its address, so that users can share it as a link. A
    manifest that is too long for a link is left out."""
    manifest = NEVER.replace("64", '"1"') + "# ? & = # %2E +\n"
    with opened(browser, base) as page:
        visit(page, "#/whatif")
        page.locator("#manifest").fill(manifest)
        expect(page.locator("#result .chip").first).to_have_text("fits")
        page.locator("#lose").fill("t4-1")
        page.keyboard.press("Enter")
        expect(page.locator("#same")).to_contain_text("-f FILE --lose t4-1")
        address = page.evaluate("location.hash")
        with opened(browser, base) as other:
            visit(other, address)
            expect(other.locator("#manifest")).to_have_value(manifest)
            expect(other.locator("#same")).to_contain_text("-f FILE --lose t4-1")
            expect(other.locator("#result")).to_contain_text("default/giant")
        page.locator("#manifest").fill(manifest + "# long\n" * 1000)
        expect(page.locator("#linked")).to_contain_text("too long for a link")
        assert "manifest" not in page.evaluate("location.hash")
        page.locator("#manifest").fill(manifest)
        expect(page.locator("#linked")).to_be_empty()
        page.wait_for_function("location.hash.includes('manifest=')")


def test_a_manifest_of_a_pod_that_waits_already_says_since_when(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a user enters the manifest of a pod that is already pending, the What if page evaluates
    that pod again. It lists the pod once, with the time at which it became pending."""
    manifest = NEVER.replace("giant", "waits-already")
    cluster.json("submit", "-f", "-", "--wait", stdin=manifest.encode(), code=1)
    pod = cluster.json("get", "pods", "waits-already")["items"][0]
    with opened(browser, base) as page:
        visit(page, "#/whatif")
        page.locator("#manifest").fill(manifest)
        section = page.locator("#result section", has_text="default/waits-already")
        expect(section.locator(".chip").first).to_have_text("never fits")
        expect(section).to_contain_text(f"Already pending since #{pod['submitted_revision']:,}")
        expect(section).to_have_count(1)
        assert offences(page) == []
    cluster.json("delete", "waits-already")


@pytest.mark.slow
def test_the_page_of_a_pod_says_that_its_node_is_lost(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The page of a pod on a lost node reports the loss and does not claim that the pod is
    running."""

    def ready(node: str) -> bool:
        found = cluster.json("get", "nodes")["items"]
        return any(each["node"] == node and each["ready"] for each in found)

    pods = cluster.json("get", "pods")["items"]
    name = next(each["name"] for each in pods if each["node"] == "t4-1")
    assert cluster.run("simulate", "lose", "t4-1").returncode == 0
    try:
        wait_until(lambda: not ready("t4-1"), "the node to be lost", timeout_s=180, interval_s=2)
        with opened(browser, base) as page:
            visit(page, f"#/pod/default/{name}")
            expect(page.locator("h1")).to_contain_text("Placed on t4-1")
            health = page.locator("section", has=page.get_by_role("heading", name="Health"))
            expect(health).to_contain_text("The agent of t4-1 has stopped reporting (detected at")
            expect(health).not_to_contain_text(re.compile("healthy", re.IGNORECASE))
            expect(
                page.locator("section", has=page.get_by_role("heading", name="History"))
            ).to_contain_text("Node silent")
            assert offences(page) == []
            visit(page, f"#/pods?q={name}")
            expect(page.locator("#rows tr").first).to_contain_text("node not ready")
    finally:
        cluster.run("simulate", "return", "t4-1")
    wait_until(lambda: ready("t4-1"), "the node to return", interval_s=1)


def test_a_change_for_a_pod_that_waits_begins_with_no_answer(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a user presses "Try a change" for a pending pod, the What if page predicts nothing until
    the user enters a change."""
    pods = cluster.json("get", "pods")["items"]
    waits = next(f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["reasons"])
    with opened(browser, base) as page:
        for address in (f"#/pod/{waits}", f"#/waiting?pod={waits}"):
            visit(page, address)
            page.locator("a:visible", has_text="Try a change").first.click()
            expect(page.locator("h1")).to_contain_text("What would help")
            expect(page.locator("#manifest")).to_have_value("")
            expect(page.locator("#result")).to_contain_text("what helps")
            expect(page.locator("#result .chip, #result table")).to_have_count(0)
            expect(page.locator("h1 a")).to_be_visible()
            assert offences(page) == []
        visit(page, f"#/whatif?pod={waits}")
        expect(page.locator("h1 a")).to_have_text(waits)
        page.locator("#add").fill("2xH100-80GB")
        page.locator("#add").press("Enter")
        expect(page.locator("#result table")).not_to_have_count(0)
        assert f"pod={waits}&add=" in page.url
        page.get_by_label("Remove 2xH100-80GB").click()
        expect(page.locator("h1 a")).to_have_text(waits)


def test_what_if_begins_with_the_first_in_the_queue(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The What if page opens with the first pod in the queue. If the queue is empty, the page
    explains what to enter."""
    pods = cluster.json("get", "pods")["items"]
    waits = {f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["reasons"]}
    with opened(browser, base) as page:
        visit(page, "#/waiting")
        page.locator(".line-h").first.click()
        first = page.locator(".line tbody td.name > a").first.inner_text()
        assert first in waits
        visit(page, "#/whatif")
        expect(page.locator("h1")).to_have_text(f"What would help {first}, the first in the queue?")
        expect(page.locator("#manifest")).to_have_value("")
        expect(page.locator("#same")).to_be_empty()
        visit(page, "#/whatif?at=1")
        expect(page.locator("h1")).to_contain_text("Start with a manifest")
        expect(page.locator("#result li")).to_have_count(3)
        assert offences(page) == []


def test_a_link_names_no_pod_that_it_is_not_about(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The address of the What if page names a pod only if the page is about that pod."""
    pods = cluster.json("get", "pods")["items"]
    waits = next(f"{pod['namespace']}/{pod['name']}" for pod in pods if pod["reasons"])
    with opened(browser, base) as page:
        for address in ("#/whatif", f"#/whatif?pod={waits}"):
            visit(page, address)
            expect(page.locator("h1")).to_contain_text("What would help")
            page.locator("#lose").fill("t4-1")
            page.locator("#lose").press("Enter")
            expect(page.locator("#same")).to_contain_text("--lose t4-1")
            assert page.url.endswith("#/whatif?lose=t4-1")


def test_a_node_far_down_a_large_fleet_is_offered(browser: Browser, base: str) -> None:
    """The What if page offers every node of a fleet of 7,000, because the page reads all pages of
    the list."""

    def listed(route: Route) -> None:
        after = int((re.findall(r"continue=(\d+)", route.request.url) or ["0"])[0])
        items = [{"node": f"n-{at}"} for at in range(after, after + 1000)]
        more = str(after + 1000) if after < 6000 else ""
        route.fulfill(json={"revision": 1, "items": items, "continue": more})

    with opened(browser, base) as page:
        page.route(re.compile(r"/api/v1/nodes\?"), listed)
        page.route(re.compile("/api/v1/nodes/"), lambda route: route.fulfill(json={"devices": []}))
        visit(page, "#/whatif")
        page.locator("#lose").fill("n-6999")
        expect(page.locator("#nodes option")).to_have_attribute("value", "n-6999")


TWO_CAUSES = """\
apiVersion: v1
kind: Pod
metadata: {name: two-causes, annotations: {nvidia.com/use-gputype: H100}}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 900000}}}
"""


def test_each_cause_has_a_line_and_a_cure_of_its_own(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The queue page and the pod's history show every cause that the gateway names. On the queue
    page, each cause has the change that would remove it."""
    cluster.run("submit", "--wait", "-f", "-", stdin=TWO_CAUSES.encode())
    with opened(browser, base) as page:
        lines = page.request.get("/api/v1/lines").json()["lines"]
        [line] = [each for each in lines if each["first"][0]["name"] == "two-causes"]
        count = len(line["causes"])
        assert count > 1
        visit(page, "#/waiting?pod=default/two-causes")
        shown = page.locator(".line").nth(lines.index(line)).locator(".causes > li")
        expect(shown).to_have_count(count)
        for row, cause in zip(shown.all(), line["causes"], strict=True):
            expect(row).to_contain_text(cause["words"])
            words = re.compile(re.escape(cause["unblocked_by"]), re.IGNORECASE)
            expect(row.locator(".cure")).to_contain_text(words)
            said, bar = (row.locator(part).bounding_box() for part in (".cz > span", ".cz > i"))
            assert said is not None
            assert bar is not None
            assert bar["y"] >= said["y"] + said["height"], "words lie on no bar"
        visit(page, "#/pod/default/two-causes")
        expect(page.locator(".stack .causes > li")).to_have_count(count)
        nearest = page.locator("section", has=page.get_by_role("heading", name="Closest nodes"))
        expect(nearest).to_have_count(1)
        for at in range(1, nearest.locator("th").count() + 1):
            cells = nearest.locator(f"tbody td:nth-child({at})").all_inner_texts()
            assert any(cells), f"column {at} is empty"
        expect(page.locator(".tl .p-refused .clause").nth(1)).to_contain_text(
            re.compile(r"nodes?\)")
        )
    assert cluster.run("delete", "two-causes").returncode == 0


def test_a_report_is_that_of_the_command_line(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A report page shows the same rows as the CLI."""
    rows = cluster.json("report", "usage")["rows"]
    with opened(browser, base) as page:
        visit(page, "#/reports")
        expect(page.locator("h1")).to_contain_text("GPU-hours since")
        for row in rows:
            expect(page.locator("table").first).to_contain_text(row["key"])
        hours = page.locator("table").first.locator("td:nth-child(2)").all_inner_texts()
        assert len(hours) == len(rows) + 4, "and all, free, cordoned, broken"
        assert all(re.fullmatch(r"[\d,]+\.\d\d(\d\d)?", each) for each in hours), hours
        expect(page.locator("h1")).to_have_text(re.compile(r"^[\d,]+\.\d\d GPU-hours"))
        expect(page.locator("#chart svg")).to_have_attribute("role", "img")
        page.locator('[data-by="node"]').click()
        expect(page.locator("table").first).to_contain_text("t4-1")
        assert page.url.endswith("#/reports?by=node")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_report_is_there_as_files_and_says_whose_colour_is_whose(
    browser: Browser, base: str, cluster: Standalone, size: tuple[int, int]
) -> None:
    """Downloaded reports have file names that describe their content. The legend of a narrow chart
    is below the chart."""
    cluster.json("cordon", "t4-1", "--reason", "dust", "--by", "ann")
    cluster.json("uncordon", "t4-1", "--by", "ann")
    with opened(browser, base, size=size) as page:
        visit(page, "#/reports?by=queue")
        for words, name in (("CSV", "cost-by-queue.csv"), ("JSON", "cost-by-queue.json")):
            with page.expect_download() as download:
                page.get_by_role("link", name=words, exact=True).first.click()
            assert download.value.suggested_filename == name
        with page.expect_response("**/report/usage?by=namespace*") as told:
            visit(page, "#/reports")
        address = page.get_by_role("link", name="JSON", exact=True).first.get_attribute("href")
        assert parse_qs(urlsplit(address or "").query)["to"] == [told.value.json()["to"]]
        expect(page.get_by_role("link", name="FOCUS")).to_have_count(1)
        expect(page.locator("#main")).not_to_contain_text("`")
        visit(page, "#/reports")
        spoken = page.locator("#chart")
        expect(spoken.get_by_text("default").locator("visible=true").first).to_be_visible()
        if size == NARROW:
            expect(spoken.locator("li").first).to_be_visible()
        assert offences(page) == []


def test_differences_are_those_of_what_is_shown(browser: Browser, base: str) -> None:
    """A difference on the What if page is the difference of the two rounded amounts in its row."""

    def rounded(route: Route) -> None:
        headers = {**route.request.headers, "accept": "application/json"}
        answer = route.fetch(headers=headers).json()
        for when, gib in (("before", 16_217.6), ("after", 17_492.4)):
            totals = answer[when]
            totals["memory_mib"] = totals["memory_free_mib"] + gib * 1024
        route.fulfill(json=answer)

    with opened(browser, base) as page:
        page.route(re.compile("/api/v1/plan"), rounded)
        visit(page, "#/whatif?policy=spread")
        row = page.locator(".cmp tr", has_text="Memory allocated")
        assert row.locator("td").all_inner_texts() == ["16,218", "17,492", "▲ 1,274"]


def test_a_report_of_nothing_says_so(browser: Browser, base: str) -> None:
    """An empty report shows a message. Without prices, the page requests the costs only once."""
    asked: list[str] = []

    def nothing(route: Route) -> None:
        answer = route.fetch().json()
        answer["total"]["allocated_gpu_hours"] = 0
        empty = (
            [{**answer["rows"][0], "allocated_gpu_hours": 0}]
            if "by=user" in route.request.url
            else []
        )
        route.fulfill(json={**answer, "rows": empty, "steps": []})

    def unpriced(route: Route) -> None:
        asked.append(route.request.url)
        problem = {
            "error": "no price file",
            "code": NO_PRICES,
            "fix": "start it with --prices FILE",
        }
        route.fulfill(status=404, json=problem)

    with opened(browser, base) as page:
        page.route(re.compile("/api/v1/report/usage"), nothing)
        page.route(re.compile("/api/v1/report/cost"), unpriced)
        visit(page, "#/reports")
        table = page.locator("table").first
        expect(page.locator("h1")).to_contain_text("No GPU-hours since")
        expect(table).to_contain_text("No GPU-hours in this period")
        expect(table.locator("tfoot tr").first).to_have_text(re.compile("Allocated\\s*0"))
        page.locator('[data-by="user"]').click()
        expect(table.locator("tbody")).to_contain_text("0")
        expect(table.locator("tbody")).not_to_contain_text("0.00")
        note = page.locator("#main").inner_text()
    assert len(asked) == 1
    assert "--prices" in note


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_line_of_a_report_falls_with_what_breaks(
    browser: Browser, base: str, cluster: Standalone, size: tuple[int, int]
) -> None:
    """The capacity line of a usage chart excludes unhealthy devices that no pod uses."""
    card = next(
        each["device"] for each in cluster.json("get", "devices")["items"] if not each["holders"]
    )
    fail(cluster, card, reason="XID 79")
    try:
        with opened(browser, base, size=size) as page:
            parts: dict[str, float] = {}

            def drawn() -> bool:
                """Return True if the chart's last step shows at least 0.1 unhealthy GPUs."""
                visit(page, "#/")
                with page.expect_response(re.compile("/api/v1/report/usage")) as answer:
                    visit(page, "#/reports")
                report = answer.value.json()["steps"]
                last = max(step["from"] for step in report)
                parts.update(
                    (
                        part,
                        sum(
                            step.get(f"{part}_gpu_hours") or 0
                            for step in report
                            if step["from"] == last
                        ),
                    )
                    for part in ("allocated", "free", "cordoned", "unhealthy")
                )
                area = page.locator("#chart .off").evaluate("each => each.getBBox().height")
                return area > 0 and 32 * parts["unhealthy"] > 0.1 * sum(parts.values())

            wait_until(drawn, "a chart that shows the broken card")
            cards = 32 * (parts["allocated"] + parts["free"]) / sum(parts.values())
            label = page.locator("#chart svg").get_attribute("aria-label") or ""
            [spoken] = re.findall(r"Usable capacity: .* minimum, ([\d.]+) GPUs last", label)
            assert float(spoken) == pytest.approx(cards, abs=0.15)
            expect(page.locator(".card", has=page.locator("#chart"))).to_contain_text(
                re.compile("cordoned or unhealthy, not allocated.*until their pods end", re.DOTALL)
            )
            assert offences(page) == []
    finally:
        recover(cluster, card)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_questions_keep_the_rules(browser: Browser, base: str, size: tuple[int, int]) -> None:
    """On wide and narrow screens, the What if, report, doctor and events pages name their controls,
    have one heading, and never scroll sideways."""
    with opened(browser, base, size=size) as page:
        for address in ("whatif", "reports", "doctor", "events"):
            visit(page, f"#/{address}")
            assert offences(page) == [], address


def test_the_doctor_counts_in_a_whole_sentence(browser: Browser, base: str) -> None:
    """Doctor's headline counts problems, warnings and passed checks."""
    with opened(browser, base) as page:
        visit(page, "#/doctor")
        counted = r"Healthy: \d+ passed, \d+ warnings?|\d+ problems?, \d+ warnings?, \d+ passed"
        expect(page.locator("h1")).to_contain_text(re.compile(counted))


def test_what_the_doctor_names_is_a_link(browser: Browser, base: str, cluster: Standalone) -> None:
    """Doctor's findings link to the node's GPUs and to the unhealthy GPUs."""
    sees = re.compile(r"failed, on .*\bt4-1\b")
    [card, *_] = cluster.json("get", "devices", "--node", "t4-1")["items"]
    fail(cluster, card["device"], reason="XID 79")
    try:
        wait_until(lambda: sees.search(cluster.run("doctor").stdout), "the doctor to see it")
        with opened(browser, base) as page:
            visit(page, "#/doctor")
            found = page.locator(".checks li", has_text="failed, on ")
            node = found.get_by_role("link", name="t4-1", exact=True)
            expect(node).to_have_attribute("href", "#/fleet?q=node:t4-1")
            shown = found.get_by_role("link", name="unhealthy GPUs")
            expect(shown).to_have_attribute("href", "#/fleet?show=broken")
            assert offences(page) == []
    finally:
        recover(cluster, card["device"])


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_policy_is_cut_off(browser: Browser, base: str, size: tuple[int, int]) -> None:
    """Each policy button fits on one line, and all buttons are within the form."""
    with opened(browser, base, size=size) as page:
        visit(page, "#/whatif")
        group = page.get_by_role("group", name="Policy")
        whole = group.bounding_box()
        assert whole
        for button in group.get_by_role("button").all():
            box = button.bounding_box()
            assert box
            assert box["height"] == 28
            assert box["x"] >= whole["x"]
            assert box["x"] + box["width"] <= whole["x"] + whole["width"] + 0.5
        assert group.evaluate("each => each.scrollWidth <= each.clientWidth")


def test_a_plan_is_told_as_before_and_after(browser: Browser, base: str) -> None:
    """The What if page heads its columns "Before" and "After" when a node is lost."""
    with opened(browser, base) as page:
        visit(page, "#/whatif?lose=t4-1")
        heads = page.locator("#result .cmp th[scope=col]").all_inner_texts()
        assert heads == ["", "Before", "After", "Change"]
        assert page.locator(".ba h2").all_inner_texts() == ["Before", "After"]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_of_what_cannot_be_read_only_that_is_said(
    browser: Browser, base: str, size: tuple[int, int]
) -> None:
    """For unreadable input the What if page shows only the errors and predicts nothing."""
    with opened(browser, base, size=size) as page:
        visit(page, "#/whatif?manifest=kind:%20[")
        expect(page.locator("h1")).to_contain_text("document 1, line 1")
        expect(page.locator("#said")).to_contain_text("document 1, line 1")
        expect(page.locator("#main")).not_to_contain_text("would change")
        expect(page.locator("#result section")).to_have_count(0)
        assert offences(page) == []
        visit(page, "#/whatif?manifest=kind:%20A%0A---%0Akind:%20B")
        expect(page.locator("h1")).to_have_text("2 invalid documents")
        expect(page.locator("#result .note")).to_have_count(2)
        assert offences(page) == []


def test_the_field_of_a_manifest_says_what_it_takes_and_that_it_asks_by_itself(
    browser: Browser, base: str
) -> None:
    """The manifest field's placeholder names only accepted kinds, including Queue and
    ResourceQuota. The field's description states that the page evaluates a manifest as the user
    types."""
    with opened(browser, base) as page:
        visit(page, "#/whatif")
        field = page.locator("#manifest")
        named = (field.get_attribute("placeholder") or "").partition(": ")[2].split(", ")
        assert set(named) <= {kind for _, kind in TAKEN}
        assert {"Queue", "ResourceQuota"} <= set(named)
        expect(field).to_have_accessible_description(re.compile("as you type"))
        expect(page.locator("#by-itself")).to_be_visible()


COUNTED = """() => [...document.querySelectorAll("h1, #kinds em")].map(each => each.textContent)"""
"""At one time: what comes by itself is counted in all of them at once."""


def test_chips_of_kinds_count_all_events(browser: Browser, base: str) -> None:
    """On the events page, the counts of all kinds of events add up to the number of events."""
    with opened(browser, base) as page:
        visit(page, "#/events")
        answer, *counts = page.evaluate(COUNTED)
        total = int(re.sub(r"\D", "", answer.split(" event")[0]))
        assert sum(int(each.replace(",", "")) for each in counts) == total
