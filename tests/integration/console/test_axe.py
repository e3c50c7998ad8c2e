"""Every page passes axe-core, which checks more accessibility rules than our own audit."""

import subprocess

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser.chromium import NARROW, WIDE, opened, visit
from tests.support.browser.pages import navigation
from tests.tidy.tree import ROOT

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
INSTALL = ROOT / "tests" / "support" / "check_javascript.sh"
RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 160)}`));
}"""
PAGES = (
    *navigation(),
    "pods?by=workload",
    "pod/default/hami-pod",
    "pod/default/ascend-pod",
    "waiting?pod=default/ascend-pod",
    "fleet?card=t4-1:0",
    "events?rev=5",
    "events?diff=1,now",
    "whatif?lose=t4-1",
    "fleet?at=5",
    "no-such-page",
)


@pytest.fixture(scope="module")
def axe() -> str:
    """Provide the JavaScript source of axe-core, from npm packages pinned by hash."""
    subprocess.run([INSTALL, "--install"], check=True)
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make check says why")
    return AXE.read_text()


def serious(page: Page, axe: str) -> list[str]:
    """Return axe-core's serious and critical issues on the current page."""
    page.evaluate(axe)
    return [str(each) for each in page.evaluate(RUN)]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_issue(
    browser: Browser, base: str, axe: str, size: tuple[int, int], theme: str
) -> None:
    """No page has a serious accessibility issue: wide or narrow, light or dark, also with open
    details."""
    with opened(browser, base, size=size, theme=theme) as page:
        found = []
        for address in PAGES:
            visit(page, f"#/{address}")
            found += [f"{address}: {each}" for each in serious(page, axe)]
        assert not found, "\n".join(found)
