// Go to: a page, a node or a pod by a part of its name.
import { all, get, NODES_MOST } from "./api.js";
import { byName } from "./format.js";
import { $, html, mount } from "./html.js";
import { go, href } from "./route.js";
import { phaseWord } from "./words.js";

const SHOWN = 12;
const known = { revision: -1, rows: [] };

/** Open the dialog. What is live is asked for once, and again when it is opened later. */
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
      <ul class="pal" id="pal-rows" role="listbox" aria-label="Found"></ul>`,
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

  /** The keyboard goes where the page is, and there to what was asked for. */
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
    if (!rows.length)
      mount($("#pal-rows"), html`<li class="faint">Nothing live has that name.</li>`);
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
  ); // another dialog may stand there by now
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
