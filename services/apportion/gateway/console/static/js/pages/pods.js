// Pods: which are live, where, and since when.
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
import { answer, listed, searchField, second, segments } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";

const PODS_MOST = 10_000;
const ROWS_SHOWN = 150;
const PHASES = ["", "waiting", "placed", "bound", "allocated", "rejected"];

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
          ${searchField(this.text, "name, namespace, node or ask", "Find pods")}${segments(
            "phase",
            "Phase",
            PHASES.map(phase => [phase, phase || "all"]),
            this.phase,
          )}
        </div>
        <div class="tablebox">
          <table class="t">
            <caption class="unseen">
              Live pods, the newest first
            </caption>
            <thead>
              <tr>
                <th scope="col">Pod</th>
                <th scope="col">Phase</th>
                <th scope="col" class="hide-s">Wants or holds</th>
                <th scope="col" class="hide-s">Node</th>
                <th scope="col" class="hide-s num">Since</th>
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
      ? html`${num(live)} ${live === 1 ? "pod is" : "pods are"} live: ${num(phases.allocated ?? 0)}
        hold their shares,
        ${link("waiting", `${num(waits)} wait`)}${
          phases.rejected
            ? html`;
              ${link("pods", `${num(phases.rejected)} cannot be read`, { phase: "rejected" }, "c-bad")}`
            : ""
        }.`
      : "No pod is live.";
    renew(
      $("#answer"),
      answer(sentence, [
        this.said && !this.phase
          ? html`<span class="c-warn" id="no-phase"
              >no phase is called ${this.said}; ${listed(PHASES.slice(1))} are. Pods of all are
              shown</span
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
        (!this.phase || phaseWord(pod.phase) === this.phase) &&
        (!wanted ||
          `${pod.namespace}/${pod.name} ${pod.node} ${wants(pod.asks)} ${pod.group}`
            .toLowerCase()
            .includes(wanted)),
    );
    $("#matching").textContent = !this.pods.length
      ? ""
      : found.length === this.pods.length
        ? "newest first"
        : `${num(found.length)} match, newest first`;
    const now = shownTime();
    mount(
      $("#rows"),
      found.length
        ? [
            ...found.slice(0, ROWS_SHOWN).map(pod => row(pod, now)),
            found.length > ROWS_SHOWN
              ? html`<tr class="more">
                  <td colspan="5">
                    and ${num(found.length - ROWS_SHOWN)} more; find narrows the
                    list${this.cut ? ` (of the first ${num(PODS_MOST)} pods)` : ""}
                  </td>
                </tr>`
              : "",
          ]
        : html`<tr class="more">
            <td colspan="5">
              ${this.pods.length ? "No pod is meant by that." : "Submit one: apportion submit -f FILE"}
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

/** What is the matter with what it holds; the page of the pod says more. */
const troubles = pod =>
  [
    pod.unready ? "its node is not ready" : "",
    pod.failed_devices.length ? `${many(pod.failed_devices.length, "card")} of it failed` : "",
    pod.evicted_for ? `is to go for ${pod.evicted_for}` : "",
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
