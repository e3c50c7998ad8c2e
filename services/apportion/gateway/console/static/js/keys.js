// Keyboard shortcuts. Every page works without a mouse; single-key shortcuts are off in text fields.
import { $, $$, html, mount } from "./html.js";
import { go, href } from "./route.js";
import { all, get, NODES_MOST } from "./api.js";
import { byName } from "./format.js";
import { phaseWord } from "./words.js";

const KEYS = [
  ["Ctrl K", "Go to a pod, node or page"],
  ["/", "Search this page"],
  ["[  ]", "Previous or next mark"],
  ["Shift ← →", "One minute back or forward"],
  ["Space", "Play or pause"],
  ["n", "Back to now"],
  ["j  k  ↵", "Next row, previous row, open"],
  ["← → ↑ ↓  ↵", "Fleet: move between devices, open; Tab enters the panel"],
  ["+  −  0", "Fleet: zoom in, zoom out, fit"],
  ["r", "Show updates"],
  ["t", "Light or dark theme"],
  ["Esc", "Close"],
  ["?", "Show shortcuts"],
];
const WRITING = 'input:not([type="range"]), textarea, select, dialog';

/** Register all shortcuts; `bar` is the time bar. */
export function openKeys({ pages, bar, flipTheme, main }) {
  const dialog = $("#dialog");
  const help = () => {
    dialog.setAttribute("aria-label", "Keyboard shortcuts");
    mount(
      dialog,
      html`<h2>Keyboard shortcuts</h2>
        <dl class="keys">
          ${[[`1 – ${pages.length}`, "Go to a page"], ...KEYS].map(
            ([key, words]) =>
              html`<dt><kbd>${key}</kbd></dt>
                <dd>${words}</dd>`,
          )}
        </dl>
        <p class="foot faint">
          A mark is an event in the time bar. On the compare page, time shortcuts move the later
          moment.
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
      const row = event.target.closest("[data-row]");
      if (row === event.target) openRow(row);
    } else if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    }
  });
}

/** Follow the first link of a row, or press the control that its `data-row` names. */
const openRow = row => $(row.dataset.row || "a", row)?.click();

/** Close the panel of the page; an open dialog or list handles the key itself. */
function escape(target, dialog, main) {
  if (dialog.open || target.closest("[popover]")) return;
  $(".x", main)?.click();
  if (target.closest(WRITING)) target.blur();
}

function step(main, by) {
  const rows = $$("[data-row]", main).filter(row => row.checkVisibility());
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}

// ---- the palette: go to a page, node or pod by a part of its name ----

const SHOWN = 12;
const known = { revision: -1, rows: [] };

/** Open the palette. Nodes and pods are loaded again if the revision has changed. */
export function openPalette(pages) {
  const dialog = $("#dialog");
  if (dialog.open) return;
  dialog.setAttribute("aria-label", "Go to");
  mount(
    dialog,
    html`<input
        id="pal"
        placeholder="Pod, node or page…"
        aria-label="Go to"
        role="combobox"
        aria-expanded="true"
        aria-controls="pal-rows"
        autocomplete="off"
        spellcheck="false"
      />
      <ul class="pal" id="pal-rows" role="listbox" aria-label="Results"></ul>`,
  );
  dialog.showModal();
  const field = $("#pal");
  const places = pages.map(({ path, title }) => ({
    name: title,
    kind: "page",
    address: href(path),
  }));
  let chosen = 0;
  let rows = [];

  /** Close the palette and move the focus to the page. */
  const leave = () => {
    dialog.close();
    $("#main").focus();
  };
  const draw = () => {
    const wanted = field.value.trim().toLowerCase();
    rows = [...places, ...(wanted ? known.rows : [])]
      .filter(row => row.name.toLowerCase().includes(wanted))
      .slice(0, SHOWN);
    chosen = Math.max(0, Math.min(chosen, rows.length - 1));
    mount(
      $("#pal-rows"),
      rows.map(
        (row, at) =>
          html`<li role="option" aria-selected="${String(at === chosen)}">
            <a href="${row.address}" tabindex="-1"><span>${row.name}</span><em>${row.kind}</em></a>
          </li>`,
      ),
    );
    if (!rows.length) mount($("#pal-rows"), html`<li class="faint">No matches</li>`);
  };
  field.addEventListener("input", () => {
    chosen = 0;
    draw();
  });
  field.addEventListener("keydown", event => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen += event.key === "ArrowDown" ? 1 : -1;
      draw();
    } else if (event.key === "Enter" && rows[chosen]) {
      leave();
      go(rows[chosen].address);
    }
  });
  $("#pal-rows").addEventListener("click", leave);
  draw();
  learn().then(
    () => {
      if (field.isConnected) draw();
    },
    () => {},
  ); // another dialog may be open by now
}

async function learn() {
  const { revision } = await get("revision");
  if (revision === known.revision) return;
  const [nodes, pods] = await Promise.all([all("nodes", {}, NODES_MOST), all("pods")]);
  known.revision = revision;
  known.rows = [
    ...nodes.items.map(({ node }) => ({
      name: node,
      kind: "node",
      address: href("fleet", { q: `node:${node}` }),
    })),
    ...pods.items.map(pod => ({
      name: `${pod.namespace}/${pod.name}`,
      kind: phaseWord(pod.phase),
      address: href(`pod/${pod.namespace}/${pod.name}`),
    })),
  ].sort((a, b) => byName(a.name, b.name));
}
