// Doctor: what is broken, what soon will be, what is not known, and what is as it must be; each with
// its fix.
import { getNow } from "../api.js";
import { many, num } from "../format.js";
import { html, ICONS, renew } from "../html.js";
import { link, linked } from "../words.js";
import { isLive } from "../moment.js";
import { answer, copyFrom } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";
import { sentenceCase, withCode } from "../typography.js";

const STATES = { broken: "bad", unknown: "warn", soon: "warn", ok: "ok" };
/** Where what a check is about is seen, while it is not as it must be. */
const SHOWN = {
  devices: ["fleet", "the broken cards", { show: "broken" }],
  agents: ["fleet", "the cards out of reach", { q: "state:unreached" }],
  "never-fitting": ["waiting", "the waiting pods", {}],
  "starving-gangs": ["waiting", "the waiting pods", {}],
  cordons: ["fleet", "the cordoned cards", { show: "cordoned" }],
  "refused-events": ["events", "the events", {}],
  prices: ["reports", "the reports", {}],
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
    const [broken, unknown, soon, good] = ["broken", "unknown", "soon", "ok"].map(of);
    const todo = [...broken, ...unknown, ...soon];
    const are = list => (list.length === 1 ? "is" : "are");
    const sentence = todo.length
      ? html`${
          broken.length
            ? html`<span class="c-bad">${many(broken.length, "thing")} ${are(broken)} broken</span>`
            : "Nothing is broken"
        }${soon.length ? `, ${num(soon.length)} may soon be` : ""}${
          unknown.length ? `, ${num(unknown.length)} ${are(unknown)} not known` : ""
        };
        ${num(good.length)} ${are(good)} as ${good.length === 1 ? "it" : "they"} must be.`
      : html`All ${num(good.length)} checks pass.`;
    renew(
      this.main,
      html`<div class="page">
        ${answer(sentence, [
          isLive() ? "" : html`<span class="c-warn">as it is now, whatever moment is shown</span>`,
          html`<span class="m">apportion doctor</span>`,
          NEWER,
        ])}
        <div
          class="dstrip"
          role="img"
          aria-label="${broken.length} broken, ${soon.length} soon, ${unknown.length} not known, ${good.length} good"
        >
          ${[...todo, ...good].map(check => html`<i class="d-${STATES[check.state]}"></i>`)}
        </div>
        ${
          todo.length
            ? html`<section class="card">
                <h2>To do</h2>
                <ul class="checks">
                  ${todo.map(checkRow)}
                </ul>
              </section>`
            : ""
        }
        ${
          good.length
            ? html`<section class="card">
                <h2>
                  As it must be <small>${num(good.length)} of ${num(this.checks.length)}</small>
                </h2>
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

/** The words of a check with its nodes as links, and where what it is about is seen. */
const saidOf = ({ id, state, parts }) =>
  html`${linked(parts)}${state !== "ok" && SHOWN[id] ? html` · ${link(...SHOWN[id])}` : ""}`;

function checkRow(check) {
  const icon = { broken: ICONS.broken, unknown: ICONS.soon, soon: ICONS.soon, ok: ICONS.ok }[
    check.state
  ];
  const words = { broken: "broken", unknown: "not known", soon: "soon", ok: "good" }[check.state];
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

/** nodes-without-agent as Nodes without agent. */
const nameOf = check =>
  check.id === "rbac" ? "RBAC" : sentenceCase(check.id.replaceAll("-", " "));
