// Pods: all live pods, with their phase, request or allocation, node and age.
import { all, get } from "../api.js";
import { duration, many, num } from "../format.js";
import { $, $$, html, mount, renew } from "../html.js";
import {
  holds,
  link,
  namespaceDot,
  nodeLink,
  phaseChip,
  phaseWord,
  podName,
  since,
  wants,
} from "../words.js";
import { meetNamespaces } from "../colours.js";
import { shownTime } from "../moment.js";
import { answer, either, searchField, second, segments } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";
import { sentenceCase } from "../typography.js";

const PODS_MOST = 10_000;
const ROWS_SHOWN = 150;
const PHASES = ["", "pending", "placed", "bound", "allocated", "rejected"];

/** See app.js. */
export const open = (main, context) => new PodsPage(main, context).start();

class PodsPage extends ListPage {
  constructor(main, context) {
    super(main, context);
    this.text = context.parameters.get("q") ?? "";
    this.said = context.parameters.get("phase") ?? "";
    this.phase = PHASES.includes(phaseWord(this.said)) ? phaseWord(this.said) : "";
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
          ${searchField(this.text, "Name, namespace or node", "Search pods")}${segments(
            "phase",
            "Phase",
            PHASES.map(phase => [phase, phase ? sentenceCase(phaseWord(phase)) : "All"]),
            this.phase,
          )}
        </div>
        <div class="tablebox">
          <table class="t">
            <caption class="unseen">
              Live pods, newest first
            </caption>
            <thead>
              <tr>
                <th scope="col">Pod</th>
                <th scope="col">Phase</th>
                <th scope="col" class="hide-s">Resources</th>
                <th scope="col" class="hide-s">Node</th>
                <th scope="col" class="hide-s num">Age</th>
              </tr>
            </thead>
            <tbody id="rows"></tbody>
          </table>
        </div>
      </div>`,
    );
    $("#q").addEventListener("input", event => {
      this.text = event.target.value;
      this.context.setParameters({ q: this.text.trim() });
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
    this.list();
  }

  list() {
    const wanted = this.text.trim().toLowerCase();
    const found = this.pods.filter(
      pod =>
        (!this.phase || phaseWord(pod.phase) === phaseWord(this.phase)) &&
        (!wanted ||
          `${pod.namespace}/${pod.name} ${pod.node} ${wants(pod.asks)} ${pod.group}`
            .toLowerCase()
            .includes(wanted)),
    );
    $("#matching").textContent = !this.pods.length
      ? ""
      : found.length === this.pods.length
        ? "newest first"
        : `${num(found.length)} matching, newest first`;
    const now = shownTime();
    mount(
      $("#rows"),
      found.length
        ? [
            ...found.slice(0, ROWS_SHOWN).map(pod => row(pod, now)),
            found.length > ROWS_SHOWN
              ? html`<tr class="more">
                  <td colspan="5">
                    and ${num(found.length - ROWS_SHOWN)} more; search to narrow the
                    list${this.cut ? ` (first ${num(PODS_MOST)} pods only)` : ""}
                  </td>
                </tr>`
              : "",
          ]
        : html`<tr class="more">
            <td colspan="5">
              ${this.pods.length ? "No matching pods" : "Submit a pod: apportion submit -f FILE"}
            </td>
          </tr>`,
    );
  }

  clicked(event) {
    const button = event.target.closest("[data-phase]");
    if (!button) return;
    this.phase = button.dataset.phase;
    $("#no-phase")?.remove();
    this.context.setParameters({ phase: this.phase });
    for (const each of $$("[data-phase]", this.main))
      each.setAttribute("aria-pressed", String(each.dataset.phase === this.phase));
    this.list();
  }
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

function row(pod, now) {
  const seconds = since(pod.placed_time || pod.submitted_time, now);
  const has = holds(pod.shares) || (pod.asks.length ? wants(pod.asks) : pod.rejection);
  const node = pod.node ? nodeLink(pod.node) : "";
  const trouble = troubles(pod);
  const said = trouble ? html`<span class="c-bad">${trouble}</span>` : "";
  const age = seconds === null ? "" : duration(seconds);
  return html`<tr data-row tabindex="0">
    <td class="name">
      ${namespaceDot(pod.namespace)}${podName(pod.namespace, pod.name)}${second([has, node, age, said])}
    </td>
    <td>${phaseChip(phaseWord(pod.phase))}</td>
    <td class="hide-s ${pod.rejection || trouble ? "" : "nw"}">
      ${has}${said ? html`; ${said}` : ""}
    </td>
    <td class="hide-s">${node || html`<span class="faint">–</span>`}</td>
    <td class="num m hide-s">${age}</td>
  </tr>`;
}
