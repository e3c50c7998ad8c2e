"""The pods page's address contains its sorting, filters and groups."""

from playwright.sync_api import Browser, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.standalone import Standalone

JOB = b"""\
apiVersion: batch/v1
kind: Job
metadata: {name: sweep, namespace: grouped}
spec:
  parallelism: 2
  template:
    spec:
      schedulerName: apportion
      restartPolicy: Never
      containers:
      - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 1000}}}
"""


def test_pods_are_sorted_and_filtered_by_the_address(browser: Browser, base: str) -> None:
    """Sorting and filters of the pods page are in its address, and opening that address restores
    them."""
    with opened(browser, base) as page:
        visit(page, "#/pods")
        page.get_by_role("button", name="Node", exact=True).click()
        head = page.locator("th", has=page.locator("#sort-node"))
        expect(head).to_have_attribute("aria-sort", "ascending")
        expect(page.locator("#sort-node")).to_be_focused()
        expect(page.locator("#matching")).to_have_text("by node")
        page.get_by_label("Namespace").select_option("default")
        page.get_by_label("Node", exact=True).fill("t4-1")
        expect(page.locator("#matching")).to_contain_text("matching, by node")
        address = "#/pods?sort=node&ns=default&node=t4-1"
        assert page.evaluate("location.hash") == address
        names = page.locator("tbody .name").all_inner_texts()
        headings = page.locator("thead th").all_inner_texts()
        at = 1 + next(at for at, heading in enumerate(headings) if "Node" in heading)
        for node in page.locator(f"tbody td:nth-child({at})").all_inner_texts():
            assert node == "t4-1"
        visit(page, "#/fleet")
        visit(page, address)
        assert page.locator("tbody .name").all_inner_texts() == names
        expect(page.get_by_label("Namespace")).to_have_value("default")


def test_pods_are_grouped_from_workload_to_share(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """By mouse or keyboard, a workload's row opens to show its pods, and a pod's row opens to show
    its shares."""
    assert cluster.run("submit", "--wait", "-f", "-", stdin=JOB).returncode == 0
    try:
        for size in (WIDE, NARROW):
            with opened(browser, base, size=size) as page:
                visit(page, "#/pods?ns=grouped")
                page.get_by_role("button", name="Workloads").click()
                rows = page.locator("#rows tr")
                expect(rows).to_have_count(1)
                expect(rows.first).to_contain_text("2 pods")
                expect(rows.first).to_contain_text("2 allocated")
                rows.first.press("Enter")
                expect(rows).to_have_count(3)
                page.get_by_role("button", name="Shares of sweep-0").click()
                expect(page.get_by_role("button", name="Shares of sweep-0")).to_be_focused()
                expect(rows).to_have_count(4)
                expect(page.locator("#rows")).to_contain_text("1,000 MiB")
                assert offences(page) == []
                page.reload()
                expect(rows).to_have_count(4)
    finally:
        cluster.run("delete", "grouped/sweep-0", "grouped/sweep-1")
