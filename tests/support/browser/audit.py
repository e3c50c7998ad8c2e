"""Check a page for accessibility: names, landmarks, one main heading, no clipped text, contrast."""

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
  const cuts = new Set(["auto", "scroll", "hidden", "clip"]);
  const own = "pre, textarea, input, canvas, .unseen, [title]";  // scroll, or say the rest
  for (const element of main.querySelectorAll("*")) {
    if (element.scrollWidth <= element.clientWidth + 1 || element.matches(own)) continue;
    if (seen(element) && cuts.has(getComputedStyle(element).overflowX)) {
      found.push(`cut: ${element.outerHTML.slice(0, 120)}`);
    }
  }
  const pen = document.createElement("canvas").getContext("2d");
  for (const field of document.querySelectorAll("input[placeholder]")) {
    const style = getComputedStyle(field);
    pen.font = style.font;
    const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (seen(field) && pen.measureText(field.placeholder).width > room) {
      found.push(`placeholder cut: ${field.placeholder}`);
    }
  }
  return found;
}
"""

CONTRAST = """
() => {
  const channels = text => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+(e-\\d+)?/g).map(Number);
    return text.startsWith("color(") ? [r, g, b, a] : [r / 255, g / 255, b / 255, a];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((c, at) => c * a + below[at] * (1 - a));
  const light = colour => colour
    .map(c => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const found = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const words = texts.currentNode.textContent.trim();
    const box = element.getBoundingClientRect();
    if (!words || !box.width || element.closest("noscript, :disabled, .unseen")) continue;
    const line = [];
    for (let each = element; each; each = each.parentElement) line.unshift(getComputedStyle(each));
    if (line.at(-1).visibility === "hidden") continue;
    let [ground, opacity] = [[1, 1, 1], 1];
    for (const style of line) {
      ground = over(channels(style.backgroundColor), ground);
      opacity *= Number(style.opacity);
    }
    const style = line.at(-1);
    const [r, g, b, a] = channels(element.closest("svg") ? style.fill : style.color);
    const text = over([r, g, b, a * opacity], ground);
    const [low, high] = [light(text), light(ground)].sort((one, other) => one - other);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 600);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.add(`${ratio.toFixed(2)} to 1: ${words.slice(0, 60)}`);
  }
  return [...found];
}
"""
"""Contrast of text against its elements' own backgrounds (WCAG 2, AA). Overlays are not seen."""


def offences(page: Page) -> list[str]:
    """Return a message for each accessibility rule that the current page breaks."""
    found: list[Any] = [*page.evaluate(SCRIPT), *page.evaluate(CONTRAST)]
    return [str(each) for each in found]
