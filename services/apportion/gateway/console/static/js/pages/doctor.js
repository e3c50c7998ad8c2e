// Doctor: the health checks of the installation, with a fix for each problem.
import { getNow } from "../api.js";
import { many, num } from "../format.js";
import { html, ICONS, renew } from "../html.js";
import { link, linked } from "../words.js";
import { isLive } from "../moment.js";
import { answer, copyFrom } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";
import { sentenceCase, withCode } from "../typography.js";

const STATES = { broken: "bad", unknown: "warn", warning: "warn", ok: "ok" };
/** Where a failed check leads: page, label and parameters. */
const SHOWN = {
  devices: ["fleet", "unhealthy GPUs", { show: "broken" }],
  agents: ["fleet", "unreachable GPUs", { q: "state:unreached" }],
  "never-fitting": ["waiting", "pending pods", {}],
  "starving-gangs": ["waiting", "pending pods", {}],
  cordons: ["fleet", "cordoned GPUs", { show: "cordoned" }],
  "refused-events": ["events", "events", {}],
  prices: ["reports", "reports", {}],
};

/** See app.js. */
export const open = (main, context) => new DoctorPage(main, context).start();

class DoctorPage extends ListPage {
  async load() {
    const found = await getNow("doctor");
    this.checks = found.checks;
    this.revision = found.revision;
  }

  draw() {
    const of = state => this.checks.filter(check => check.state === state);
    const [broken, unknown, warning, good] = ["broken", "unknown", "warning", "ok"].map(of);
    const todo = [...broken, ...unknown, ...warning];
    const passed = `${num(good.length)} passed`;
    const others = [
      warning.length ? many(warning.length, "warning") : "",
      unknown.length ? `${num(unknown.length)} unknown` : "",
    ].filter(Boolean);
    const sentence = broken.length
      ? html`<span class="c-bad">${many(broken.length, "problem")}</span>,
          ${[...others, passed].join(", ")}`
      : `Healthy: ${[passed, ...others].join(", ")}`;
    renew(
      this.main,
      html`<div class="page">
        ${answer(sentence, [
          isLive() ? "" : html`<span class="c-warn">Checks always show the present</span>`,
          html`<span class="m">apportion doctor</span>`,
          NEWER,
        ])}
        <div
          class="dstrip"
          role="img"
          aria-label="${many(broken.length, "problem")}, ${many(warning.length, "warning")}, ${unknown.length} unknown, ${good.length} passed"
        >
          ${[...todo, ...good].map(check => html`<i class="d-${STATES[check.state]}"></i>`)}
        </div>
        ${
          todo.length
            ? html`<section class="card">
                <h2>Needs attention</h2>
                <ul class="checks">
                  ${todo.map(checkRow)}
                </ul>
              </section>`
            : ""
        }
        ${
          good.length
            ? html`<section class="card">
                <h2>Passed <small>${num(good.length)} of ${num(this.checks.length)}</small></h2>
                <ul class="checks small two">
                  ${good.map(checkRow)}
                </ul>
              </section>`
            : ""
        }
      </div>`,
    );
  }

  clicked(event) {
    copyFrom(event);
  }
}

/** The sentence of a check with its nodes as links, and a link to the affected things. */
const saidOf = ({ id, state, parts }) =>
  html`${linked(parts)}${state !== "ok" && SHOWN[id] ? html` · ${link(...SHOWN[id])}` : ""}`;

function checkRow(check) {
  const icon = {
    broken: ICONS.broken,
    unknown: ICONS.warning,
    warning: ICONS.warning,
    ok: ICONS.ok,
  }[check.state];
  const words = { broken: "problem", unknown: "unknown", warning: "warning", ok: "passed" }[
    check.state
  ];
  const fix = check.fix ? html`<span class="cure">${withCode(sentenceCase(check.fix))}</span>` : "";
  return html`<li class="d-${STATES[check.state]}">
    <span class="ic" role="img" aria-label="${words}">${icon}</span>
    <div>
      <b>${nameOf(check)}</b
      ><span
        >${saidOf(check)}${
          /^(#|https?:)/.test(check.link)
            ? html` · <a href="${check.link}">show</a>`
            : check.link
              ? html` · <span class="m">${check.link}</span>`
              : ""
        }</span
      >${fix}
    </div>
  </li>`;
}

/** The title of a check: nodes-without-agent becomes Nodes without agent. */
const nameOf = check =>
  check.id === "rbac" ? "RBAC" : sentenceCase(check.id.replaceAll("-", " "));
