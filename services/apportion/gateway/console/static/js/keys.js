// Keys: every page can be used without a mouse. Single keys rest while something is written.
import { $, $$, html, mount } from "./html.js";
import { openPalette } from "./palette.js";
import { go, href } from "./route.js";

const KEYS = [
  ["Ctrl K", "go to a pod, a node or a page"],
  ["/", "find on this page"],
  ["[  ]", "the mark before, the next mark"],
  ["shift ← →", "one minute back, one on"],
  ["space", "play"],
  ["n", "now"],
  ["j  k  ↵", "down, up, open"],
  ["← → ↑ ↓  ↵", "in the picture of the fleet: card to card, open one; tab goes into it"],
  ["+  −  0", "zoom the fleet, fit it"],
  ["r", "show what is new"],
  ["t", "light or dark"],
  ["esc", "close"],
  ["?", "these keys"],
];
const WRITING = 'input:not([type="range"]), textarea, select, dialog';

/** What a single key does; `bar` is the time bar. */
export function openKeys({ pages, bar, flipTheme, main }) {
  const dialog = $("#dialog");
  const help = () => {
    dialog.setAttribute("aria-label", "Keys");
    mount(
      dialog,
      html`<h2>Keys</h2>
        <dl class="keys">
          ${[[`1 – ${pages.length}`, "the pages"], ...KEYS].map(
            ([key, words]) =>
              html`<dt><kbd>${key}</kbd></dt>
                <dd>${words}</dd>`,
          )}
        </dl>
        <p class="foot faint">
          A mark is an event: at one the address has its revision, as in at=1200. Where two moments
          are compared, whatever goes to another moment moves the later of them.
        </p>`,
    );
    dialog.showModal();
  };
  $("#help").addEventListener("click", help);
  dialog.addEventListener("click", event => {
    if (event.target === dialog) dialog.close();
  });

  const acts = {
    "?": help,
    t: flipTheme,
    n: () => bar.now(),
    r: () => $("#newer")?.click(),
    "[": () => bar.mark(-1),
    "]": () => bar.mark(1),
    "/": () => $("#q", main)?.focus(),
    j: () => step(main, 1),
    k: () => step(main, -1),
    "+": () => $('[data-zoom="1"]', main)?.click(),
    "=": () => $('[data-zoom="1"]', main)?.click(),
    "-": () => $('[data-zoom="-1"]', main)?.click(),
    0: () => $('[data-zoom="0"]', main)?.click(),
  };
  pages.forEach(({ path }, at) => {
    acts[String(at + 1)] = () => go(href(path));
  });

  addEventListener("keydown", event => {
    if ((event.metaKey || event.ctrlKey) && event.key === "k") {
      event.preventDefault();
      openPalette(pages);
      return;
    }
    if (event.key === "Escape") {
      escape(event.target, dialog, main);
      return;
    }
    if (event.target.closest(WRITING) || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.shiftKey && event.key.startsWith("Arrow") && !event.target.closest("#cards")) {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        event.preventDefault();
        bar.step(event.key === "ArrowLeft" ? -60_000 : 60_000);
      }
    } else if (event.key === " " && !event.target.closest("button, a, summary")) {
      event.preventDefault();
      bar.play();
    } else if (event.key === "Enter") {
      event.target.closest("[data-row]")?.querySelector("a")?.click();
    } else if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    }
  });
}

/** An open dialog or list closes by itself, and nothing below it. */
function escape(target, dialog, main) {
  if (dialog.open || target.closest("[popover]")) return;
  $(".x", main)?.click();
  if (target.closest(WRITING)) target.blur();
}

function step(main, by) {
  const rows = $$("[data-row]", main);
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}
