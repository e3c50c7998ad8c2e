// Pods: all live pods, with their phase, request or allocation, node and age, as a list or by workload.
import { all, get } from "../api.js";
import { duration, many, num, shortId } from "../format.js";
import { $, $$, html, ICONS, mount, renew } from "../html.js";
import {
  holds,
  link,
  namespaceDot,
  nodeLink,
  phaseChip,
  phaseWord,
  pieceOf,
  podName,
  wants,
} from "../words.js";
import { meetNamespaces } from "../colours.js";
import { shownTime } from "../moment.js";
import { answer, either, searchField, second, segments } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";
import {
  beganOf,
  devicesOf,
  matching,
  nextSort,
  ordered,
  PHASES,
  phaseCounts,
  sortOf,
  treeRows,
} from "./pod_list.js";
import { sentenceCase } from "../typography.js";

const PODS_MOST = 10_000;
const ROWS_SHOWN = 150;
const NODES_OFFERED = 200;
// Of each column: its key in addresses and in COMPARE of pod_list.js, its title, and its classes.
const COLUMNS = [
  ["name", "Pod", ""],
  ["phase", "Phase", ""],
  ["gpus", "Resources", "hide-s"],
  ["node", "Node", "hide-s"],
  ["age", "Age", "hide-s num"],
];

/** See app.js. */
export const open = (main, context) => new PodsPage(main, context).start();

class PodsPage extends ListPage {
  constructor(main, context) {
    super(main, context);
    const asked = name => context.parameters.get(name) ?? "";
    this.text = asked("q");
    this.said = asked("phase");
    this.phase = PHASES.includes(phaseWord(this.said)) ? phaseWord(this.said) : "";
    this.namespace = asked("ns");
    this.node = asked("node");
    this.sort = sortOf(asked("sort"));
    this.by = asked("by") === "workload" ? "workload" : "";
    this.opened = new Set(asked("open").split(",").filter(Boolean));
  }

  async load() {
    const [summary, pods] = await Promise.all([get("summary"), all("pods", {}, PODS_MOST)]);
    this.summary = summary;
    this.pods = pods.items.reverse();
    this.cut = pods.cut;
    this.revision = pods.revision;
    meetNamespaces(this.pods.map(pod => pod.namespace));
  }

  frame() {
    mount(
      this.main,
      html`<div class="page">
        <div id="answer"></div>
        <div class="bar">
          ${searchField(this.text, "Name, namespace or node", "Search pods")}
          <select id="namespace" class="pick" aria-label="Namespace"></select>
          <input
            id="node"
            class="pick"
            type="search"
            list="nodes"
            value="${this.node}"
            placeholder="Any node"
            aria-label="Node"
            autocomplete="off"
            spellcheck="false"
          /><datalist id="nodes"></datalist>
          ${segments(
            "by",
            "Group by",
            [
              ["", "Pods"],
              ["workload", "Workloads"],
            ],
            this.by,
          )}
          ${segments(
            "phase",
            "Phase",
            PHASES.map(phase => [phase, phase ? sentenceCase(phaseWord(phase)) : "All"]),
            this.phase,
          )}
        </div>
        <div class="tablebox">
          <table class="t">
            <caption class="unseen">
              Live pods
            </caption>
            <thead>
              <tr id="heads"></tr>
            </thead>
            <tbody id="rows"></tbody>
          </table>
        </div>
      </div>`,
    );
    this.chosen("#q", "input", "text", "q");
    this.chosen("#node", "input", "node", "node");
    this.chosen("#namespace", "change", "namespace", "ns");
  }

  /** Keep what is chosen in a field, here and in the address. */
  chosen(field, kind, name, parameter) {
    $(field).addEventListener(kind, event => {
      this[name] = event.target.value;
      this.context.setParameters({ [parameter]: this[name].trim() });
      this.list();
    });
  }

  draw() {
    const { phases } = this.summary;
    const live = Object.entries(phases).reduce(
      (sum, [phase, n]) => (phase === "rejected" ? sum : sum + n),
      0,
    );
    const waits = (phases.refused ?? 0) + (phases.pending ?? 0);
    const sentence = live
      ? html`${many(live, "live pod")} · ${num(phases.allocated ?? 0)} allocated ·
        ${link("waiting", `${num(waits)} pending`)}${
          phases.rejected
            ? html` ·
              ${link("pods", `${num(phases.rejected)} rejected`, { phase: "rejected" }, "c-bad")}`
            : ""
        }`
      : "No live pods";
    renew(
      $("#answer"),
      answer(sentence, [
        this.said && !this.phase
          ? html`<span class="c-warn" id="no-phase"
              >Unknown phase “${this.said}”. Use ${either(PHASES.slice(1))}.</span
            >`
          : "",
        html`<span id="matching" role="status"></span>`,
        NEWER,
      ]),
    );
    this.offer();
    this.list();
  }

  /** Fill the choices of namespaces and nodes. */
  offer() {
    const of = (name, had) =>
      [...new Set([...this.pods.map(pod => pod[name]), had])].filter(Boolean).sort();
    mount(
      $("#namespace"),
      html`<option value="">All namespaces</option>
        ${of("namespace", this.namespace).map(each => html`<option>${each}</option>`)}`,
    ).value = this.namespace;
    mount(
      $("#nodes"),
      of("node", "")
        .slice(0, NODES_OFFERED)
        .map(each => html`<option value="${each}"></option>`),
    );
  }

  list() {
    const found = ordered(
      matching(
        this.pods,
        this,
        pod =>
          `${pod.namespace}/${pod.name} ${pod.node} ${wants(pod.asks)} ${pod.group} ${pod.owner}`,
      ),
      this.sort,
    );
    const sorted = COLUMNS.find(([key]) => key === this.sort.replace(/^-/, ""));
    const order = sorted ? `by ${sorted[1].toLowerCase()}` : "newest first";
    $("#matching").textContent = !this.pods.length
      ? ""
      : found.length === this.pods.length
        ? order
        : `${num(found.length)} matching, ${order}`;
    const now = shownTime();
    const rows = this.by
      ? treeRows(found, this.opened).map(each => treeRow(each, this.opened, now))
      : found.slice(0, ROWS_SHOWN).map(pod => row(pod, now));
    const left = this.by ? rows.length - ROWS_SHOWN : found.length - ROWS_SHOWN;
    renew(
      $("#heads"),
      COLUMNS.map(column => head(column, this.sort)),
    );
    renew(
      $("#rows"),
      found.length
        ? [
            ...rows.slice(0, ROWS_SHOWN),
            left > 0
              ? html`<tr class="more">
                  <td colspan="${COLUMNS.length}">
                    and ${num(left)} more; search to narrow the
                    list${this.cut ? ` (first ${num(PODS_MOST)} pods only)` : ""}
                  </td>
                </tr>`
              : "",
          ]
        : html`<tr class="more">
            <td colspan="${COLUMNS.length}">
              ${this.pods.length ? "No matching pods" : "Submit a pod: apportion submit -f FILE"}
            </td>
          </tr>`,
    );
  }

  clicked(event) {
    const { dataset } = event.target.closest("button") ?? {};
    if (dataset?.sort) this.set("sort", nextSort(this.sort, dataset.sort));
    else if (dataset?.open) this.toggle(dataset.open);
    else if (dataset?.by !== undefined) this.set("by", dataset.by);
    else if (dataset?.phase !== undefined) {
      $("#no-phase")?.remove();
      this.set("phase", dataset.phase);
    }
  }

  /** Change a choice, here, in its buttons and in the address. */
  set(name, value) {
    this[name] = value;
    this.context.setParameters({ [name]: value });
    for (const each of $$(`.bar [data-${name}]`, this.main))
      each.setAttribute("aria-pressed", String(each.dataset[name] === value));
    this.list();
  }

  toggle(key) {
    if (!this.opened.delete(key)) this.opened.add(key);
    this.context.setParameters({ open: [...this.opened].join(",") });
    this.list();
  }
}

/** @param {string[]} column */
function head([name, words, look], sort) {
  const order = { [name]: "ascending", [`-${name}`]: "descending" }[sort];
  const sorted = order ? html` aria-sort="${order}"` : "";
  return html`<th scope="col" class="${look}" ${sorted}>
    <button data-sort="${name}" id="sort-${name}">
      ${words}<i aria-hidden="true">${order ? (order === "ascending" ? "↑" : "↓") : ""}</i>
    </button>
  </th>`;
}

/** Problems of a pod's allocation in short; the page of the pod has details. */
const troubles = pod =>
  [
    pod.unready ? "node not ready" : "",
    pod.failed_devices.length ? `${many(pod.failed_devices.length, "GPU")} failed` : "",
    pod.evicted_for ? `being evicted for ${pod.evicted_for}` : "",
  ]
    .filter(Boolean)
    .join("; ");

const NONE = html`<span class="faint">–</span>`;

function row(pod, now, lead = namespaceDot(pod.namespace), look = "name") {
  const began = beganOf(pod);
  const has = holds(pod.shares, pod.asks) || (pod.asks.length ? wants(pod.asks) : pod.rejection);
  const node = pod.node ? nodeLink(pod.node) : "";
  const trouble = troubles(pod);
  const said = trouble ? html`<span class="c-bad">${trouble}</span>` : "";
  const age = began === null ? "" : duration(Math.max(0, (now - began) / 1000));
  return html`<tr data-row tabindex="0">
    <td class="${look}">
      ${lead}${podName(pod.namespace, pod.name)}${second([has, node, age, said])}
    </td>
    <td>${phaseChip(phaseWord(pod.phase))}</td>
    <td class="hide-s ${pod.rejection || trouble ? "" : "nw"}">
      ${has}${said ? html`; ${said}` : ""}
    </td>
    <td class="hide-s">${node || NONE}</td>
    <td class="num m hide-s">${age}</td>
  </tr>`;
}

// ---- by workload ----

/** A row of the tree; rows with something below them have a button that opens them. */
function treeRow(item, opened, now) {
  if (item.kind === "share") return shareRow(item);
  const lead = opener(item, opened);
  const look = `tree l${item.level}`;
  return item.kind === "pod" ? row(item.pods[0], now, lead, look) : groupRow(item, lead, look, now);
}

function opener({ kind, key, pods, name }, opened) {
  const [pod] = pods;
  if (kind === "pod" && !pod.shares.length) return html`<i class="leaf"></i>`;
  return html`<button
    class="opener"
    id="open-${key}"
    data-open="${key}"
    aria-expanded="${String(opened.has(key))}"
    aria-label="${kind === "pod" ? `Shares of ${pod.name}` : `Pods of ${name}`}"
  >
    ${ICONS.opens}
  </button>`;
}

function groupRow({ kind, pods, namespace, name }, lead, look, now) {
  const [word, plain] = kind === "gang" ? ["Gang", name] : name.split(/\/(.*)/s);
  const nodes = [...new Set(pods.map(pod => pod.node).filter(Boolean))];
  const began = pods.map(beganOf).filter(each => each !== null);
  const age = began.length ? duration(Math.max(0, (now - Math.min(...began)) / 1000)) : "";
  const gpus = many(
    pods.reduce((sum, pod) => sum + devicesOf(pod), 0),
    "GPU",
  );
  const where =
    nodes.length === 1 ? nodeLink(nodes[0]) : nodes.length ? many(nodes.length, "node") : "";
  return html`<tr data-row=".opener" tabindex="0">
    <td class="${look}">
      ${lead}${kind === "gang" && look.endsWith("1") ? "" : namespaceDot(namespace)}<b>${word}</b>
      <span class="m"
        >${kind === "gang" ? "" : html`<span class="ns">${namespace}/</span>`}${plain}</span
      >
      <span class="faint">${many(pods.length, "pod")}</span>${second([gpus, where, age])}
    </td>
    <td>
      ${phaseCounts(pods).map(
        ([phase, count]) => html`<span class="chip p-${phase}">${num(count)} ${phase}</span> `,
      )}
    </td>
    <td class="hide-s nw">${gpus}</td>
    <td class="hide-s">${where || NONE}</td>
    <td class="num m hide-s">${age}</td>
  </tr>`;
}

function shareRow({ level, share, pods: [pod] }) {
  const has = pieceOf(share, pod.asks);
  return html`<tr>
    <td class="tree l${level}">
      <i class="leaf"></i><span class="faint">Share on</span>
      <span class="m" title="${share.device}">${shortId(share.device)}</span>${second([has])}
    </td>
    <td></td>
    <td class="hide-s nw">${has}</td>
    <td class="hide-s">${nodeLink(pod.node)}</td>
    <td class="hide-s"></td>
  </tr>`;
}
