"""A console page that a developer adds by the recipe in CONTRIBUTING.md can be opened in every
way."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Route, expect

from tests.support.browser.audit import offences
from tests.support.browser.chromium import opened, visit
from tests.support.browser.pages import TABLE, navigation
from tests.support.scratch import Scratch
from tests.tidy.tree import ROOT

STATIC = "services/apportion/gateway/console/static"
MODULE = """\
// How many dummies there are.
import { html, mount } from "../html.js";

export function open(main) {
  mount(main, html`<div class="page"><h1 class="answer">3 dummies are here</h1></div>`);
}
"""
ROW = """\
  { path: "dummy", title: "Dummies", icon: ICONS.more, load: () => import("./pages/dummy.js") },
"""


def fulfilled(file: Path) -> Callable[[Route], None]:
    """Return a route handler that answers with `file` instead of the gateway's own file."""
    return lambda route: route.fulfill(path=file)


def test_a_page_is_found_on_every_surface(browser: Browser, base: str, tmp_path: Path) -> None:
    """A page added by the recipe opens by address, navigation, key and command palette, and has its
    title."""
    scratch = Scratch(tmp_path / "scratch")
    table = TABLE.relative_to(ROOT).as_posix()
    with scratch.recipe("a console page", most=2):
        scratch.add(f"{STATIC}/js/pages/dummy.js", MODULE)
        scratch.insert(table, '  {\n    path: "doctor",', ROW)
    assert navigation(scratch.folder / table)[-2:] == ("dummy", "doctor")
    with opened(browser, base) as page:
        for changed in (table, f"{STATIC}/js/pages/dummy.js"):
            served = f"**/console/{changed.removeprefix(f'{STATIC}/')}"
            page.route(served, fulfilled(scratch.folder / changed))
        page.reload()
        visit(page, "#/dummy")
        expect(page.locator("h1")).to_have_text("3 dummies are here")
        expect(page).to_have_title("Dummies · Apportion")
        assert offences(page) == []
        visit(page, "#/pods")
        page.keyboard.press(str(len(navigation())))
        row = page.locator('#nav a[data-page="dummy"]')
        expect(row).to_have_attribute("aria-current", "page")
        page.keyboard.press("Control+k")
        page.locator("#pal").fill("dumm")
        expect(page.locator("#pal-rows li")).to_have_text(["Dummiespage"])
