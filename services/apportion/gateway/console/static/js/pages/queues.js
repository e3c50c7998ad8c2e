// Queues as a tree: what each one is entitled to and uses of each kind of device, what it borrows and what it lends.
import { all } from "../api.js";
import { byName, many, num } from "../format.js";
import { html, renew } from "../html.js";
import { answer, listed, second } from "../parts.js";
import { link } from "../words.js";
import { ListPage, NEWER } from "./list_page.js";

const NVIDIA = "nvidia";
const WHOLE = 1000; // the parts of devices are in thousandths

/** See app.js. */
export const open = (main, context) => new QueuesPage(main, context).start();

class QueuesPage extends ListPage {
  async load() {
    this.queues = await all("queues");
    this.revision = this.queues.revision;
  }

  draw() {
    const { items, cut } = this.queues;
    const rows = inTree(items);
    const parts = items.flatMap(devices);
    const most = Math.max(WHOLE, ...parts.map(wide));
    const divides = parts.length > 0;
    renew(
      this.main,
      html`<div class="page">
        ${answer(headline(rows), [
          items.length ? link("waiting", "View pending pods") : "",
          cut ? `only the first ${num(items.length)}` : "",
          NEWER,
        ])}
        ${
          rows.length
            ? html`<section class="card">
                <table class="t tight">
                  <thead>
                    <tr>
                      <th scope="col">Queue</th>
                      <th scope="col">${divides ? "Used of entitlement" : "Used"}</th>
                      <th scope="col" class="num hide-s">Borrowed</th>
                      <th scope="col" class="num hide-s">Lent</th>
                      <th scope="col" class="num hide-s">Pods</th>
                      <th scope="col" class="num">Pending</th>
                    </tr>
                  </thead>
                  <tbody>
                    ${rows.map(queue => queueRow(queue, most))}
                  </tbody>
                </table>
                ${divides ? LEGEND : ""}
              </section>`
            : html`<section class="card">
                <p class="lead">
                  All pods are in one queue. To divide the devices among teams, declare more queues.
                </p>
              </section>`
        }
      </div>`,
    );
  }
}

const LOOKS = [
  ["own", "used", "var(--c-used)"],
  ["borrowed", "borrowed", "var(--p3)"],
  ["lent", "lent to other queues", "var(--c-granted)"],
  ["free", "unused", "var(--c-free)"],
];

const LEGEND = html`<div class="legend foot">
  ${LOOKS.map(([, words, colour]) => html`<span><i class="sw" data-s="background:${colour}"></i>${words}</span>`)}
</div>`;

/** The queues with each one behind the queue above it, by name. */
function inTree(queues) {
  const path = ({ above, queue }) => [...above, queue];
  return queues.toSorted((one, other) => {
    const [a, b] = [path(one), path(other)];
    const at = a.findIndex((name, place) => name !== b[place]);
    if (at < 0) return a.length - b.length;
    return b[at] === undefined ? 1 : byName(a[at], b[at]);
  });
}

/** The parts of a queue that are devices; none if the user may not see them. */
const devices = ({ parts }) => (parts ?? []).filter(part => part.devices);

/** What the bar of a part shows: its use, or its entitlement if that is more. */
const wide = part => Math.max(part.used, part.entitled, part.deserved);

const amount = value => (value / WHOLE).toLocaleString("en-US", { maximumFractionDigits: 1 });

const noun = part => (part.of === NVIDIA ? "GPU" : `${part.of} device`);

const counted = (value, part) => `${amount(value)} ${noun(part)}${value === WHOLE ? "" : "s"}`;

/** How much the queues without queues below them borrow, as the use of the others includes theirs. */
function headline(queues) {
  const above = new Set(queues.flatMap(queue => queue.above));
  const borrowed = new Map();
  for (const part of queues.filter(({ queue }) => !above.has(queue)).flatMap(devices)) {
    const before = borrowed.get(part.of)?.[0] ?? 0;
    if (part.borrowed) borrowed.set(part.of, [before + part.borrowed, part]);
  }
  const said = [...borrowed.values()].map(([value, part]) => counted(value, part));
  if (!queues.length) return "No queues";
  return `${many(queues.length, "queue")}${said.length ? `: ${listed(said)} borrowed` : ""}`;
}

function queueRow(queue, most) {
  const parts = devices(queue);
  const sum = field => parts.filter(part => part[field]).map(part => counted(part[field], part));
  const [borrowed, lent] = [sum("borrowed"), sum("lent")];
  const count = value => (value === null ? "–" : num(value));
  return html`<tr data-row tabindex="0">
    <td class="name" data-s="padding-left:${queue.above.length * 18}px">
      <span class="m">${queue.queue}</span
      >${queue.open ? "" : html` <span class="chip">closed</span>`}${second([
        borrowed.length ? `${listed(borrowed)} borrowed` : "",
        lent.length ? `${listed(lent)} lent` : "",
        `${count(queue.pods)} pods`,
      ])}
    </td>
    <td>${parts.length ? parts.map(part => useBar(part, most)) : plainUse(queue)}</td>
    <td class="num m hide-s">${listed(borrowed)}</td>
    <td class="num m hide-s">${listed(lent)}</td>
    <td class="num m hide-s">${count(queue.pods)}</td>
    <td class="num m">${count(queue.waiting)}</td>
  </tr>`;
}

/** The use of a queue without an entitlement. */
function plainUse({ devices: models }) {
  if (models === null) return html`<span class="faint">–</span>`;
  const used = Object.values(models).reduce((sum, each) => sum + each, 0);
  return html`<span class="faint">${used ? many(used, "device") : "nothing"}</span>`;
}

/** The use of one kind of device as text, and as a bar on the scale of all bars of the page. */
function useBar(part, most) {
  const entitled = Math.max(part.entitled, part.deserved);
  const values = {
    own: part.used - part.borrowed,
    borrowed: part.borrowed,
    lent: part.lent,
    free: Math.max(0, entitled - part.used - part.lent),
  };
  return html`<div class="q-use">
    <span class="m">${amount(part.used)} / ${counted(entitled, part)}</span>
    <span class="stackbar" aria-hidden="true"
      >${LOOKS.filter(([look]) => values[look] > 0).map(
        ([look, , colour]) =>
          html`<i
            class="q-${look}"
            data-s="width:${((100 * values[look]) / most).toFixed(2)}%;background:${colour}"
          ></i>`,
      )}</span
    >
  </div>`;
}
