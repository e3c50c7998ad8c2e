"""What a page must keep for everybody: names of controls, landmarks, one heading, no sideways.

Small and ours: the rules that a program can judge without a library of a megabyte.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

SCRIPT = """
() => {
  const found = [];
  const seen = element => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility !== "hidden";
  };
  const words = id => document.getElementById(id)?.textContent.trim() ?? "";
  const name = element => element.getAttribute("aria-label")
    || (element.getAttribute("aria-labelledby") ?? "").split(" ").map(words).join(" ").trim()
    || [...(element.labels ?? [])].map(label => label.textContent.trim()).join(" ")
    || element.textContent.trim() || element.getAttribute("title") || "";
  const controls = "a[href], button, input, select, textarea, summary, [tabindex='0'], [role=img]";
  for (const element of document.querySelectorAll(controls)) {
    if (seen(element) && !name(element)) found.push(`no name: ${element.outerHTML.slice(0, 120)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
  const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
  found.push(...twice.map(id => `id twice: ${id}`));
  const headings = document.querySelectorAll("h1").length;
  if (headings !== 1) found.push(`${headings} h1`);
  for (const landmark of ["main", "nav", "footer"]) {
    if (document.querySelectorAll(landmark).length !== 1) found.push(`not one ${landmark}`);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.querySelector("th[scope]")) found.push("a table without heads");
  }
  if (!document.title || !document.documentElement.lang) found.push("no title or language");
  const root = document.documentElement;
  const main = document.getElementById("main");
  if (root.scrollWidth > root.clientWidth) found.push(`scrolls sideways: ${root.scrollWidth}`);
  if (main.scrollWidth > main.clientWidth) found.push(`main scrolls sideways: ${main.scrollWidth}`);
  return found;
}
"""


def offences(page: Page) -> list[str]:
    """What the page that is shown does not keep, in words."""
    found: Any = page.evaluate(SCRIPT)
    return [str(each) for each in found]
